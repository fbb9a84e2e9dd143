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

from fedrec.arrays import Float64s, Int64s
from fedrec.auditing.bounds import lower_bound
from fedrec.auditing.finding import Finding
from fedrec.news import attention
from fedrec.news.attention import GaussianAttention, LaplaceAttention, Plan
from fedrec.privacy import bounded_mean
from fedrec.privacy.accounting import mu_for
from fedrec.privacy.bounded_mean import TopicTable
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams

_LONGEST = 2048


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


def attention_finding(
    attack: str, variant: str, plan: Plan, *, basis: int, draws: int, streams: Streams
) -> Finding:
    """One noised attention vector of `basis` weights, after padding where the plan has it."""
    if plan.step == 0:
        return Finding(attack, variant, plan.guarantee, math.inf, "exact", 1.0, note="no noise")
    worst = np.eye(max(basis, 2))
    # what the anonymous news alone would give
    hidden = worst[2] if len(worst) > 2 else worst[:2].mean(0)
    seen = [
        _answers(plan, click, hidden, draws, streams, f"audit/{attack}/{side}")
        for side, click in enumerate(worst[:2])
    ]
    centres = attention.clip(np.stack([worst[0], worst[1], hidden]), plan)
    inside, outside = (_log_ratio(values, centres, plan) for values in seen)
    bound = lower_bound(
        inside,
        outside,
        delta=plan.guarantee.delta,
        gaussian=isinstance(plan, GaussianAttention) and plan.padding == 0,
    )
    return Finding(
        attack,
        variant,
        plan.guarantee,
        bound.epsilon,
        bound.by,
        bound.confidence,
        bound.draws,
        note=f"padding {plan.padding:g}",
    )


def _answers(
    plan: Plan, click: Float64s, hidden: Float64s, draws: int, streams: Streams, name: str
) -> Float64s:
    masked = attention.padded_clicks(
        draws, 1, padding=plan.padding, key=streams.key(f"{name}/padding")
    )
    return attention.release(np.where(masked, hidden, click), plan, key=streams.key(name))[0]


def _log_ratio(values: Float64s, centres: Float64s, plan: Plan) -> Float64s:
    """log of (p N + (1 - p) P) / (p N + (1 - p) Q)."""
    logs = np.stack([_log_density(values - centre, plan) for centre in centres])
    if plan.padding == 0:
        return np.asarray(logs[0] - logs[1])
    mixed = [
        np.logaddexp(math.log(plan.padding) + logs[2], math.log1p(-plan.padding) + logs[side])
        for side in (0, 1)
    ]
    return np.asarray(mixed[0] - mixed[1])


def _log_density(errors: Float64s, plan: Plan) -> Float64s:
    if isinstance(plan, LaplaceAttention):
        return np.asarray(-np.abs(errors).sum(1) / plan.parameter)
    return np.asarray(-(errors**2).sum(1) / (2 * plan.noise_std**2))
