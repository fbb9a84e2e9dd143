"""Three ways to divide a user's budget over its tasks: some tasks at random, the rarest tasks, or all of them by weight.

Guarantee (user, add/remove). Every allocation gives `UserWeights` with sum over a user's events of w^2 <= beta, whatever its data. Proofs
are in `sampling.py` (at most `limit` events, of weight sqrt(beta / limit): Ada-DPALS Rem. 3.5) and `weights.py`. What a user gets
depends on its own tasks, on counts released before, and on public numbers alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s
from fedrec.budget import sampling, weights
from fedrec.budget.weights import UserWeights
from fedrec.data.interactions import Interactions


class Allocation(Protocol):
    """From one batch of users to a weight for each of their events."""

    def __call__(self, mine: Interactions, counts: Float64s, *, budget: float, num_users: int, key: bytes) -> UserWeights:
        """Weights (n,) with sum of squares <= budget for every user; 0 where an event is left out.

        counts: (m,) >= 1, public or released before. num_users: of the whole population. key: a public choice of the sampling.
        """


@dataclass(frozen=True)
class UniformSampling:
    """DPALS (uniform): `limit` of a user's events at random, all of the same weight (Chien et al. 2021)."""

    limit: int

    def __call__(self, mine: Interactions, counts: Float64s, *, budget: float, num_users: int, key: bytes) -> UserWeights:
        """See Allocation."""
        return _constant(mine, sampling.uniform(mine, limit=self.limit, key=key), self.limit, budget)


@dataclass(frozen=True)
class TailSampling:
    """DPALS (tail): the `limit` events of a user on the tasks of smallest count (Chien et al. 2021)."""

    limit: int

    def __call__(self, mine: Interactions, counts: Float64s, *, budget: float, num_users: int, key: bytes) -> UserWeights:
        """See Allocation."""
        return _constant(mine, sampling.tail(mine, counts, limit=self.limit, key=key), self.limit, budget)


@dataclass(frozen=True)
class Adaptive:
    """Ada-DPALS with mu in [0, 1]: weights n^-mu, scaled for each user to its whole budget ("normalised per user", App. C)."""

    mu: float

    def __call__(self, mine: Interactions, counts: Float64s, *, budget: float, num_users: int, key: bytes) -> UserWeights:
        """See Allocation."""
        return weights.normalised(mine, counts, mu=self.mu, budget=budget)


@dataclass(frozen=True)
class AdaptiveAsPrinted:
    """Ada-DPALS eq. 16 and 12: weights n^-mu scaled so that an average user meets its budget, and cut down where it passes it.

    slack: c(n) of eq. 10. Users below the budget waste the rest of it: `Adaptive` is as private and has more signal.
    """

    mu: float
    slack: float = 1.0

    def __call__(self, mine: Interactions, counts: Float64s, *, budget: float, num_users: int, key: bytes) -> UserWeights:
        """See Allocation."""
        return weights.adaptive_as_printed(mine, counts, mu=self.mu, budget=budget, slack=self.slack, num_users=num_users)


def _constant(mine: Interactions, kept: npt.NDArray[np.bool_], limit: int, budget: float) -> UserWeights:
    """The same weight on the events that are kept, 0 on the others."""
    values = np.zeros(len(mine))
    chosen = weights.constant(mine.select(kept), limit=limit, budget=budget)
    values[kept] = chosen.values
    return UserWeights(values, chosen.bound)
