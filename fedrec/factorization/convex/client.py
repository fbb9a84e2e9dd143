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
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numba import njit

from fedrec.arrays import Float64s, Int32s, Int64s
from fedrec.budget import weights
from fedrec.data.interactions import Interactions
from fedrec.factorization.convex.losses import Loss
from fedrec.factorization.least_squares import solve_rows
from fedrec.federation.messages import Question, Reports
from fedrec.federation.reports import RealBlock, bounded
from fedrec.privacy.clipping import clip_rows, clip_values

POPULATION = 0.05
"""q: of the squared norm of a report, the part of the population's moments. d^2 numbers summed over
all users need little."""


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


@njit(nogil=True, cache=True)
def scores(user_ptr: Int64s, items: Int32s, U: Float64s, V: Float64s) -> Float64s:
    """(n,) u.v of every event, one after the other."""
    out = np.zeros(len(items))
    for k in range(len(user_ptr) - 1):
        for e in range(user_ptr[k], user_ptr[k + 1]):
            for c in range(U.shape[1]):
                out[e] += U[k, c] * V[items[e], c]
    return out
