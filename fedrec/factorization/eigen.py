"""Eigenvectors of many small symmetric matrices, one at a time in the first-level cache, and the projection made from them.

Householder tridiagonalisation and the implicit QL iteration (Golub and Van Loan, Matrix Computations, 8.3), with the
eigenvectors kept as rows so that a rotation runs along contiguous memory. LAPACK's divide and conquer is made for larger
matrices, and its threads fight with ours. A matrix is handled by one thread in a fixed order of operations.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from fedrec.factorization.kernels import add_outer

Floats = npt.NDArray[np.floating]
Float64s = npt.NDArray[np.float64]

_REASSOCIATE = {"reassoc", "contract", "nsz"}  # sums as vectors; the order is fixed when compiled
_MOST_SWEEPS = 60


@njit(nogil=True, cache=True, fastmath=_REASSOCIATE)  # type: ignore[misc]
def _tridiagonalise(A: Floats, diagonal: Float64s, beside: Float64s, factors: Floats) -> None:
    """Reduce A (d, d) to T = Q' A Q; row i of A keeps the Householder vector of step i in its first i entries.

    diagonal, beside: (d,) of T, `beside[i]` next to diagonal[i] and [i + 1]. factors[i]: 2 / |vector i|^2.
    """
    d = len(A)
    product = np.empty(d, A.dtype)
    for i in range(d - 1, 0, -1):
        vector = A[i, :i]
        norm2 = A.dtype.type(0)
        for k in range(i):
            norm2 += vector[k] * vector[k]
        diagonal[i] = A[i, i]
        last = vector[i - 1]
        norm = np.sqrt(norm2)
        beside[i - 1] = last if norm2 == last * last else (-norm if last > 0 else norm)
        factors[i] = 0
        if norm2 == last * last:
            continue  # already tridiagonal here
        vector[i - 1] = last + norm if last > 0 else last - norm
        factor = A.dtype.type(1) / (norm2 + norm * abs(last))
        factors[i] = factor
        half = A.dtype.type(0)
        for r in range(i):
            row = A[r, :i]
            total = A.dtype.type(0)
            for k in range(i):
                total += row[k] * vector[k]
            product[r] = total * factor
            half += product[r] * vector[r]
        half *= factor / 2
        for r in range(i):
            product[r] -= half * vector[r]
        for r in range(i):
            row, a, b = A[r, :i], vector[r], product[r]
            for k in range(i):
                row[k] -= a * product[k] + b * vector[k]
    diagonal[0] = A[0, 0]
    beside[d - 1] = 0


@njit(nogil=True, cache=True, fastmath=_REASSOCIATE)  # type: ignore[misc]
def _accumulate(A: Floats, factors: Floats, W: Floats) -> None:
    """W = Q', from the Householder vectors that `_tridiagonalise` left in A; only W[:d, :d] is written."""
    d = len(A)
    for i in range(d):
        for k in range(d):
            W[i, k] = 1 if i == k else 0
    for i in range(1, d):
        if factors[i] == 0:
            continue
        vector = A[i, :i]
        for r in range(i):
            row = W[r, :i]
            total = A.dtype.type(0)
            for k in range(i):
                total += row[k] * vector[k]
            total *= factors[i]
            for k in range(i):
                row[k] -= total * vector[k]


@njit(nogil=True, cache=True, fastmath={"contract"})  # type: ignore[misc]
def _rotate(upper: Floats, lower: Floats, cosine: float, sine: float) -> None:
    """One plane rotation of two rows."""
    c, s = upper.dtype.type(cosine), upper.dtype.type(sine)
    for k in range(len(upper)):
        above, below = upper[k], lower[k]
        lower[k] = s * above + c * below
        upper[k] = c * above - s * below


@njit(nogil=True, cache=True)  # type: ignore[misc]
def _diagonalise(diagonal: Float64s, beside: Float64s, W: Floats, tolerance: float) -> bool:
    """Implicit QL: `diagonal` becomes the eigenvalues, row i of W the eigenvector of diagonal[i]. False: no convergence."""
    d = len(diagonal)
    for first in range(d):
        for sweep in range(_MOST_SWEEPS + 1):
            last = first
            while last < d - 1 and abs(beside[last]) > tolerance * (abs(diagonal[last]) + abs(diagonal[last + 1])):
                last += 1
            if last == first:
                break
            if sweep == _MOST_SWEEPS:
                return False
            g = (diagonal[first + 1] - diagonal[first]) / (2 * beside[first])
            r = np.sqrt(g * g + 1)
            g = diagonal[last] - diagonal[first] + beside[first] / (g + (r if g >= 0 else -r))
            sine, cosine, shift, split = 1.0, 1.0, 0.0, False
            for i in range(last - 1, first - 1, -1):
                f, b = sine * beside[i], cosine * beside[i]
                r = np.sqrt(f * f + g * g)
                beside[i + 1] = r
                if r == 0:  # the matrix falls apart here: start again
                    diagonal[i + 1] -= shift
                    beside[last] = 0
                    split = True
                    break
                sine, cosine = f / r, g / r
                g = diagonal[i + 1] - shift
                r = (diagonal[i] - g) * sine + 2 * cosine * b
                shift = sine * r
                diagonal[i + 1] = g + shift
                g = cosine * r - b
                _rotate(W[i], W[i + 1], cosine, sine)
            if not split:
                diagonal[first] -= shift
                beside[first], beside[last] = g, 0
    return True


@njit(nogil=True, cache=True)  # type: ignore[misc]
def project_range(first: int, last: int, packed: Floats, d: int, floor: float, projected: Floats, failed: npt.NDArray[np.bool_]) -> None:
    """projected[row] = A + sum over eigenvalues below `floor` of (floor - value) v v'; a matrix without any is copied."""
    width = (d + 7) // 8 * 8
    dtype = packed.dtype
    A, W = np.empty((d, d), dtype), np.zeros((d, width), dtype)
    diagonal, beside, factors = np.empty(d, np.float64), np.empty(d, np.float64), np.zeros(d, dtype)
    rows, weighted, C = np.empty(d * width, dtype), np.empty(d * width, dtype), np.empty(width * width, dtype)
    tolerance = np.finfo(dtype).eps / 8
    for row in range(first, last):
        largest = dtype.type(0)
        at = 0
        for i in range(d):
            for k in range(i, d):
                A[k, i] = A[i, k] = packed[row, at]
                largest = max(largest, abs(packed[row, at]))
                at += 1
        projected[row] = packed[row]
        if not np.isfinite(largest):
            failed[row] = True
            continue
        unit = largest if largest > 0 else dtype.type(1)  # squares stay in range
        A /= unit
        _tridiagonalise(A, diagonal, beside, factors)
        _accumulate(A, factors, W)
        if not _diagonalise(diagonal, beside, W, tolerance):
            failed[row] = True
            continue
        n = 0
        for i in range(d):
            lift = floor - diagonal[i] * unit
            if lift > 0:
                rows[n * width : (n + 1) * width] = W[i]
                weighted[n * width : (n + 1) * width] = W[i] * dtype.type(lift)
                n += 1
        if n == 0:
            continue
        C[:] = 0
        add_outer(weighted, rows, C, n, width)
        at = 0
        for i in range(d):
            for k in range(i, d):
                projected[row, at] += C[i * width + k]
                at += 1
