"""Sums of products of shares over users, modulo 2^64, by compiled loops."""

from __future__ import annotations

from fedrec.arrays import UInt64s
from fedrec.numerics import compiled
from fedrec.numerics.threads import map_ranges

_TILE = 64
"""Items whose sums stay in the first-level cache while all users pass."""


_WORK = 1 << 22
"""Products below which threads cost more than they save."""


def add_products(left: UInt64s, right: UInt64s, sums: UInt64s, *, folds: int = 1) -> None:
    """sums (m, w) += sum over users of left (n, m)' right (n, folds * w), where item j takes vector
    j mod folds; modulo 2^64.

    Exact for any batch, in any order and on any number of threads: there is no rounding. Raises
    ValueError on other shapes.
    """
    (n, m), w = left.shape, sums.shape[1]
    if right.shape != (n, folds * w) or len(sums) != m:
        raise ValueError(
            f"factors {left.shape} and {right.shape} do not make sums {sums.shape} with "
            f"{folds} folds"
        )
    if n * m * w < _WORK:
        _add_range(0, m, left, right, sums, folds, _TILE)
    else:
        map_ranges(lambda first, last: _add_range(first, last, left, right, sums, folds, _TILE), m)


@compiled()
def _add_range(
    first: int, last: int, A: UInt64s, B: UInt64s, C: UInt64s, folds: int, tile: int
) -> None:
    """Rows first..last of C, four users at a time, then those left over."""
    n = A.shape[0]
    w = C.shape[1]
    fours = n - n % 4
    for j0 in range(first, last, tile):
        j1 = min(j0 + tile, last)
        for u in range(0, fours, 4):
            for j in range(j0, j1):
                a0 = A[u, j]
                a1 = A[u + 1, j]
                a2 = A[u + 2, j]
                a3 = A[u + 3, j]
                start = (j % folds) * w
                b0 = B[u, start : start + w]
                b1 = B[u + 1, start : start + w]
                b2 = B[u + 2, start : start + w]
                b3 = B[u + 3, start : start + w]
                c = C[j]
                for k in range(w):
                    c[k] += a0 * b0[k] + a1 * b1[k] + a2 * b2[k] + a3 * b3[k]
        for u in range(fours, n):
            for j in range(j0, j1):
                a = A[u, j]
                start = (j % folds) * w
                b = B[u, start : start + w]
                c = C[j]
                for k in range(w):
                    c[k] += a * b[k]
