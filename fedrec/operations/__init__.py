"""What keeps a process watched and trusted: logs without values, metrics, development
certificates."""
