"""Benchmarks of speed, memory and bytes: every figure is a ratio of two measurements of one run, or
stands beside what limits it.

Not part of what is installed. `python -m benchmarks --list` says what there is."""
