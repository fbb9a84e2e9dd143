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

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s, Int32s, Int64s
from fedrec.data.interactions import Interactions
from fedrec.numerics import compiled
from fedrec.numerics.kernels import add_outer, fill, pad_columns
from fedrec.numerics.segments import FEW_ITEMS, cross_fitted, padded_users
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
    if phi.shape[1] == 1:
        return _along_one_direction(mine, phi[:, 0], targets, variance, width=width, folds=folds)
    if m <= FEW_ITEMS:
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
    known = padded, targets, variance[mine.items], mine.items % np.int32(folds)
    filled = found.residuals, found.vectors, found.noise_share
    few = np.diff(mine.user_ptr) < phi.shape[1]

    def solve(kernel: Callable[..., None], users: Int64s) -> None:
        map_ranges(
            lambda first, last: kernel(
                users[first:last], mine.user_ptr, mine.items, *known, folds, *filled
            ),
            len(users),
        )

    solve(_among_items, np.flatnonzero(few))
    solve(_among_directions, np.flatnonzero(~few))
    return found


def _along_one_direction(
    mine: Interactions,
    phi: Float64s,
    targets: Float64s,
    variance: Float64s,
    *,
    width: int,
    folds: int,
) -> CrossFit:
    """Return what `cross_fit` does, for phi (m,): w without a fold is a quotient of sums."""
    x = phi[mine.items]
    v = variance[mine.items]
    owners = mine.users.astype(np.int64) * folds + mine.items % folds

    def without(numbers: Float64s) -> Float64s:
        sums = np.bincount(owners, numbers, mine.num_users * folds).reshape(-1, folds)
        return np.ravel(sums.sum(axis=1, keepdims=True) - sums)

    precision = 1 + without(x * x / v)
    w = without(x * targets / v) / precision
    share = v / (v + x * x / precision[owners])
    there = np.bincount(owners, minlength=len(w)) > 0
    vectors = np.where(there, w, 0.0)[:, None][:, :width]
    return CrossFit(targets - x * w[owners], vectors, share)


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


@compiled(inner=True, fastmath={"contract", "nsz"})
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
@compiled(inner=True)
def _copy(row: Float64s, into: Float64s) -> None:
    for c in range(len(into)):
        into[c] = row[c]


@compiled(inner=True)
def _of_fold(fold: Int32s, k: int) -> Int64s:
    found = np.empty(len(fold), np.int64)
    n = 0
    for e in range(len(fold)):
        if fold[e] == k:
            found[n] = e
            n += 1
    return found[:n]


@compiled(inner=True)
def _taken(x: Float64s, places: Int64s) -> Float64s:
    out = np.empty(len(places))
    for a in range(len(places)):
        out[a] = x[places[a]]
    return out


@compiled(inner=True, fastmath={"contract", "nsz"})
def _scaled_pivot(A: Float64s, k: int, row: Float64s) -> None:
    """Into `row`: row k over its pivot, and the pivot's inverse in its place."""
    unit = 1 / A[k, k]
    for c in range(len(A)):
        row[c] = A[k, c] * unit
    row[k] = unit


@compiled(inner=True, fastmath={"contract", "nsz"})
def _eliminate(mine: Float64s, k: int, row: Float64s) -> None:
    """What a row `mine` keeps beside the pivot row of k."""
    factor = mine[k]
    mine[k] = 0
    for c in range(len(mine)):
        mine[c] -= factor * row[c]


@compiled(inner=True, fastmath=_REASSOCIATE)
def _times(S: Float64s, x: Float64s) -> Float64s:
    out = np.empty(len(x))
    fill(out, 0, len(x), 0)
    for i in range(len(x)):
        for c in range(len(x)):
            out[i] += S[i, c] * x[c]
    return out


@compiled(inner=True, fastmath=_REASSOCIATE)
def _rows_times(X: Float64s, S: Float64s) -> Float64s:
    """X S for S (W, W), W a multiple of 4."""
    n, W = X.shape
    out = np.empty((n, W))
    for e in range(n):
        fill(out[e], 0, W, 0)
        for c in range(0, W, 4):
            p = X[e, c]
            q = X[e, c + 1]
            r = X[e, c + 2]
            s = X[e, c + 3]
            for i in range(W):
                out[e, i] += (p * S[c, i] + q * S[c + 1, i]) + (r * S[c + 2, i] + s * S[c + 3, i])
    return out


@compiled(inner=True)
def _precision(X: Float64s, t: Float64s, v: Float64s) -> tuple[Float64s, Float64s]:
    """sum phi phi' / v and sum phi t / v."""
    n, W = X.shape
    sums = np.empty(W * W)
    b = np.empty(W)
    fill(sums, 0, W * W, 0)
    fill(b, 0, W, 0)
    rows = np.empty(EVENTS * W)
    weighted = np.empty(EVENTS * W)
    for start in range(0, n, EVENTS):
        taken = min(EVENTS, n - start)
        for e in range(taken):
            for c in range(W):
                rows[e * W + c] = X[start + e, c]
                weighted[e * W + c] = X[start + e, c] / v[start + e]
                b[c] += weighted[e * W + c] * t[start + e]
        add_outer(weighted, rows, sums, taken, W)
    A = np.empty((W, W))
    for i in range(W):
        for c in range(i, W):
            A[i, c] = A[c, i] = sums[i * W + c]
    return A, b


@compiled(fastmath=_REASSOCIATE)
def _among_directions(
    users: Int64s,
    user_ptr: Int64s,
    items: Int32s,
    phi: Float64s,
    targets: Float64s,
    variance: Float64s,
    fold: Int32s,
    folds: int,
    residuals: Float64s,
    vectors: Float64s,
    noise_share: Float64s,
) -> None:
    """Fill the last three for each of `users`. variance, fold: (n,) of each rating."""
    D = phi.shape[1]
    for user in users:
        first = user_ptr[user]
        last = user_ptr[user + 1]
        X = np.empty((last - first, D))
        for e in range(last - first):
            _copy(phi[items[first + e]], X[e])
        A, b = _precision(X, targets[first:last], variance[first:last])
        S = np.empty((D, D))
        for i in range(D):
            _copy(A[i], S[i])
            S[i, i] += 1
        S = _inverse(S)
        w = _times(S, b)
        for k in range(folds):
            mine = _of_fold(fold[first:last], k)
            n = len(mine)
            if not n:
                continue
            left_out = vectors[user * folds + k]
            X_F = np.empty((n, D))
            for a in range(n):
                _copy(X[mine[a]], X_F[a])
            t_F = _taken(targets[first:last], mine)
            v_F = _taken(variance[first:last], mine)
            if n > D:  # solved again without the fold: D^3 where Woodbury takes n^3
                A_F, b_F = _precision(X_F, t_F, v_F)
                for i in range(D):
                    for c in range(D):
                        A_F[i, c] = A[i, c] - A_F[i, c]
                    A_F[i, i] += 1
                    b_F[i] = b[i] - b_F[i]
                S_F = _inverse(A_F)
                w_F = _times(S_F, b_F)
                SX = _rows_times(X_F, S_F)
                _copy(w_F, left_out)
                for a in range(n):
                    predicted = 0.0
                    spread = 0.0
                    for c in range(D):
                        predicted += w_F[c] * X_F[a, c]
                        spread += SX[a, c] * X_F[a, c]
                    residuals[first + mine[a]] = t_F[a] - predicted
                    noise_share[first + mine[a]] = v_F[a] / (v_F[a] + spread)
                continue
            SX = _rows_times(X_F, S)
            M = np.empty((n, n))
            for a in range(n):
                for e in range(a + 1):
                    total = 0.0
                    for c in range(D):
                        total += SX[a, c] * X_F[e, c]
                    M[a, e] = M[e, a] = -total
                M[a, a] += v_F[a]
                for c in range(D):
                    t_F[a] -= w[c] * X_F[a, c]
            M = _inverse(M)
            u = _times(M, t_F)
            _copy(w, left_out)
            for a in range(n):
                residuals[first + mine[a]] = v_F[a] * u[a]
                noise_share[first + mine[a]] = 1 / (v_F[a] * M[a, a])
                for i in range(len(left_out)):
                    left_out[i] -= SX[a, i] * u[a]


@compiled(fastmath=_REASSOCIATE)
def _among_items(
    users: Int64s,
    user_ptr: Int64s,
    items: Int32s,
    phi: Float64s,
    targets: Float64s,
    variance: Float64s,
    fold: Int32s,
    folds: int,
    residuals: Float64s,
    vectors: Float64s,
    noise_share: Float64s,
) -> None:
    """Fill what `_among_directions` does, for users with fewer ratings than directions."""
    D = phi.shape[1]
    for user in users:
        first = user_ptr[user]
        last = user_ptr[user + 1]
        n = last - first
        X = np.empty((n, D))
        K = np.empty((n, n))
        for e in range(n):
            _copy(phi[items[first + e]], X[e])
            for f in range(e + 1):
                total = 0.0
                for c in range(D):
                    total += X[e, c] * X[f, c]
                K[e, f] = K[f, e] = total
            K[e, e] += variance[first + e]
        K = _inverse(K)
        weights = _times(K, targets[first:last])
        for k in range(folds):
            mine = _of_fold(fold[first:last], k)
            M = np.empty((len(mine), len(mine)))
            for a in range(len(mine)):
                for b in range(a + 1):
                    M[a, b] = M[b, a] = K[mine[a], mine[b]]
            M = _inverse(M)
            r = _times(M, _taken(weights, mine))
            for a in range(len(mine)):
                e = first + mine[a]
                residuals[e] = r[a]
                noise_share[e] = variance[e] / M[a, a]
            if len(mine):
                left_out = vectors[user * folds + k]
                for f in range(n):
                    weight = weights[f]
                    for a in range(len(mine)):
                        weight -= K[f, mine[a]] * r[a]
                    for i in range(len(left_out)):
                        left_out[i] += weight * X[f, i]
