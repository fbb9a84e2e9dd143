"""From what an attack guessed right and wrong to a lower bound of epsilon, with a stated confidence.

An attack is a score, larger where the unit took part. It is run `n` times with and `n` times without the unit. The threshold is
chosen on the first half of the runs; on the other half it accuses a share TPR of the runs with and FPR of those without.
Clopper-Pearson limits TPR from below and FPR from above, each at half of what may go wrong. Two ways to go on:

- "region". (epsilon, delta)-DP implies TPR <= e^epsilon FPR + delta and 1 - FPR <= e^epsilon (1 - TPR) + delta (Kairouz, Oh, Viswanath
  2017, Thm 2.1), so epsilon >= log((TPR - delta) / FPR), and the same from the other side. Nothing is assumed; n runs
  cannot show more than about log(n / 15).
- "gaussian". mu-GDP implies Phi^-1(TPR) - Phi^-1(FPR) <= mu (Dong, Roth, Su 2022, Def. 2.6): a lower bound of mu, read as epsilon at delta by
  the exact curve of mu-GDP. What it refutes is the claim of mu-GDP, which is what a Gaussian mechanism's epsilon is computed from
  (Nasr et al. 2023). As an epsilon it assumes that errors trade off as Gaussians do.

The better of the two is reported, each at half of what may go wrong, so the confidence is that of the whole statement.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from fedrec.privacy.accounting import epsilon_of

Floats = npt.NDArray[np.float64]

CONFIDENCE = 0.999
"""Of one bound. Ten rows are then right together with 99%."""


@dataclass(frozen=True)
class Bound:
    """Epsilon is at least this, at `confidence`."""

    epsilon: float
    by: Literal["region", "gaussian"]
    confidence: float
    draws: int


@dataclass(frozen=True)
class Counts:
    """Accused runs among those with the unit, and among those without it."""

    hits: int
    runs: int
    false_hits: int
    false_runs: int


def lower_bound(inside: Floats, outside: Floats, *, delta: float, gaussian: bool, confidence: float = CONFIDENCE) -> Bound:
    """The better bound from scores (n,) with and (n,) without the unit, independent and in any order; `gaussian` as claimed."""
    ways = (region, through_gdp) if gaussian else (region,)
    each = 1 - (1 - confidence) / len(ways)
    found = []
    for way in ways:
        threshold = _best_threshold(inside[::2], outside[::2], way, delta, each)
        epsilon = way(_accused(inside[1::2], outside[1::2], threshold), delta=delta, confidence=each)
        found.append(Bound(epsilon, "region" if way is region else "gaussian", confidence, len(inside) + len(outside)))
    return max(found, key=lambda bound: bound.epsilon)


def region(counts: Counts, *, delta: float, confidence: float) -> float:
    """Epsilon from the (epsilon, delta) region; 0 where nothing is shown."""
    tpr, fpr = limits(counts, confidence)
    forward = math.log((tpr - delta) / fpr) if tpr > delta else 0.0
    backward = math.log((1 - fpr - delta) / (1 - tpr)) if 1 - fpr > delta else 0.0
    return max(0.0, forward, backward)


def through_gdp(counts: Counts, *, delta: float, confidence: float) -> float:
    """Epsilon at delta of the least mu that allows these errors."""
    tpr, fpr = limits(counts, confidence)
    mu = float(special.ndtri(tpr) - special.ndtri(fpr))
    return epsilon_of(mu, delta) if mu > 0 else 0.0


def limits(counts: Counts, confidence: float) -> tuple[float, float]:
    """TPR at least, FPR at most: Clopper & Pearson 1934, one-sided, wrong together with at most 1 - confidence."""
    wrong = (1 - confidence) / 2
    low = float(stats.beta.ppf(wrong, counts.hits, counts.runs - counts.hits + 1)) if counts.hits else 0.0
    free = counts.false_runs - counts.false_hits
    high = float(stats.beta.ppf(1 - wrong, counts.false_hits + 1, free)) if free else 1.0
    return low, high


def _best_threshold(inside: Floats, outside: Floats, way: object, delta: float, confidence: float) -> float:
    tried = np.unique(np.quantile(np.concatenate([inside, outside]), _LEVELS))
    return max(tried.tolist(), key=lambda t: way(_accused(inside, outside, t), delta=delta, confidence=confidence))  # type: ignore[operator]


_LEVELS = np.concatenate([np.geomspace(1e-5, 0.02, 24), np.linspace(0.02, 0.98, 49), 1 - np.geomspace(0.02, 1e-5, 24)])


def _accused(inside: Floats, outside: Floats, threshold: float) -> Counts:
    return Counts(int((inside >= threshold).sum()), len(inside), int((outside >= threshold).sum()), len(outside))
