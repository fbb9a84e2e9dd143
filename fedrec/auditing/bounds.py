"""Lower bounds of epsilon, with a stated confidence, from what an attack guessed right and wrong.

An attack is a score, larger where the unit took part. It is run `n` times with and `n` times
without the unit. The threshold is chosen on the first half of the runs; on the other half it
accuses a share TPR of the runs with and FPR of those without. Clopper-Pearson limits TPR from below
and FPR from above, each at half of what may go wrong. Two ways to go on:

- "region". (epsilon, delta)-DP implies TPR <= e^epsilon FPR + delta and 1 - FPR <= e^epsilon (1 -
  TPR) + delta (Kairouz, Oh, Viswanath 2017, Thm 2.1), so epsilon >= log((TPR - delta) / FPR), and
  the same from the other side. Nothing is assumed; n runs cannot show more than about log(n / 15).
- "gaussian". mu-GDP implies Phi^-1(TPR) - Phi^-1(FPR) <= mu (Dong, Roth, Su 2022, Def. 2.6): a
  lower bound of mu, read as epsilon at delta by the exact curve of mu-GDP. What it refutes is the
  claim of mu-GDP, which is what a Gaussian mechanism's epsilon is computed from (Nasr et al. 2023).
  As an epsilon it assumes that errors trade off as Gaussians do.

The better of the two is reported, each at half of what may go wrong, so the confidence is that of
the whole statement.

Where runs are dear (`separation_bound`) a third way needs fewer: "moments". mu-GDP bounds the
chi-squared divergence of the two laws by exp(mu^2) - 1, which Gaussians reach, and it is at least
d^2 for scores whose means are d standard deviations of one law apart (Hammersley, Chapman,
Robbins). So mu >= sqrt(log(1 + d^2)), whatever the laws; the limit of d takes Student's limits of
means and chi-squared limits of a variance, which are right for normal scores, as sums of Gaussian
noise are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy import special

from fedrec.arrays import Float64s, Int64s
from fedrec.privacy.accounting import epsilon_of

CONFIDENCE = 0.999
"""Of one bound. Ten rows are then right together with 99%."""
Way = Callable[[Float64s, Float64s, float], Float64s]
_LEVELS = np.concatenate(
    [np.geomspace(1e-5, 0.02, 24), np.linspace(0.02, 0.98, 49), 1 - np.geomspace(0.02, 1e-5, 24)]
)


@dataclass(frozen=True)
class Bound:
    """Epsilon is at least this, at `confidence`."""

    epsilon: float
    by: Literal["region", "gaussian", "moments"]
    confidence: float
    draws: int


@dataclass(frozen=True)
class Counts:
    """Accused runs among `runs` with the unit, and among `false_runs` without it: one number, or
    one for each threshold tried."""

    hits: Int64s | int
    runs: int
    false_hits: Int64s | int
    false_runs: int


def lower_bound(
    inside: Float64s,
    outside: Float64s,
    *,
    delta: float,
    gaussian: bool,
    confidence: float = CONFIDENCE,
) -> Bound:
    """The better bound from scores (n,) with and (n,) without the unit, independent and in any
    order; `gaussian` as claimed."""
    ways: tuple[Way, ...] = (region, through_gdp) if gaussian else (region,)
    each = 1 - (1 - confidence) / len(ways)
    found = list[Bound]()
    tried = np.unique(np.quantile(np.concatenate([inside[::2], outside[::2]]), _LEVELS))
    for way in ways:
        strengths = way(*limits(_accused(inside[::2], outside[::2], tried), each), delta)
        threshold = tried[[int(np.argmax(strengths))]]
        strength = float(
            way(*limits(_accused(inside[1::2], outside[1::2], threshold), each), delta)[0]
        )
        epsilon = strength if way is region else _epsilon_of_mu(strength, delta)
        found.append(
            Bound(
                epsilon,
                "region" if way is region else "gaussian",
                confidence,
                len(inside) + len(outside),
            )
        )
    return max(found, key=lambda bound: bound.epsilon)


def separation_bound(
    inside: Float64s, outside: Float64s, *, delta: float, confidence: float = CONFIDENCE
) -> Bound:
    """The better of `lower_bound` and of the moments of scores (n,) with and (n,) without the
    unit."""
    half = 1 - (1 - confidence) / 2
    thresholds = lower_bound(inside, outside, delta=delta, gaussian=True, confidence=half)
    moments = Bound(
        _epsilon_of_mu(mu_of_moments(inside, outside, confidence=half), delta),
        "moments",
        confidence,
        thresholds.draws,
    )
    return max(replace(thresholds, confidence=confidence), moments, key=lambda bound: bound.epsilon)


def mu_of_moments(inside: Float64s, outside: Float64s, *, confidence: float) -> float:
    """The least mu that allows means so far apart in standard deviations of `outside`; 0 where
    nothing is shown."""
    n = len(outside)
    wrong = (1 - confidence) / 2
    spreads = [float(np.var(part, ddof=1)) for part in (inside, outside)]
    error = math.sqrt(spreads[0] / len(inside) + spreads[1] / n)
    apart = (
        float(np.mean(inside) - np.mean(outside))
        - float(special.stdtrit(min(len(inside), n) - 1, 1 - wrong)) * error
    )
    largest = spreads[1] * (n - 1) / float(special.chdtri(n - 1, 1 - wrong))
    return math.sqrt(math.log1p(apart**2 / largest)) if apart > 0 and largest > 0 else 0.0


def region(tpr: Float64s, fpr: Float64s, delta: float) -> Float64s:
    """Epsilon from the (epsilon, delta) region, of each pair; 0 where nothing is shown."""
    forward = np.log(np.maximum(tpr - delta, 1e-300) / fpr)
    backward = np.log(np.maximum(1 - fpr - delta, 1e-300) / (1 - tpr))
    return np.asarray(np.maximum(0.0, np.maximum(forward, backward)))


def through_gdp(tpr: Float64s, fpr: Float64s, delta: float) -> Float64s:
    """The least mu that allows these errors, of each pair; not above 0 where nothing is shown."""
    return np.asarray(special.ndtri(tpr) - special.ndtri(fpr), np.float64)


def limits(counts: Counts, confidence: float) -> tuple[Float64s, Float64s]:
    """TPR at least, FPR at most, for each threshold: Clopper & Pearson 1934, one-sided, wrong
    together with at most 1 - confidence."""
    wrong = (1 - confidence) / 2
    hits = np.atleast_1d(counts.hits)
    false = np.atleast_1d(counts.false_hits)
    free = counts.false_runs - false
    low = special.betaincinv(np.maximum(hits, 1), counts.runs - hits + 1, wrong)
    high = special.betaincinv(false + 1, np.maximum(free, 1), 1 - wrong)
    return np.where(hits > 0, low, 0.0), np.where(free > 0, high, 1.0)


def _epsilon_of_mu(mu: float, delta: float) -> float:
    return epsilon_of(mu, delta) if mu > 0 else 0.0


def _accused(inside: Float64s, outside: Float64s, thresholds: Float64s) -> Counts:
    hits, false = (
        len(part) - np.searchsorted(np.sort(part), thresholds) for part in (inside, outside)
    )
    return Counts(hits, len(inside), false, len(outside))
