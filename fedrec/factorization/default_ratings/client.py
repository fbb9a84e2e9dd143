"""Device side of the default recipe: reports of joint L2 norm at most 1, and the local solve.

Guarantee (user, add/remove): `federation.reports.bounded` scales one user's whole report of a
release to norm 1, whatever the data (one rating or three thousand), and cuts it to the grid towards
zero; removing the user removes that report and nothing else, since a device computes from released
arrays and its own events alone. Sensitivity 1 for every release.

Units: ratings are mapped so that their public scale becomes [-2, 2]. A user's ratings are modelled
as x_uj = mean + b_j + phi_j' w_u + e with w_u ~ N(0, I) and e ~ N(0, noise + variance_j); the
device's posterior mean of w_u is exact. It never leaves the device but inside a report.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from scipy import sparse

from fedrec.arrays import Float64s, Int64s
from fedrec.data.interactions import Interactions
from fedrec.factorization.default_ratings.cross_fitting import (
    CrossFit,
    cross_fit,
    padded_rows,
)
from fedrec.factorization.least_squares import solve_users
from fedrec.federation.messages import Question, Reports
from fedrec.federation.reports import RealBlock, bounded
from fedrec.numerics import compiled, segments
from fedrec.numerics.segments import FEW_ITEMS, gains, padded_users, times
from fedrec.numerics.threads import map_ranges

UNITS = (
    "unit_users",
    "unit_ratio",
    "unit_residual",
    "unit_excess",
    "unit_gain",
    "unit_lift",
    "unit_known",
)
"""Public numbers that a step's scales are divided by."""
PRIOR_RATINGS = 3.0
"""A user's own mean is shrunk as if it had this many more ratings at the global mean."""
_GRAM_ITEMS = 1 << 12
"""Of up to so many items all products phi phi' are multiplied at once, 128 MB; by the number of
items, so that a user's numbers do not depend on who else is there."""


def scaled(mine: Interactions) -> Float64s:
    """(n,) values on the scale [-2, 2]."""
    low, high = mine.value_range
    return (np.asarray(mine.values, np.float64) - (low + high) / 2) * (4 / (high - low))


def posterior_means(
    mine: Interactions, phi: Float64s, targets: Float64s, variance: Float64s
) -> Float64s:
    """(num_users, D): (I + sum phi phi' / v)^-1 sum phi t / v over the user's own items; phi (m,
    D), targets (n,), variance (m,).

    A user with fewer items than directions is solved in the space of items, Phi' (Phi Phi' + V)^-1
    t, which is the same.
    """
    w = np.zeros((mine.num_users, phi.shape[1]))
    if len(phi) <= FEW_ITEMS:
        for users, places, real in padded_users(mine.user_ptr):
            X, t, v = padded_rows(mine, phi, targets, variance, places, real)
            w[users] = times(gains(X, v), t)
        return w
    few = np.diff(mine.user_ptr) < phi.shape[1]
    short = np.flatnonzero(few)
    long = np.flatnonzero(~few)
    gram = phi @ phi.T if len(phi) <= _GRAM_ITEMS else np.empty((0, 0))
    map_ranges(
        lambda start, stop: _solve_among_items(
            short[start:stop], mine.user_ptr, mine.items, phi, gram, targets, variance, w
        ),
        len(short),
    )
    if len(long):
        theirs = mine.users_subset(long)
        events = np.repeat(~few, np.diff(mine.user_ptr))
        w[long] = solve_users(
            theirs, phi, ridge=1.0, targets=targets[events], weights=1 / variance[theirs.items]
        )
    return w


@compiled(inner=True, fastmath={"reassoc", "contract", "nsz"})
def _products(
    phi: Float64s, gram: Float64s, mine: npt.NDArray[np.int32], row: Float64s, e: int
) -> None:
    """row[:e + 1] = phi_j phi_i' of the item i at place e and those before it, out of `gram` unless
    it is empty."""
    if len(gram):
        known = gram[mine[e]]
        for f in range(e + 1):
            row[f] = known[mine[f]]
        return
    own = phi[mine[e]]
    for f in range(e + 1):
        other = phi[mine[f]]
        total = 0.0
        for c in range(len(own)):
            total += own[c] * other[c]
        row[f] = total


@compiled(error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
def _solve_among_items(
    users: npt.NDArray[np.int64],
    user_ptr: npt.NDArray[np.int64],
    items: npt.NDArray[np.int32],
    phi: Float64s,
    gram: Float64s,
    targets: Float64s,
    variance: Float64s,
    w: Float64s,
) -> None:
    """w[k] of each of `users`, by Cholesky of the n x n matrix Phi Phi' + V; sequential per user,
    whatever the batch."""
    for k in users:
        mine = items[user_ptr[k] : user_ptr[k + 1]]
        known = targets[user_ptr[k] : user_ptr[k + 1]]
        n = len(mine)
        L = np.empty((n, n))
        a = np.empty(n)
        for e in range(n):
            row = L[e]
            _products(phi, gram, mine, row, e)
            for f in range(e):
                other = L[f]
                product = row[f]
                for g in range(f):
                    product -= row[g] * other[g]
                row[f] = product / other[f]
            square = row[e] + variance[mine[e]]
            total = known[e]
            for f in range(e):
                square -= row[f] ** 2
                total -= row[f] * a[f]
            row[e] = math.sqrt(square)
            a[e] = total / row[e]
        for e in range(n - 1, -1, -1):
            row = L[e]
            a[e] /= row[e]
            for f in range(e):
                a[f] -= row[f] * a[e]
        out = w[k]
        for e in range(n):
            row = phi[mine[e]]
            for c in range(len(out)):
                out[c] += a[e] * row[c]


def report_counts(question: Question, mine: Interactions) -> Reports:
    """Blocks "counts", 1 on each item, and "mean", the user's mean on [-1, 1]: of squared norms 1 -
    q and at most q."""
    share = float(question.public["mean_energy"])
    n = np.diff(mine.user_ptr)
    means = np.clip(_means(mine, scaled(mine)) / 2, -1, 1)
    one = np.ones((mine.num_users, 1))
    per_event = np.repeat(np.sqrt((1 - share) / np.maximum(n, 1)), n)
    blocks = [
        RealBlock(per_event, one),
        RealBlock(np.sqrt(share) * np.where(n > 0, means, 0.0), one),
    ]
    return bounded(mine.user_ptr, mine.items, blocks, question.releases, scaling="clip")


def report_biases(question: Question, mine: Interactions) -> Reports:
    """Blocks "residuals", omega x, and "weights", omega kappa, for ratings x from which the user
    took its own shrunk mean."""
    omega = np.asarray(question.public["omega"], np.float64)
    kappa = float(question.public["kappa"])
    x = scaled(mine) - float(question.public["mean"])
    own = segments.sums(mine.user_ptr, x) / (np.diff(mine.user_ptr) + PRIOR_RATINGS)
    x = x - np.repeat(own, np.diff(mine.user_ptr))
    w = omega[mine.items]
    one = np.ones((mine.num_users, 1))
    return bounded(
        mine.user_ptr,
        mine.items,
        [RealBlock(w * x, one), RealBlock(w * kappa, one)],
        question.releases,
    )


def report_tastes(question: Question, mine: Interactions) -> Reports:
    """Block "tastes": z z' with z the weighted residuals on the items asked for, scaled to norm 1.

    It needs no item to be named."""
    omega = np.asarray(question.public["omega"], np.float64)
    columns = np.asarray(question.public["items"], np.int64)
    place = np.full(mine.num_items, -1)
    place[columns] = np.arange(len(columns))
    residuals = omega[mine.items] * _residuals(question, mine)
    z = np.zeros((mine.num_users, len(columns)))
    asked = place[mine.items] >= 0
    z[mine.users[asked], place[mine.items[asked]]] = residuals[asked]
    return bounded(
        np.zeros_like(mine.user_ptr),
        mine.items[:0],
        [RealBlock(np.ones(mine.num_users), z)],
        question.releases,
    )


def report_pairs(question: Question, mine: Interactions) -> Reports:
    """Block "tastes": z z', z (K,) the weights of those of the K items asked for that the user
    rated or clicked, scaled to norm 1, whatever the values.

    Sent as rows z_j z of these items j, items being named by their place among the K: the square is
    sparse, a packed outer product is not. One user's square has Frobenius norm |z|^2 = 1.
    """
    omega = np.asarray(question.public["omega"], np.float64)
    asked = np.asarray(question.public["items"], np.int64)
    place = np.full(mine.num_items, -1, np.int32)
    place[asked] = np.arange(len(asked))
    mine = mine.select(place[mine.items] >= 0)
    order = np.lexsort((place[mine.items], mine.users))  # a report names its items in rising order
    z = omega[mine.items][order]
    columns = place[mine.items][order]
    rows = sparse.csr_array((z, columns, mine.user_ptr), (mine.num_users, len(asked)))
    return bounded(mine.user_ptr, columns, [RealBlock(z, rows)], question.releases)


def report_steps(question: Question, mine: Interactions) -> Reports:
    """Block "step": omega times the cross-fitted residual of each item, times [alpha, first d
    coordinates of w without the item's fold].

    Block "scales": what tells the server how long a step to take, averages over the user's own
    ratings: see `step_scales`.
    """
    public = {name: np.asarray(question.public[name], np.float64) for name in ("omega", "variance")}
    alpha = float(question.public["alpha"])
    energy = float(question.public["scales_energy"])
    n = np.diff(mine.user_ptr)
    d = int(question.public["width"])
    spec = question.blocks[0]
    phi, *seen = _model(question, mine)
    fit = cross_fit(mine, phi, *seen, width=d, folds=spec.folds)
    owners = spec.owners(mine.user_ptr, mine.items)
    plain = cross_fit(mine, phi[:, :1], *seen, width=0, folds=spec.folds).residuals
    coefficients = public["omega"][mine.items] * fit.residuals
    vectors = np.column_stack([np.full(len(fit.vectors), alpha), fit.vectors])
    norms = np.sqrt(
        segments.sums(mine.user_ptr, coefficients**2 * segments.row_squares(vectors)[owners])
    )
    radius = question.releases[0].radius
    scales = step_scales(
        mine.user_ptr, fit, plain, owners, public["variance"][mine.items], norms
    ) / units_of(question.public, d)
    scales *= (n > 0)[:, None]
    weights = np.minimum(np.sqrt(n / float(question.public["most_ratings"])), 1)
    lengths = np.sqrt(segments.row_squares(scales))
    beside = math.sqrt(energy) * weights / np.maximum(lengths, 1)  # longer ones are cut to 1
    left_over = np.sqrt(1 - (beside * lengths) ** 2)
    factors = np.divide(left_over, norms, out=np.zeros_like(norms), where=norms > 0)
    blocks = [
        RealBlock(radius * coefficients * np.repeat(factors, n), vectors),
        RealBlock(radius * beside, scales),
    ]
    return bounded(mine.user_ptr, mine.items, blocks, question.releases, scaling="clip")


def units_of(public: Mapping[str, npt.NDArray[np.generic]], d: int) -> Float64s:
    """(d + 6,) units of `step_scales`, the same for all d directions."""
    *plain, direction = (float(public[name]) for name in UNITS)
    return np.array([*plain, *[direction] * d])


def step_scales(
    user_ptr: Int64s,
    fit: CrossFit,
    plain: Float64s,
    owners: Int64s,
    variance: Float64s,
    norms: Float64s,
) -> Float64s:
    """(num_users, d + 6): one, sqrt(n) over the report's norm, means of r^2, of (1 - h) r^2 -
    variance, of g p, of g^2, and of w^2 (d of them), where g = p - r is what tastes add to a
    prediction and p, `plain`, what the user's own mean leaves.

    r, 1 - h, w: cross-fitted residual, noise's share and vector of a rating, the vector being
    number `owners` (n,). (1 - h) r^2 is expected to be the noise's variance, whatever it is.
    """
    n = np.maximum(np.diff(user_ptr), 1)
    squares = fit.residuals**2
    ratio = np.divide(np.sqrt(n), norms, out=np.zeros_like(norms), where=norms > 0)
    added = plain - fit.residuals
    columns = squares, fit.noise_share * squares - variance, added * plain, added**2
    means = [segments.sums(user_ptr, column) / n for column in columns]
    lengths = segments.owned_sums(user_ptr, owners, fit.vectors**2) / n[:, None]
    return np.column_stack([np.ones(len(n)), ratio, *means, lengths])


def _model(question: Question, mine: Interactions) -> tuple[Float64s, Float64s, Float64s]:
    """phi (m, D), what mean and biases leave of the user's ratings (n,), and the variance (m,) of
    an item's noise."""
    public = {
        name: np.asarray(question.public[name], np.float64)
        for name in ("phi", "bias", "variance", "mean")
    }
    return (
        public["phi"],
        scaled(mine) - public["mean"] - public["bias"][mine.items],
        public["variance"],
    )


def _residuals(question: Question, mine: Interactions) -> Float64s:
    """(n,) what the current model leaves of the user's ratings."""
    phi, targets, variance = _model(question, mine)
    w = posterior_means(mine, phi, targets, variance)
    return targets - segments.pair_products(w, mine.users, phi, mine.items)


def _means(mine: Interactions, values: Float64s) -> Float64s:
    n = np.diff(mine.user_ptr)
    return np.asarray(segments.sums(mine.user_ptr, values) / np.maximum(n, 1), np.float64)
