"""Personal epsilons: a user's own limit decides how much its report counts (each user at most the
run's epsilon, many below it).

A user with limit epsilon_k sends a_k times its report, a_k = mu(epsilon_k) / mu(epsilon) at the
run's delta. All blocks of all releases are shrunk alike, and every release is linear in reports:
what is released is that of a population in which user k counts a_k times. Counts, sums and Gram
matrices are weighted alike, so that a ratio of two of them, or a solve of one by the other, is a
weighted estimate. What a recipe divides by the number of users it divides by the sum of a_k instead
(`mean_weight`).

Guarantee (user k, add/remove, number of users and shares of limits public). A release whose reports
have norm at most D and whose noise makes it mu-GDP moves by at most a_k D when user k leaves, so
that it is (a_k mu)-GDP for that user. mu adds up in squares over releases, so the run is a_k
mu(epsilon) = mu(epsilon_k)-GDP, hence (epsilon_k, delta)-DP, for user k. Coefficients are cut
towards zero on the report's own grid, which lengthens nothing. It needs a_k to be no function of
the user's data: a device takes the largest announced limit that is not above its own, which whoever
holds the device chose, and nobody is told which. The shares are announced, not counted.

Alaggan, Gambs and Kermarrec 2016 call this heterogeneous differential privacy, and stretch data in
the same way; Jorgensen, Yu and Cormode 2015 sample users instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedrec.arrays import Float64s, Int64s
from fedrec.data.interactions import Interactions
from fedrec.federation.messages import BlockReports, BlockSpec, ClientStep, Question, Reports
from fedrec.privacy.accounting import mu_for
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams

Limits = Mapping[float, float]
"""By epsilon, the announced share of all users whose limit it is; shares sum to 1."""


def weight(limit: float, promised: Guarantee) -> float:
    """a_k: how much a report counts that may cost `limit` in a run of this guarantee; at most 1."""
    if limit >= promised.epsilon:
        return 1.0
    return mu_for(limit, promised.delta) / mu_for(promised.epsilon, promised.delta)


def mean_weight(limits: Limits, promised: Guarantee) -> float:
    """Mean weight of all users, as announced: what sums are divided by, times the number of
    users."""
    return (
        math.fsum(share * weight(limit, promised) for limit, share in limits.items())
        if limits
        else 1.0
    )


def announced(own: float, limits: Limits) -> float:
    """The largest announced limit that is not above a user's own; 0 where there is none."""
    return max((limit for limit in limits if limit <= own), default=0.0)


def weighted(reports: Reports, weights: Float64s, blocks: Sequence[BlockSpec]) -> Reports:
    """Every user's coefficients times its weight (num_users,) in [0, 1], cut towards zero: no
    report gets longer.

    blocks: of the question; one of a single row has a coefficient for each user, the others one for
    each of its items.
    """
    if weights.shape != (reports.num_users,) or not bool(np.all((weights >= 0) & (weights <= 1))):
        raise ValueError(
            f"{reports.num_users} users need as many weights in [0, 1], found {weights.shape}"
        )
    if bool(np.all(weights == 1)):
        return reports
    by_event = np.repeat(weights, np.diff(reports.user_ptr))
    factors = [weights if spec.rows == 1 else by_event for spec in blocks]
    return replace(
        reports,
        blocks=tuple(_shrunk(part, by) for part, by in zip(reports.blocks, factors, strict=True)),
    )


def with_limits(step: ClientStep, limits: Limits, promised: Guarantee) -> ClientStep:
    """This step among people who chose among the limits, for a simulation."""

    def limited(question: Question, mine: Interactions) -> Reports:
        weights = np.array([weight(limit, promised) for limit in sorted(limits)])
        return weighted(step(question, mine), weights[_chosen(mine, limits)], question.blocks)

    return limited


def own_epsilons(mine: Interactions, limits: Limits) -> Float64s:
    """(num_users,) the limit of each user in a simulation."""
    return np.asarray(sorted(limits), np.float64)[_chosen(mine, limits)]


def _chosen(mine: Interactions, limits: Limits) -> Int64s:
    """(num_users,) the place of each user's limit among all in order: drawn by its id, in the
    announced shares."""
    edges = np.cumsum([limits[limit] for limit in sorted(limits)])
    drawn = mine.user_draws(Streams(0).key("personal-limits")).astype(np.float64) / 2.0**64
    return np.minimum(np.searchsorted(edges, drawn, side="right"), len(limits) - 1)


def _shrunk(block: BlockReports, factors: Float64s) -> BlockReports:
    return replace(
        block, coefficients=np.trunc(block.coefficients * factors).astype(block.coefficients.dtype)
    )
