"""The serving service as a .proto, and what protoc makes of it."""
