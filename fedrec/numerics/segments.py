"""Sums over each user's events, one event after another.

`numpy.add.reduceat` and differences of cumulative sums round differently where the batch is cut
differently; `numpy.bincount` and SciPy's products add in order, so that a user's result depends on
that user alone. That is what makes a report the same in one process and in many.

Order of items whose scores are equal: by a fixed hash of their rows.

Rows follow ids, and ids often follow age or popularity. Were the smaller id first, a scorer that
knows nothing would be measured as a good one: on MovieLens 100K a constant has NDCG@10 .032 by id,
.006 in random order. The hash is a permutation of 32-bit numbers (lowbias32, C. Wellons), so that
no two rows are equal; servers, devices and the page compute the same one.
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


_KEY = 0x9E3779B9


def tie_keys(rows: npt.NDArray[np.integer]) -> npt.NDArray[np.uint32]:
    """Keys of rows, of the same shape: of two equal scores, the one of the smaller key is first.

    >>> from fedrec.numerics.segments import tie_keys
    >>> import numpy as np
    >>> tie_keys(np.arange(3)).tolist()
    [33350994, 2767685996, 127880910]
    """
    x = rows.astype(np.uint32) ^ np.uint32(_KEY)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return np.asarray(x ^ (x >> np.uint32(16)), np.uint32)
