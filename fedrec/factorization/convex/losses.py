"""Two convex losses of clicks, cut in two: f(s) for every item of the catalogue, and g(s) more for
an item that was clicked.

The score of item j is s = b_j + u.v_j, and a click weighs 1 + alpha against 1 for every item that
was not clicked:

    quadratic   f = s^2 / 2          g = (1 + alpha)(1 - s)^2 / 2 - s^2 / 2
    logistic    f = log(1 + e^s)     g = alpha log(1 + e^-s) - s

The quadratic loss is Hu, Koren and Volinsky's (2008, eq. 3), the logistic one Johnson's (2014, eq.
4).

f sums over all users and all items, so it must reach the aggregator as a polynomial (AM-SSP App. D,
eq. 10). It is replaced by the quadratic that a normal population sees: scores of an item with mean
c and std tau have E f'(s) and, by Stein's lemma, slope E f''(s). Both depend on the item alone.
Taylor at c is tau = 0; it forgets that e^s grows, and its steps overshoot.

g sums over clicks only and is taken as it is. Its slope is what a device reports; its curvature,
for the step, is that of the tangent quadratic above it (Jaakkola and Jordan 2000), so that no step
raises g. With alpha = 0 the logistic g is -s: a click's statistic is exactly u, wherever the
approximation is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import expit

from fedrec.arrays import Float64s

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(9)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


class Loss(Protocol):
    """Slopes and curvatures at scores, elementwise."""

    @property
    def click_weight(self) -> float:
        """alpha >= 0."""

    @property
    def passes(self) -> int:
        """How often a device takes the quadratic of g anew: once where it is exact."""

    def intercepts(self, rates: Float64s) -> Float64s:
        """(m,) b_j, the best score of an item if all users were alike; rates (m,) in (0, 1): who
        clicks it, of all users."""

    def everywhere(self, centre: Float64s, spread: Float64s) -> tuple[Float64s, Float64s]:
        """E f'(s) and E f''(s) for s ~ N(centre, spread^2)."""

    def clicked(self, scores: Float64s) -> tuple[Float64s, Float64s]:
        """g'(s), between -(1 + alpha) and 0 where 0 <= s <= 1 or the loss is logistic, and the
        curvature of the quadratic above g."""


@dataclass(frozen=True)
class Quadratic:
    """(1 + alpha) (1 - s)^2 / 2 on clicks, s^2 / 2 on all other items."""

    click_weight: float
    passes: int = 1

    def intercepts(self, rates: Float64s) -> Float64s:
        """The weighted mean of ones and zeros."""
        return np.asarray(
            (1 + self.click_weight) * rates / (1 + self.click_weight * rates), np.float64
        )

    def everywhere(self, centre: Float64s, spread: Float64s) -> tuple[Float64s, Float64s]:
        """f is a quadratic already."""
        return centre, np.ones_like(centre)

    def clicked(self, scores: Float64s) -> tuple[Float64s, Float64s]:
        """g is a quadratic too."""
        return self.click_weight * scores - (1 + self.click_weight), np.full_like(
            scores, self.click_weight
        )


@dataclass(frozen=True)
class Logistic:
    """(1 + alpha) log(1 + e^-s) on clicks, log(1 + e^s) on all other items."""

    click_weight: float

    @property
    def passes(self) -> int:
        """g is linear at alpha = 0."""
        return 1 if self.click_weight == 0 else 6

    def intercepts(self, rates: Float64s) -> Float64s:
        """Log odds, clicks weighing 1 + alpha."""
        return np.asarray(np.log((1 + self.click_weight) * rates / (1 - rates)), np.float64)

    def everywhere(self, centre: Float64s, spread: Float64s) -> tuple[Float64s, Float64s]:
        """Gauss and Hermite's quadrature with nine nodes."""
        p = expit(centre[:, None] + spread[:, None] * _NODES)
        return p @ _WEIGHTS, (p * (1 - p)) @ _WEIGHTS

    def clicked(self, scores: Float64s) -> tuple[Float64s, Float64s]:
        """-1 - alpha / (1 + e^s), and alpha tanh(s/2) / 2s, which is alpha/4 at 0."""
        x = np.maximum(np.abs(scores), 1e-6)
        return -1 - self.click_weight * expit(-scores), self.click_weight * np.tanh(x / 2) / (2 * x)


LOSSES: Mapping[str, type[Quadratic] | type[Logistic]] = {
    "quadratic": Quadratic,
    "logistic": Logistic,
}
"""By the name in a scenario."""
