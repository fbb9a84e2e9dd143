"""Benchmarks: every figure is a ratio of two times of the same run, beside the times and the
shape."""
