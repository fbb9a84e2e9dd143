"""Operation of a process: logs without values, metrics, development certificates."""
