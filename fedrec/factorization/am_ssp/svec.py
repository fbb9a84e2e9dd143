"""Symmetric matrices u u' as plain vectors, for sums that take a coefficient and a vector: svec(A)
= (A_ii, sqrt(2) A_ij).

svec keeps the Frobenius norm, so a row c svec(u u') is bounded as the matrix c u u' is, and noise
of std s on svec is noise of std s / sqrt(2) off the diagonal. Three aggregators sum products of two
factors (`fedrec.sharing.layout`): an outer block of many rows has three. Rounded is svec here, and
u there, so sums differ in their last bits.
"""

from __future__ import annotations

import math

import numpy as np

from fedrec.arrays import Float64s
from fedrec.federation.messages import triangle


def svec(U: Float64s) -> Float64s:
    """(n, d(d+1)/2) svec(u u') of every row u of U (n, d)."""
    rows, columns = triangle(U.shape[1])
    return np.asarray(U[:, rows] * U[:, columns] * _factors(U.shape[1]))


def packed(sums: Float64s, width: int) -> Float64s:
    """(m, d(d+1)/2) upper triangles of sums of svec, `width` being d."""
    return np.asarray(sums / _factors(width))


def _factors(width: int) -> Float64s:
    rows, columns = triangle(width)
    return np.where(rows == columns, 1.0, math.sqrt(2))
