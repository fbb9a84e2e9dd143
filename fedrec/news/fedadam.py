"""FedAdam (Reddi et al. 2021, Alg. 2) on one vector of parameters, as
`flwr.serverapp.strategy.FedAdam` computes it.

    m = b1 m + (1 - b1) D,    v = b2 v + (1 - b2) D^2,    x = x + e_t m / (sqrt v + tau)
    e_t = e sqrt(1 - b2^(t + 1)) / (1 - b1^(t + 1)),  t = 1, 2, ..: Adam's correction of the start,
        one round ahead, as there

D is the clients' mean movement, x_clients - x; for clients that send one gradient it is minus the
gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from fedrec.arrays import Floats


@dataclass(frozen=True)
class FedAdam:
    """What decides only speed: e, b1, b2 and tau; the defaults are Flower's."""

    learning_rate: float = 0.1
    beta_1: float = 0.9
    beta_2: float = 0.99
    tau: float = 1e-3


@dataclass(frozen=True)
class Moments:
    """m and v after `rounds` rounds, of the shape of the parameters."""

    first: Floats
    second: Floats
    rounds: int = 0

    @staticmethod
    def like(parameters: Floats) -> Moments:
        """Before the first round: zeros."""
        return Moments(np.zeros_like(parameters), np.zeros_like(parameters))


def step(
    parameters: Floats, movement: Floats, moments: Moments, rule: FedAdam
) -> tuple[Floats, Moments]:
    """The parameters after one round, in their dtype, and the moments."""
    t = moments.rounds + 1
    b1 = rule.beta_1
    b2 = rule.beta_2
    m = b1 * moments.first + (1 - b1) * movement
    v = b2 * moments.second + (1 - b2) * movement**2
    rate = rule.learning_rate * math.sqrt(1 - b2 ** (t + 1)) / (1 - b1 ** (t + 1))
    moved = parameters + rate * m / (np.sqrt(v) + rule.tau)
    return moved.astype(parameters.dtype), replace(moments, first=m, second=v, rounds=t)
