"""Sums over each user's events, one event after another.

`numpy.add.reduceat` and differences of cumulative sums round differently where the batch is cut
differently; `numpy.bincount` and SciPy's products add in order, so that a user's result depends on
that user alone. That is what makes a report the same in one process and in many.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import sparse

from fedrec.arrays import Float64s, Int64s

_BLOCK = 1 << 12
"""Rows whose columns are added at a time: they stay in the second-level cache."""


def sums(pointer: Int64s, values: Float64s) -> Float64s:
    """(rows,) sum of `values[pointer[r]:pointer[r + 1]]`."""
    rows = len(pointer) - 1
    owners = np.repeat(np.arange(rows), np.diff(pointer))
    found = np.bincount(owners, values[pointer[0] : pointer[-1]], rows)
    return np.asarray(found, np.float64)


def owned_sums(pointer: Int64s, owners: Int64s, rows: Float64s) -> Float64s:
    """(rows, d) sum of the vectors `rows[owners[e]]` of each segment's events e."""
    # a product by rows adds in the order of the events
    chosen = sparse.csr_array(
        (np.ones(len(owners)), owners, pointer), (len(pointer) - 1, len(rows))
    )
    return np.asarray(chosen @ rows, np.float64)


def squares(pointer: Int64s, values: Float64s) -> Float64s:
    """(rows,) sum of squares of `values[pointer[r]:pointer[r + 1]]`."""
    return sums(pointer, row_products(values[:, None], values[:, None]))


def first_fall(pointer: Int64s, items: npt.NDArray[np.int32]) -> Int64s:
    """(rows,) the first place of each segment whose item is not larger than the one before, -1
    where all rise: each occurs once."""
    out = np.full(len(pointer) - 1, -1, np.int64)
    falls = np.flatnonzero(items[1:] <= items[:-1]) + 1
    rows = np.searchsorted(pointer, falls, "right") - 1
    inside = (falls > pointer[rows]) & (rows < len(out))
    rows, first = np.unique(rows[inside], return_index=True)
    out[rows] = falls[inside][first]
    return out


def row_squares(rows: Float64s) -> Float64s:
    """(n,) squared norm of each row of (n, d)."""
    return row_products(rows, rows)


def row_products(left: Float64s, right: Float64s) -> Float64s:
    """(n,) dot product of each pair of rows of two (n, d) arrays, added in order; infinite where
    that is too large."""
    out = np.zeros(len(left))
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for start in range(0, len(left), _BLOCK):
            part = slice(start, start + _BLOCK)
            products = left[part] * right[part]
            for c in range(left.shape[1]):
                out[part] += products[:, c]
    return out
