"""The service of rounds as a .proto, and what protoc makes of it."""
