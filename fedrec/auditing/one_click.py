"""One click exchanged for another, seen through one noised report or answer: which of two histories
was it?

The adversary chooses both histories, as differential privacy lets it: for the additive report, the
two items of the catalogue whose public rows lie farthest apart, all else equal; for attention of
one vector, two users whose weights point at different basis vectors. It knows both without noise.
The score is the logarithm of the likelihood ratio.
"""

from __future__ import annotations

import math

import numpy as np

from fedrec.arrays import Int64s
from fedrec.auditing.bounds import lower_bound
from fedrec.auditing.finding import Finding
from fedrec.privacy import bounded_mean
from fedrec.privacy.accounting import mu_for
from fedrec.privacy.bounded_mean import TopicTable
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams

_LONGEST = 2048
"""Rows that are compared: all pairs of so many are a matrix of 32 MB. Of the farthest pair, one row
at least is long."""


def report_finding(
    attack: str,
    variant: str,
    topics: TopicTable,
    claim: Guarantee,
    *,
    history: int,
    draws: int,
    streams: Streams,
    mu: float | None = None,
) -> Finding:
    """The additive report at `claim` (`mu`: what the mechanism runs at, by default what the claim
    allows)."""
    mu = mu_for(claim.epsilon, claim.delta) if mu is None else mu
    if math.isinf(mu):
        return Finding(attack, variant, claim, math.inf, "exact", 1.0, note="no noise")
    pair = farthest(topics)
    centres = [bounded_mean.coefficients(_history(item, history, 1), topics)[0] for item in pair]
    seen = [
        bounded_mean.report(
            _history(item, history, draws),
            topics,
            mu=mu,
            name=attack,
            key=streams.key(f"audit/{attack}/{side}"),
        ).values
        for side, item in enumerate(pair)
    ]
    direction = centres[0] - centres[1]
    inside, outside = ((values - centres[1]) @ direction for values in seen)
    bound = lower_bound(inside, outside, delta=claim.delta, gaussian=True)
    note = f"items {pair[0]} and {pair[1]}" if min(pair) >= 0 else f"item {max(pair)} and none"
    return Finding(
        attack, variant, claim, bound.epsilon, bound.by, bound.confidence, bound.draws, note=note
    )


def farthest(topics: TopicTable) -> tuple[int, int]:
    """Two items whose public rows are farthest apart, -1 for none at all; among the longest rows
    where there are many."""
    lengths = (topics.weights**2).sum(1)
    those = np.argsort(-lengths, kind="stable")[:_LONGEST]
    rows = np.vstack([topics.weights[those], np.zeros(topics.topics)])
    squares = (rows**2).sum(1)
    distances = squares[:, None] + squares - 2 * rows @ rows.T
    i, j = np.unravel_index(int(distances.argmax()), distances.shape)
    names = np.append(those, -1)
    return int(names[i]), int(names[j])


def _history(item: int, length: int, users: int) -> Int64s:
    """(users, length) histories of one click on `item`, -1 for none."""
    clicks = np.full((users, length), -1, np.int64)
    clicks[:, 0] = item
    return clicks
