"""The aggregator's service as a .proto, what protoc makes of it, and the way between its messages
and the seam's."""
