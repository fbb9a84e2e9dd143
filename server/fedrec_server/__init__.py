"""The server role: rounds, checkpoints, serving."""
