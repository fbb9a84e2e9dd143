"""Compiled numerics: inner loops, solves and draws over rows, and how many threads share them."""

from typing import Any

INNER: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Options of `numba.njit` for functions that only compiled code calls: their ways in from Python
and C, about a seventh of what compiling takes, are left out."""
