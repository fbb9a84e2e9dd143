"""Transport between the parties: authenticated gRPC channels, and both services with what protoc
makes of them."""
