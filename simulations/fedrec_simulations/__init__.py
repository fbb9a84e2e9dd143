"""Loopback runs, benchmarks, reports and the `fedrec` command."""
