"""Intervals of means over seeds, by Student's t."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

LEVEL = 0.95  # the level that intervals of means usually have


@dataclass(frozen=True)
class Interval:
    """mean ± half; half is nan from fewer than two seeds."""

    mean: float
    half: float

    @property
    def above(self) -> bool:
        """The whole interval lies above zero; False where it is not known."""
        return self.mean - self.half > 0

    @property
    def below(self) -> bool:
        """The whole interval lies below zero; False where it is not known."""
        return self.mean + self.half < 0


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error, nan from fewer than two values."""
    n = len(values)
    mean = math.fsum(values) / len(values)
    error = (
        math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1) / n) if n > 1 else math.nan
    )
    return mean, error


def interval(values: Sequence[float]) -> Interval:
    """Interval of the mean of independent values: the t quantile of n - 1 degrees of freedom times
    the standard error.

    Over seeds it is paired where two systems share them (`paired`).
    """
    mean, error = mean_and_error(values)
    return Interval(
        mean,
        float(stdtrit(len(values) - 1, (1 + LEVEL) / 2)) * error if len(values) > 1 else math.nan,
    )


def paired(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Interval of the mean of ours - theirs, seed by seed.

    Raises ValueError where the seeds are not the same number."""
    return interval([a - b for a, b in zip(ours, theirs, strict=True)])
