"""Compiled numerics: inner loops, solves and draws over rows, and how many threads share them."""
