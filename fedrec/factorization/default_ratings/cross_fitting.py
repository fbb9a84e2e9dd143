"""Cross-fitted residuals and user vectors, exactly, from one factorisation a user.

A user's n ratings are modelled as t_e = phi_e' w + noise of variance v_e, w ~ N(0, I). Its items
fall into K public folds, item j into j mod K. Without the ratings of fold F the posterior mean of w
is w_(F), and the residual r_e = t_e - phi_e' w_(F) of a rating in F is independent of what that
rating itself did to w. So E[r_e w_(F)'] = (phi* - phi_e)' E[w w_(F)'] is zero where phi is right,
however wrong v and the prior are. In-sample residuals do not have that: theirs is off by a multiple
of phi (I + sum phi phi' / v)^-1, nearly all of phi in directions that n ratings hardly determine.
Leaving out single ratings has it too, but gives each item a vector of its own; K vectors make a
report small, and sums of it products of few numbers.

With S = (I + sum phi phi' / v)^-1, w = S sum phi t / v, V_F the variances and Phi_F the rows of a
fold (Woodbury):

    u_F = (V_F - Phi_F S Phi_F')^-1 (t_F - Phi_F w),    r_F = V_F u_F,    w_(F) = w - S Phi_F' u_F

where r_F has the covariance V_F (V_F - Phi_F S Phi_F')^-1 V_F. A fold of more ratings than
directions is left out of S and w, which are computed anew: r_F = t_F - Phi_F w_(F), of covariance
V_F + Phi_F S_(F) Phi_F'. Users with fewer ratings than
directions are solved in the space of items, with K = Phi Phi' + V: r_F = ((K^-1)_FF)^-1 (K^-1 t)_F,
of covariance ((K^-1)_FF)^-1, and w_(F) = Phi' (K^-1 t - (K^-1)_F' r_F).
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s, Int64s
from fedrec.data.interactions import Interactions
from fedrec.numerics import INNER
from fedrec.numerics.kernels import add_outer, pad_columns
from fedrec.numerics.segments import FEW_RATINGS, cross_fitted, padded_users
from fedrec.numerics.threads import map_ranges

EVENTS = 64
"""Ratings whose outer products are summed at a time, so that they stay in the second-level
cache."""
_REASSOCIATE = {"reassoc", "contract", "nsz"}  # sums as vectors; the order is fixed when compiled


@dataclass(frozen=True)
class CrossFit:
    """residuals: (n,) r of each rating. vectors: (num_users * folds, d) first d coordinates of w
    without a fold, zero where the user has none of it. noise_share: (n,) v over the variance of
    r."""

    residuals: Float64s
    vectors: Float64s
    noise_share: Float64s


def cross_fit(
    mine: Interactions,
    phi: Float64s,
    targets: Float64s,
    variance: Float64s,
    *,
    width: int,
    folds: int,
) -> CrossFit:
    """phi: (m, D). targets: (n,). variance: (m,) > 0 of each item's noise. Depends on each user's
    ratings alone, whatever the batch.

    Raises ValueError where the arrays do not have these shapes, width is not in 0..D or folds below
    1: compiled code looks at no bounds.
    """
    n = len(mine)
    m = mine.num_items
    if (
        phi.ndim != 2
        or len(phi) != m
        or targets.shape != (n,)
        or variance.shape != (m,)
        or not 0 <= width <= phi.shape[1]
    ):
        raise ValueError(
            f"shapes {phi.shape}, {targets.shape}, {variance.shape} and width {width} do not "
            f"fit {n} ratings of {m} items"
        )
    if folds < 1:
        raise ValueError(f"items fall into one fold or more, found {folds}")
    found = CrossFit(np.empty(n), np.zeros((mine.num_users * folds, width)), np.empty(n))
    if n <= FEW_RATINGS:
        by_user = found.vectors.reshape(mine.num_users, folds, width)
        for users, events, real in padded_users(mine.user_ptr):
            X, t, v = padded_rows(mine, phi, targets, variance, events, real)
            fold = np.where(real, mine.items[events] % folds, -1)
            residuals, by_user[users], shares = cross_fitted(
                X, t, v, fold, width=width, folds=folds
            )
            found.residuals[events[real]] = residuals[real]
            found.noise_share[events[real]] = shares[real]
        return found
    padded = np.asarray(pad_columns(phi, np.float64), np.float64)
    directions = phi.shape[1]
    known = targets, variance
    filled = found.residuals, found.vectors, found.noise_share
    map_ranges(
        lambda first, last: _cross_fit_range(
            first, last, mine.user_ptr, mine.items, padded, directions, *known, folds, *filled
        ),
        mine.num_users,
    )
    return found


def padded_rows(
    mine: Interactions,
    phi: Float64s,
    targets: Float64s,
    variance: Float64s,
    events: Int64s,
    real: npt.NDArray[np.bool_],
) -> tuple[Float64s, Float64s, Float64s]:
    """X (g, n, D), t and v (g, n) of `numerics.segments`."""
    items = mine.items[events]
    X = np.where(real[:, :, None], phi[items], 0.0)
    return X, np.where(real, targets[events], 0.0), np.where(real, variance[items], 1.0)


@numba.njit(nogil=True, cache=True, fastmath={"contract", "nsz"}, **INNER)
def _inverse(A: Float64s) -> Float64s:
    """The inverse of a positive definite matrix, in its place, by Gauss and Jordan's elimination:
    its inner loop runs along rows, Cholesky's is a short sum. Two pivots at a time, one after the
    other in each entry, so that a row is loaded and stored half as often."""
    n = len(A)
    row = np.empty(n)
    other = np.empty(n)
    for k in range(n % 2):
        _scaled_pivot(A, k, row)
        for i in range(n):
            _eliminate(A[i], k, row)
        _copy(row, A[k])
    for k in range(n % 2, n, 2):
        _scaled_pivot(A, k, row)
        _eliminate(A[k + 1], k, row)
        _scaled_pivot(A, k + 1, other)
        for i in range(n):
            if i == k or i == k + 1:
                continue
            mine = A[i]
            first = mine[k]
            mine[k] = 0
            second = mine[k + 1] - first * row[k + 1]
            for c in range(n):
                mine[c] = mine[c] - first * row[c] - second * other[c]
            mine[k + 1] = -second * other[k + 1]
        _eliminate(row, k + 1, other)
        _copy(row, A[k])
        _copy(other, A[k + 1])
    return A


# Loops where NumPy has a word: numba compiles what raises errors of shapes for seconds.
@numba.njit(nogil=True, cache=True, **INNER)
def _copy(row: Float64s, into: Float64s) -> None:
    for c in range(len(row)):
        into[c] = row[c]


@numba.njit(nogil=True, cache=True, **INNER)
def _of_fold(fold: Int64s, k: int) -> Int64s:
    found = np.empty(len(fold), np.int64)
    n = 0
    for e in range(len(fold)):
        if fold[e] == k:
            found[n] = e
            n += 1
    return found[:n]


@numba.njit(nogil=True, cache=True, **INNER)
def _taken(x: Float64s, places: Int64s) -> Float64s:
    out = np.empty(len(places))
    for a in range(len(places)):
        out[a] = x[places[a]]
    return out


@numba.njit(nogil=True, cache=True, **INNER)
def _rows_taken(X: Float64s, places: Int64s) -> Float64s:
    out = np.empty((len(places), X.shape[1]))
    for a in range(len(places)):
        _copy(X[places[a]], out[a])
    return out


@numba.njit(nogil=True, cache=True, **INNER)
def _less(x: Float64s, y: Float64s) -> Float64s:
    out = np.empty(len(x))
    for c in range(len(x)):
        out[c] = x[c] - y[c]
    return out


@numba.njit(nogil=True, cache=True, **INNER)
def _with_prior(A: Float64s) -> Float64s:
    """I + A."""
    out = np.empty(A.shape)
    for i in range(len(A)):
        _copy(A[i], out[i])
        out[i, i] = 1 + A[i, i]
    return out


@numba.njit(nogil=True, cache=True, fastmath={"contract", "nsz"}, **INNER)
def _scaled_pivot(A: Float64s, k: int, row: Float64s) -> None:
    """Into `row`: row k over its pivot, and the pivot's inverse in its place."""
    unit = 1 / A[k, k]
    for c in range(len(A)):
        row[c] = A[k, c] * unit
    row[k] = unit


@numba.njit(nogil=True, cache=True, fastmath={"contract", "nsz"}, **INNER)
def _eliminate(mine: Float64s, k: int, row: Float64s) -> None:
    """What a row `mine` keeps beside the pivot row of k."""
    factor = mine[k]
    mine[k] = 0
    for c in range(len(mine)):
        mine[c] -= factor * row[c]


@numba.njit(nogil=True, cache=True, fastmath=_REASSOCIATE, **INNER)
def _times(S: Float64s, x: Float64s) -> Float64s:
    out = np.zeros(len(x))
    for i in range(len(x)):
        for c in range(len(x)):
            out[i] += S[i, c] * x[c]
    return out


@numba.njit(nogil=True, cache=True, fastmath=_REASSOCIATE, **INNER)
def _rows_times(X: Float64s, S: Float64s) -> Float64s:
    """X S for S (W, W), W a multiple of 4."""
    n, W = X.shape
    out = np.zeros((n, W))
    for e in range(n):
        for c in range(0, W, 4):
            p = X[e, c]
            q = X[e, c + 1]
            r = X[e, c + 2]
            s = X[e, c + 3]
            for i in range(W):
                out[e, i] += (p * S[c, i] + q * S[c + 1, i]) + (r * S[c + 2, i] + s * S[c + 3, i])
    return out


@numba.njit(nogil=True, cache=True, **INNER)
def _precision(X: Float64s, t: Float64s, v: Float64s) -> tuple[Float64s, Float64s]:
    """sum phi phi' / v and sum phi t / v."""
    n, W = X.shape
    A = np.zeros((W, W))
    b = np.zeros(W)
    weighted = np.empty((EVENTS, W))
    for start in range(0, n, EVENTS):
        taken = min(EVENTS, n - start)
        for e in range(taken):
            for c in range(W):
                weighted[e, c] = X[start + e, c] / v[start + e]
                b[c] += weighted[e, c] * t[start + e]
        rows = X[start : start + taken].reshape(-1)
        add_outer(weighted.reshape(-1), rows, A.reshape(-1), taken, W)
    for i in range(W):
        for c in range(i):
            A[i, c] = A[c, i]
    return A, b


@numba.njit(nogil=True, cache=True, fastmath=_REASSOCIATE, **INNER)
def _among_directions(
    X: Float64s,
    t: Float64s,
    v: Float64s,
    fold: Int64s,
    residuals: Float64s,
    vectors: Float64s,
    noise_share: Float64s,
) -> None:
    D, (folds, d) = X.shape[1], vectors.shape
    A, b = _precision(X, t, v)
    S = _inverse(_with_prior(A))
    w = _times(S, b)
    for k in range(folds):
        mine = _of_fold(fold, k)
        n = len(mine)
        if not n:
            continue
        X_F = _rows_taken(X, mine)
        t_F = _taken(t, mine)
        v_F = _taken(v, mine)
        if n > D:  # solved again without the fold: D^3 where Woodbury takes n^3
            A_F, b_F = _precision(X_F, t_F, v_F)
            for i in range(D):
                _copy(_less(A[i], A_F[i]), A_F[i])
            S_F = _inverse(_with_prior(A_F))
            w_F = _times(S_F, _less(b, b_F))
            SX = _rows_times(X_F, S_F)
            for i in range(d):
                vectors[k, i] = w_F[i]
            for a in range(n):
                predicted = 0.0
                spread = 0.0
                for c in range(D):
                    predicted += w_F[c] * X_F[a, c]
                    spread += SX[a, c] * X_F[a, c]
                residuals[mine[a]] = t_F[a] - predicted
                noise_share[mine[a]] = v_F[a] / (v_F[a] + spread)
            continue
        SX = _rows_times(X_F, S)
        M = np.empty((n, n))
        misfit = _taken(t, mine)
        for a in range(n):
            for e in range(a + 1):
                total = 0.0
                for c in range(D):
                    total += SX[a, c] * X_F[e, c]
                M[a, e] = M[e, a] = -total
            M[a, a] += v_F[a]
            for c in range(D):
                misfit[a] -= w[c] * X_F[a, c]
        M = _inverse(M)
        u = _times(M, misfit)
        for i in range(d):
            vectors[k, i] = w[i]
        for a in range(n):
            residuals[mine[a]] = v_F[a] * u[a]
            noise_share[mine[a]] = 1 / (v_F[a] * M[a, a])
            for i in range(d):
                vectors[k, i] -= SX[a, i] * u[a]


@numba.njit(nogil=True, cache=True, fastmath=_REASSOCIATE, **INNER)
def _among_items(
    X: Float64s,
    t: Float64s,
    v: Float64s,
    fold: Int64s,
    residuals: Float64s,
    vectors: Float64s,
    noise_share: Float64s,
) -> None:
    (n, D), (folds, d) = X.shape, vectors.shape
    A = np.zeros((n, n))
    for e in range(n):
        for f in range(e + 1):
            total = 0.0
            for c in range(D):
                total += X[e, c] * X[f, c]
            A[e, f] = A[f, e] = total
        A[e, e] += v[e]
    K = _inverse(A)
    weights = _times(K, t)
    for k in range(folds):
        mine = _of_fold(fold, k)
        M = np.empty((len(mine), len(mine)))
        for a in range(len(mine)):
            for b in range(a + 1):
                M[a, b] = M[b, a] = K[mine[a], mine[b]]
        M = _inverse(M)
        r = _times(M, _taken(weights, mine))
        for a in range(len(mine)):
            e = mine[a]
            residuals[e] = r[a]
            noise_share[e] = v[e] / M[a, a]
        if len(mine):
            for f in range(n):
                weight = weights[f]
                for a in range(len(mine)):
                    weight -= K[f, mine[a]] * r[a]
                for i in range(d):
                    vectors[k, i] += weight * X[f, i]


@numba.njit(nogil=True, cache=True)
def _cross_fit_range(
    first: int,
    last: int,
    user_ptr: Int64s,
    items: npt.NDArray[np.int32],
    phi: Float64s,
    directions: int,
    targets: Float64s,
    variance: Float64s,
    folds: int,
    residuals: Float64s,
    vectors: Float64s,
    noise_share: Float64s,
) -> None:
    for k in range(first, last):
        a = user_ptr[k]
        b = user_ptr[k + 1]
        X = np.empty((b - a, phi.shape[1]))
        t = targets[a:b]
        v = np.empty(b - a)
        fold = np.empty(b - a, np.int64)
        for e in range(b - a):
            j = items[a + e]
            for c in range(phi.shape[1]):
                X[e, c] = phi[j, c]
            v[e] = variance[j]
            fold[e] = j % folds
        mine = vectors[k * folds : (k + 1) * folds]
        if b - a < directions:
            _among_items(X, t, v, fold, residuals[a:b], mine, noise_share[a:b])
        else:
            _among_directions(X, t, v, fold, residuals[a:b], mine, noise_share[a:b])
