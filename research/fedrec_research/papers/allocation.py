"""Allocation of a user's budget over its tasks: the interface, and weights by the counts of tasks.

Guarantee (user, add/remove). Every allocation gives `UserWeights` with sum over a user's events of
w^2 <= beta, whatever its data: the proof is in `weights.py`. What a user gets depends on its own
tasks, on counts released before, and on public numbers alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fedrec.arrays import Float64s
from fedrec.data.interactions import Interactions
from fedrec.factorization import weights
from fedrec.factorization.weights import UserWeights


class Allocation(Protocol):
    """From one batch of users to a weight for each of their events."""

    def __call__(
        self, mine: Interactions, counts: Float64s, *, budget: float, num_users: int, key: bytes
    ) -> UserWeights:
        """Weights (n,) with sum of squares <= budget for every user; 0 where an event is left out.

        counts: (m,) >= 1, public or released before. num_users: of the whole population. key: a
        public choice of the sampling.
        """


@dataclass(frozen=True)
class Adaptive:
    """Ada-DPALS with mu in [0, 1]: weights n^-mu, scaled for each user to its whole budget
    ("normalised per user", App. C)."""

    mu: float

    def __call__(
        self, mine: Interactions, counts: Float64s, *, budget: float, num_users: int, key: bytes
    ) -> UserWeights:
        """See Allocation."""
        return weights.normalised(mine, counts, mu=self.mu, budget=budget)
