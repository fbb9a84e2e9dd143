"""`fedrec serve`: released models answer queries that carry a few noised coefficients, over gRPC
and HTTP in one process."""
