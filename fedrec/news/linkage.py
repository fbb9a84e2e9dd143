"""Linkage: which of two lists of noised answers are of one person? The share that the best matcher
known gets right.

Two releases on the same histories with independent noise, as a report of training and a query, or
two fresh answers. The matcher knows everything public, all answers, and the law of the noise; it
takes true coefficients for Gaussian over people, with mean and covariance estimated from the
answers themselves. Then the second answer b given the first a is Gaussian about the posterior mean
m + G (a - m) with covariance C - G C + s_b^2 I, G = C (C + s_a^2 I)^-1, and every b goes to the
person with the largest likelihood: no matcher is right more often where the prior is true. It is an
attack: what it finds is a lower bound of what can be found, and no guarantee.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from fedrec.arrays import Float64s

_BLOCK = 512


@dataclass(frozen=True)
class Answers:
    """values (n, B) of n people, each entry with noise of std `noise_std`."""

    values: Float64s
    noise_std: float


@dataclass(frozen=True)
class Linkage:
    """How many of `people` answers are `linked`, their own person coming first; `median_rank`: of
    the own person among all, 1 for the first."""

    people: int
    linked: int
    median_rank: float

    @property
    def rate(self) -> float:
        """Share that is linked."""
        return self.linked / self.people

    @property
    def chance(self) -> float:
        """Share that guessing links."""
        return 1 / self.people

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Clopper-Pearson, both sides.

        Answers are matched one by one, but on one list of people: read it as of these people."""
        found = stats.binomtest(self.linked, self.people).proportion_ci(confidence, method="exact")
        return float(found.low), float(found.high)

    def as_dict(self) -> dict[str, float]:
        """These numbers for JSON."""
        low, high = self.interval()
        return {
            "people": self.people,
            "linked": self.linked,
            "rate": self.rate,
            "low": low,
            "high": high,
            "chance": self.chance,
            "median_rank": self.median_rank,
        }


def linkage(first: Answers, second: Answers) -> Linkage:
    """Row k of both is of one person.

    Raises ValueError on lists of different shapes, or fewer than two people."""
    if first.values.shape != second.values.shape or len(first.values) < 2:
        raise ValueError(
            f"need two lists of the same 2 or more people, found shapes {first.values.shape} "
            f"and {second.values.shape}"
        )
    centres, precision = _predicted(first, second.noise_std)
    own_norms = ((centres @ precision) * centres).sum(1)
    ranks = np.empty(len(second.values))
    for start in range(0, len(second.values), _BLOCK):
        b = second.values[start : start + _BLOCK] @ precision
        # log likelihood of each person, up to what all have in common
        scores = b @ centres.T - own_norms / 2
        own = scores[np.arange(len(b)), np.arange(start, start + len(b))][:, None]
        ranks[start : start + len(b)] = 1 + (scores > own).sum(1) + ((scores == own).sum(1) - 1) / 2
    return Linkage(len(ranks), int((ranks < 1.5).sum()), float(np.median(ranks)))


def _predicted(first: Answers, second_std: float) -> tuple[Float64s, Float64s]:
    """(n, B) where each person's second answer is expected, and the inverse of its covariance (B,
    B)."""
    a = first.values
    B = first.values.shape[1]
    mean = a.mean(0)
    noise = first.noise_std**2 * np.eye(B)
    spread = np.cov(a, rowvar=False).reshape(B, B)
    eigenvalues, Q = np.linalg.eigh(spread - noise)
    C = (Q * np.maximum(eigenvalues, 0.0)) @ Q.T
    gain = C @ np.linalg.pinv(C + noise, hermitian=True)
    left = C - gain @ C + second_std**2 * np.eye(B)
    floor = 1e-12 * max(float(np.trace(C)), 1e-300) * np.eye(B)  # where neither answer has noise
    return mean + (a - mean) @ gain.T, np.asarray(
        np.linalg.inv((left + left.T) / 2 + floor), np.float64
    )
