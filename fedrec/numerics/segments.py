"""Sums over each user's events, by one sequential loop per user.

`numpy.add.reduceat` and differences of cumulative sums round differently where the batch is cut
differently; here a user's result depends on that user alone, which is what makes a report the same
in one process and in many.
"""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s, Int64s


@numba.njit(nogil=True, cache=True)
def sums(pointer: Int64s, values: Float64s) -> Float64s:
    """(rows,) sum of `values[pointer[r]:pointer[r + 1]]`."""
    out = np.zeros(len(pointer) - 1)
    for r in range(len(out)):
        for e in range(pointer[r], pointer[r + 1]):
            out[r] += values[e]
    return out


@numba.njit(nogil=True, cache=True)
def owned_sums(pointer: Int64s, owners: Int64s, rows: Float64s) -> Float64s:
    """(rows, d) sum of the vectors `rows[owners[e]]` of each segment's events e."""
    out = np.zeros((len(pointer) - 1, rows.shape[1]))
    for r in range(len(out)):
        for e in range(pointer[r], pointer[r + 1]):
            for c in range(rows.shape[1]):
                out[r, c] += rows[owners[e], c]
    return out


@numba.njit(nogil=True, cache=True)
def squares(pointer: Int64s, values: Float64s) -> Float64s:
    """(rows,) sum of squares of `values[pointer[r]:pointer[r + 1]]`."""
    out = np.zeros(len(pointer) - 1)
    for r in range(len(out)):
        for e in range(pointer[r], pointer[r + 1]):
            out[r] += values[e] * values[e]
    return out


@numba.njit(nogil=True, cache=True)
def first_fall(pointer: Int64s, items: npt.NDArray[np.int32]) -> Int64s:
    """(rows,) the first place of each segment whose item is not larger than the one before, -1
    where all rise: each occurs once."""
    out = np.full(len(pointer) - 1, -1, np.int64)
    for r in range(len(out)):
        for e in range(pointer[r] + 1, pointer[r + 1]):
            if items[e] <= items[e - 1]:
                out[r] = e
                break
    return out


@numba.njit(nogil=True, cache=True)
def row_squares(rows: Float64s) -> Float64s:
    """(n,) squared norm of each row of (n, d)."""
    out = np.zeros(rows.shape[0])
    for i in range(rows.shape[0]):
        for c in range(rows.shape[1]):
            out[i] += rows[i, c] * rows[i, c]
    return out


@numba.njit(nogil=True, cache=True)
def row_products(left: Float64s, right: Float64s) -> Float64s:
    """(n,) dot product of each pair of rows of two (n, d) arrays."""
    out = np.zeros(left.shape[0])
    for i in range(left.shape[0]):
        for c in range(left.shape[1]):
            out[i] += left[i, c] * right[i, c]
    return out
