"""Leave-one-out residuals and user vectors, exactly, from one factorisation a user.

A user's n ratings are modelled as t_e = phi_e' w + noise of variance v_e, w ~ N(0, I). Without rating e the posterior mean of w is
w_(e), and the rating's residual r_e = t_e - phi_e' w_(e) is independent of what the rating itself did to w. So
E[r_e w_(e)'] = (phi* - phi_e)' E[w w_(e)'] is zero where phi is right, however wrong v and the prior are. In-sample residuals do not
have that: theirs is off by a multiple of phi (I + sum phi phi' / v)^-1, nearly all of phi in directions that n ratings hardly determine.

By Sherman and Morrison, with S = (I + sum phi phi' / v)^-1, w = S sum phi t / v and h_e = phi_e' S phi_e / v_e:

    r_e = (t_e - phi_e' w) / (1 - h_e),    w_(e) = w - S phi_e r_e / v_e

Users with fewer ratings than directions are solved in the space of items (K = Phi Phi' + V): r_e = (K^-1 t)_e / (K^-1)_ee,
w_(e) = w - Phi' K^-1 e_e r_e and 1 - h_e = v_e (K^-1)_ee.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numba
import numpy as np
import numpy.typing as npt

from fedrec.data.interactions import Interactions
from fedrec.threads import map_ranges

Float64s = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]

_REASSOCIATE = {"reassoc", "contract", "nsz"}  # sums as vectors; the order is fixed when compiled


@dataclass(frozen=True)
class LeftOut:
    """Of each rating: residual r (n,), first d coordinates of w without it (n, d), and 1 - h (n,), the noise's share of r's variance."""

    residuals: Float64s
    vectors: Float64s
    noise_share: Float64s


def left_out(mine: Interactions, phi: Float64s, targets: Float64s, variance: Float64s, *, width: int) -> LeftOut:
    """phi: (m, D). targets: (n,). variance: (m,) > 0 of each item's noise. Depends on each user's ratings alone, whatever the batch.

    Raises ValueError where the arrays do not have these shapes, or width is not in 0..D: compiled code looks at no bounds.
    """
    n, m = len(mine), mine.num_items
    if phi.ndim != 2 or len(phi) != m or targets.shape != (n,) or variance.shape != (m,) or not 0 <= width <= phi.shape[1]:
        raise ValueError(f"shapes {phi.shape}, {targets.shape}, {variance.shape} and width {width} do not fit {n} ratings of {m} items")
    found = LeftOut(np.empty(n), np.empty((n, width)), np.empty(n))
    arrays = np.ascontiguousarray(phi), targets, variance, found.residuals, found.vectors, found.noise_share
    map_ranges(lambda first, last: _left_out_range(first, last, mine.user_ptr, mine.items, *arrays), mine.num_users)
    return found


@numba.njit(nogil=True, cache=True, fastmath=_REASSOCIATE)
def _inverse(A: Float64s) -> Float64s:
    """The inverse of a positive definite matrix of which only the lower triangle is read, through its Cholesky factor; A is used up."""
    n = len(A)
    for e in range(n):
        for f in range(e + 1):
            total = A[e, f]
            for g in range(f):
                total -= A[e, g] * A[f, g]
            A[e, f] = math.sqrt(total) if e == f else total / A[f, f]
    L = np.zeros((n, n))  # rows of the factor's inverse, transposed: L[c, e] = (factor^-1)[e, c]
    for c in range(n):
        L[c, c] = 1 / A[c, c]
        for e in range(c + 1, n):
            total = 0.0
            for g in range(c, e):
                total -= A[e, g] * L[c, g]
            L[c, e] = total / A[e, e]
    S = np.empty((n, n))
    for c in range(n):
        for e in range(c, n):
            total = 0.0
            for g in range(e, n):
                total += L[c, g] * L[e, g]
            S[c, e] = S[e, c] = total
    return S


@numba.njit(nogil=True, cache=True, fastmath=_REASSOCIATE)
def _times(S: Float64s, x: Float64s) -> Float64s:
    out = np.zeros(len(x))
    for i in range(len(x)):
        for c in range(len(x)):
            out[i] += S[i, c] * x[c]
    return out


@numba.njit(nogil=True, cache=True, fastmath=_REASSOCIATE)
def _among_directions(X: Float64s, t: Float64s, v: Float64s, residuals: Float64s, vectors: Float64s, noise_share: Float64s) -> None:
    (n, D), d = X.shape, vectors.shape[1]
    A, w = np.eye(D), np.zeros(D)
    for e in range(n):
        for i in range(D):
            x = X[e, i] / v[e]
            w[i] += x * t[e]
            for c in range(i + 1):
                A[i, c] += x * X[e, c]
    S = _inverse(A)
    w = _times(S, w)
    for e in range(n):
        h, fit = 0.0, 0.0
        for i in range(D):
            total = 0.0
            for c in range(D):
                total += S[i, c] * X[e, c]
            h += total * X[e, i]
            fit += w[i] * X[e, i]
            if i < d:
                vectors[e, i] = total
        noise_share[e] = 1 - h / v[e]
        residuals[e] = (t[e] - fit) / noise_share[e]
        for i in range(d):
            vectors[e, i] = w[i] - vectors[e, i] * residuals[e] / v[e]


@numba.njit(nogil=True, cache=True, fastmath=_REASSOCIATE)
def _among_items(X: Float64s, t: Float64s, v: Float64s, residuals: Float64s, vectors: Float64s, noise_share: Float64s) -> None:
    (n, D), d = X.shape, vectors.shape[1]
    A = np.zeros((n, n))
    for e in range(n):
        for f in range(e + 1):
            for c in range(D):
                A[e, f] += X[e, c] * X[f, c]
        A[e, e] += v[e]
    K = _inverse(A)
    weights = _times(K, t)
    for e in range(n):
        noise_share[e] = v[e] * K[e, e]
        residuals[e] = weights[e] / K[e, e]
        vectors[e] = 0.0
        for f in range(n):
            weight = weights[f] - K[e, f] * residuals[e]
            for i in range(d):
                vectors[e, i] += weight * X[f, i]


@numba.njit(nogil=True, cache=True)
def _left_out_range(
    first: int,
    last: int,
    user_ptr: Int64s,
    items: npt.NDArray[np.int32],
    phi: Float64s,
    targets: Float64s,
    variance: Float64s,
    residuals: Float64s,
    vectors: Float64s,
    noise_share: Float64s,
) -> None:
    for k in range(first, last):
        a, b = user_ptr[k], user_ptr[k + 1]
        X, t, v = np.empty((b - a, phi.shape[1])), targets[a:b], np.empty(b - a)
        for e in range(b - a):
            X[e], v[e] = phi[items[a + e]], variance[items[a + e]]
        if b - a < phi.shape[1]:
            _among_items(X, t, v, residuals[a:b], vectors[a:b], noise_share[a:b])
        else:
            _among_directions(X, t, v, residuals[a:b], vectors[a:b], noise_share[a:b])
