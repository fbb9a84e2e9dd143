"""One click exchanged for another, seen through one noised answer of attention."""

from __future__ import annotations

import math

import numpy as np

from fedrec.arrays import Float64s
from fedrec.auditing.bounds import lower_bound
from fedrec.auditing.finding import Finding
from fedrec.news import attention
from fedrec.news.attention import GaussianAttention, LaplaceAttention, Plan
from fedrec.randomness import Streams


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
