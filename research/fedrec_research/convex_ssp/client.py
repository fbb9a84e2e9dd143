"""Device's part of `convex_ssp`: the user's own convex problem, and one bounded report of it.

The user's problem is f summed over the whole catalogue, as the public quadratic pull.u + u'base u /
2, plus g of each click, plus a ridge. Where g is no quadratic it is solved by a few quadratic
problems from above, each of which lowers it.

Guarantee (user, add/remove). u is clipped to norm Gamma, the slopes g' to [-(1 + alpha), 1 +
alpha]; the weights of a user's n clicks are w = 1 / sqrt(n), so that their squares sum to 1. Then x
= u / Gamma and r = g' / (1 + alpha) are at most 1, and with q = POPULATION

    block "slopes"       rows sqrt(1 - q) w_e r_e x of distinct items      squared norm (1 - q)
        |x|^2 sum w^2 r^2  <=  1 - q
    block "population"   sqrt(q) / 2 times (1, x)(1, x)'                    squared norm q (1 +
        |x|^2)^2 / 4        <=  q

so the whole report has norm at most 1 (and `reports.bounded` cuts it to that whatever happened
before). A device computes from released arrays and its own clicks alone: removing the user removes
this report and nothing else. Sensitivity 1.

Two convex losses of clicks, cut in two: f(s) for every item of the catalogue, and g(s) more for
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

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import expit

from fedrec.arrays import Float64s, Int32s, Int64s
from fedrec.data.interactions import Interactions
from fedrec.factorization import weights
from fedrec.factorization.least_squares import solve_rows
from fedrec.federation.messages import Question, Reports
from fedrec.federation.reports import RealBlock, bounded
from fedrec.numerics import compiled
from fedrec.privacy.clipping import clip_rows, clip_values

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(9)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
POPULATION = 0.05
"""q: of the squared norm of a report, the part of the population's moments. d^2 numbers summed over
all users need little."""


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


@dataclass(frozen=True)
class Catalogue:
    """The sum of f over all items as a public quadratic: pull.u + u' base u / 2; base (d, d), pull
    (d,)."""

    base: Float64s
    pull: Float64s


def user_vectors(
    mine: Interactions,
    V: Float64s,
    intercepts: Float64s,
    catalogue: Catalogue,
    loss: Loss,
    ridge: float,
) -> Float64s:
    """(num_users, d): argmin of pull.u + u'(base + ridge I)u / 2 + sum of g over the user's clicks;
    V (m, d), user by user.

    Every pass solves (base + sum c v v' + ridge I) u = sum (c s - g') v - pull at the slopes g' and
    curvatures c of the last u. pull is an event more of each user, at a row of its own.
    """
    n = mine.num_users
    place = np.arange(len(mine)) + mine.users
    ptr = mine.user_ptr + np.arange(n + 1)
    table = np.vstack([V, -catalogue.pull])
    ids = np.full(len(mine) + n, len(V), np.int32)
    ids[place] = mine.items
    curvatures = np.zeros(len(ids))
    targets = np.ones(len(ids))
    U = np.zeros((n, V.shape[1]))
    for _ in range(loss.passes):
        along = scores(mine.user_ptr, mine.items, U, V)
        slopes, curvatures[place] = loss.clicked(along + intercepts[mine.items])
        targets[place] = curvatures[place] * along - slopes
        U = np.asarray(
            solve_rows(
                ptr,
                ids,
                table,
                ridge=ridge,
                targets=targets,
                weights=curvatures,
                base=catalogue.base,
            ),
            np.float64,
        )
    return U


def report(question: Question, mine: Interactions, loss: Loss) -> Reports:
    """Alg. 7 l. 2-5 for clicks: slopes at the current item vectors, and what the sum over the
    catalogue needs."""
    public = {name: np.asarray(array, np.float64) for name, array in question.public.items()}
    V = public["V"]
    intercepts = public["intercepts"]
    radius = float(public["radius"])
    limit = 1 + loss.click_weight
    solved = user_vectors(
        mine, V, intercepts, Catalogue(public["base"], public["pull"]), loss, float(public["ridge"])
    )
    U = clip_rows(solved, radius=radius).rows
    slopes, _ = loss.clicked(scores(mine.user_ptr, mine.items, U, V) + intercepts[mine.items])
    r = clip_values(slopes, low=-limit, high=limit).values / limit
    w = weights.uniform(mine, budget=1.0).values
    # who clicked nothing is silent, as who is not there
    present = np.where(np.diff(mine.user_ptr) > 0, math.sqrt(POPULATION) / 2, 0.0)
    moments = RealBlock(present, np.column_stack([np.ones(len(U)), U / radius]))
    rows = RealBlock(math.sqrt(1 - POPULATION) * w * r, U / radius)
    return bounded(mine.user_ptr, mine.items, [moments, rows], question.releases, scaling="clip")


@compiled()
def scores(user_ptr: Int64s, items: Int32s, U: Float64s, V: Float64s) -> Float64s:
    """(n,) u.v of every event, one after the other."""
    out = np.zeros(len(items))
    for k in range(len(user_ptr) - 1):
        for e in range(user_ptr[k], user_ptr[k + 1]):
            for c in range(U.shape[1]):
                out[e] += U[k, c] * V[items[e], c]
    return out
