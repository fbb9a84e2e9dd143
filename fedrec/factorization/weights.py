"""Weights that divide a user's budget over its items: one weight per event, n^-mu of the item's
noisy count; and what a user sends to be counted.

Guarantee (user, add/remove). Every function returns `UserWeights` whose `bound` holds for each user
k on its own: sum over its events e of w_e^2 <= bound^2. A report that adds w_e x_e to the row of
item j_e, with ||x_e|| <= Gamma and the user's items distinct, then has L2 norm <= bound Gamma,
because rows of different items are orthogonal:
||report||^2 = sum_e w_e^2 ||x_e||^2 <= bound^2 Gamma^2 (Ada-DPALS Thm 3.3, AM-SSP Thm 2). That is
the L2 sensitivity of the sum.

Proof that no other user matters. The counts were released before, under a budget of their own
(`clipped_contributions`). Given them, the weights of a user are a function of its own items alone:
they are computed user by user, by one sequential loop, so that neither the other users nor the
sharding shows in them. The bound holds for the numbers that are returned, not only for the formula:
norms are rounded up (see `_scale_users`). The weights themselves are never released (Ada-DPALS Rem.
4.2).

Two items of one user in the same row would add before they are squared and break the bound:
repeated items are refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedrec.arrays import Float64s, Int32s, Int64s
from fedrec.data.interactions import Interactions
from fedrec.numerics import compiled
from fedrec.numerics.threads import map_ranges


@dataclass(frozen=True)
class UserWeights:
    """`values` (n,) float64, one weight per event of an `Interactions`; for every user, sum of
    squares <= bound^2."""

    values: Float64s
    bound: float


def clipped_contributions(interactions: Interactions, *, limit: int) -> UserWeights:
    """What a user sends that items be counted: min(1, sqrt(limit / n_k)) on each item, the user's
    vector of ones, clipped to norm sqrt(limit), which is the bound and so the sensitivity."""
    return clipped(interactions, np.ones(interactions.num_items), budget=float(limit))


def at_least_one(noisy: Float64s) -> Float64s:
    """max(n, 1) of counts after their release, as the papers' public code does: weights n^-mu need
    positive counts."""
    return np.maximum(noisy, 1.0)


def exponent(gamma: float) -> float:
    """mu = (1 + gamma) / 4, by which Ada-DPALS eq. 11 is a case of eq. 16: 1/4 if losses are convex
    (gamma 0), 1/2 if strongly (1)."""
    return (1 + gamma) / 4


def task_weights(
    counts: Float64s, *, mu: float, budget: float, num_users: int, slack: float = 1.0
) -> Float64s:
    """omega* (m,), Ada-DPALS eq. 16: n_j^-mu / sqrt(sum_j' n_j'^(1 - 2 mu) / (num_users budget /
    slack)).

    counts: (m,) noisy counts, at least 1 (`at_least_one`). budget: beta, a user's sum of
    squares. slack: c(n) of eq. 10, which the analysis takes as c log n and practice as 1. With
    exact counts the mean over users of sum w^2 is budget / slack: long histories exceed it.
    """
    _require_counts(counts)
    n = counts
    beta = budget / slack
    return np.asarray(
        n**-mu / math.sqrt(float(np.sum(n ** (1 - 2 * mu))) / (num_users * beta)), np.float64
    )


def clipped(interactions: Interactions, task: Float64s, *, budget: float) -> UserWeights:
    """Ada-DPALS eq. 12 as printed: w = omega_j min(1, sqrt(budget) / ||omega over the user's
    items||); `bound` is sqrt(budget).

    Users below the budget keep their weights and so waste what is left of it: `normalised` is as
    private and has more signal. With task weights of 1 this is plain clipping of a user's total
    contribution.
    """
    return _per_user(interactions, task, math.sqrt(budget), only_down=True)


def normalised(
    interactions: Interactions, counts: Float64s, *, mu: float, budget: float
) -> UserWeights:
    """Our default: w proportional to n_j^-mu, scaled to sum of squares = budget for every user.

    Only ratios of counts matter."""
    _require_counts(counts)
    return _per_user(interactions, counts**-mu, math.sqrt(budget), only_down=False)


def adaptive_as_printed(
    interactions: Interactions,
    counts: Float64s,
    *,
    mu: float,
    budget: float,
    slack: float = 1.0,
    num_users: int | None = None,
) -> UserWeights:
    """Ada-DPALS eq. 16 then 12 (eq. 11 for `mu=exponent(gamma)`), clip-only.

    num_users: of the whole population, which eq. 16 divides by and is public. Left out,
    `interactions` is taken to be everybody: say it wherever they are one client's or one shard's,
    or weights (never the bound) depend on the sharding.
    """
    population = interactions.num_users if num_users is None else num_users
    task = task_weights(counts, mu=mu, budget=budget, num_users=population, slack=slack)
    return clipped(interactions, task, budget=budget)


def am_ssp_as_printed(
    interactions: Interactions, counts: Float64s, *, budget: float
) -> UserWeights:
    """AM-SSP App. E to the letter: w_e = sqrt(budget) n_j^-1/4 / sqrt(sum over the user's items of
    n_j^-1/4), sqrt(budget) being w bar.

    Erratum: the paper says that the squares sum to budget. They sum to budget * sum n^-1/2 / sum
    n^-1/4, which is less wherever a count exceeds 1, and would be more below 1. With counts of at
    least 1, demanded here, the bound holds and part of the budget is unused; the exponent under the
    root that normalises is -1/2, which is `normalised(mu=1/4)`.
    """
    _require_counts(counts)
    quarter = counts**-0.25
    # squares: budget n^-1/4 / sum n^-1/4
    shares = _per_user(interactions, np.sqrt(quarter), math.sqrt(budget), only_down=False)
    return UserWeights(shares.values * np.sqrt(quarter)[interactions.items], math.sqrt(budget))


def uniform(interactions: Interactions, *, budget: float) -> UserWeights:
    """Equal weights sqrt(budget / n_k) on a user's n_k items: mu = 0, no counts needed."""
    return _per_user(
        interactions, np.ones(interactions.num_items), math.sqrt(budget), only_down=False
    )


def constant(interactions: Interactions, *, limit: int, budget: float) -> UserWeights:
    """sqrt(budget / limit) on every event, for users of at most `limit` events (`sampling`): DPALS
    (Ada-DPALS Rem. 3.5).

    Users of fewer events leave part of their budget unused. Raises ValueError where a user has
    more.
    """
    longest = int(np.diff(interactions.user_ptr).max(initial=0))
    if longest > limit:
        raise ValueError(
            f"users may have at most {limit} events, found one of {longest}: sample first"
        )
    return clipped(
        interactions, np.full(interactions.num_items, math.sqrt(budget / limit)), budget=budget
    )


def _require_counts(counts: Float64s) -> None:
    if not bool(np.all(counts >= 1)) or not bool(np.all(np.isfinite(counts))):
        raise ValueError(
            f"weights need finite counts of at least 1, found {float(np.min(counts))!r}: "
            "clip the noisy counts first"
        )


def _per_user(
    interactions: Interactions, task: Float64s, radius: float, *, only_down: bool
) -> UserWeights:
    """Scale every user's vector of task weights to `radius`, or down to it.

    Raises ValueError where a user repeats an item."""
    if not (math.isfinite(radius) and radius > 0):
        raise ValueError(f"a user's budget must be positive and finite, found {radius**2!r}")
    out = np.empty(len(interactions), np.float64)
    bad = np.full(interactions.num_users, -1, np.int64)
    raw = np.ascontiguousarray(task, np.float64)

    def piece(start: int, stop: int) -> None:
        _scale_users(
            interactions.user_ptr, interactions.items, raw, radius, only_down, out, bad, start, stop
        )

    map_ranges(piece, interactions.num_users)
    if bool(np.any(bad >= 0)):
        user = int(np.flatnonzero(bad >= 0)[0])
        raise ValueError(
            f"user {user} has item {int(bad[user])} twice, or items out of order: "
            "contributions would add up past the bound"
        )
    return UserWeights(out, radius)


@compiled()
def _scale_users(
    user_ptr: Int64s,
    items: Int32s,
    raw: Float64s,
    radius: float,
    only_down: bool,
    out: Float64s,
    bad: Int64s,
    start: int,
    stop: int,
) -> None:
    """One user after the other, each by one sequential loop.

    Rounding: the computed sum of n squares is at least (1 - n 2^-53) of the true one, root,
    division and product lose at most 3 x 2^-53 more. Dividing by a norm enlarged by (n + 8) 2^-52
    therefore leaves the exact sum of squares at or below radius^2.
    """
    for k in range(start, stop):
        first = user_ptr[k]
        last = user_ptr[k + 1]
        squares = 0.0
        for e in range(first, last):
            if e > first and items[e] <= items[e - 1]:
                bad[k] = items[e]
            squares += raw[items[e]] * raw[items[e]]
        norm = math.sqrt(squares) * (1.0 + (last - first + 8) * 2.0**-52)
        factor = radius / norm if norm > 0.0 else 0.0
        if only_down and norm <= radius:
            factor = 1.0
        for e in range(first, last):
            out[e] = raw[items[e]] * factor
