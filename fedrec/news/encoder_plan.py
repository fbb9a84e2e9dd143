"""Releases of `central-encoder` and their prices: noise independent or correlated over rounds.

With b = `bands` > 1 the server undoes C, the lower triangular Toeplitz matrix of b bands with the
coefficients of (1 - x)^(-1/2). What it has then is g_t plus C^-1 z, with z independent: the matrix
mechanism (Denisov et al. 2022; banded: Choquette-Choo et al. 2023). The aggregator adds independent
noise and remembers nothing. Devices, which know the models of earlier rounds, send the combination
sum_l C_l g_(t - l) / r_t with r_t = sum_l C_l.

The price is that of the matrix mechanism where everybody answers in every round: all entries of C
are positive, so its sensitivity is the length of C 1, which is sqrt(sum_t r_t^2). Round t has the
share r_t^2 of the budget, and z then has one std in all rounds.

Where everybody answers in every round, b = 1 is best for the sum of all gradients. Releasing that
sum once has sensitivity T clip, and so noise of std T clip / mu; no C gives it less, and b = 1
attains it. Bands are for users who take turns; they are here to be compared.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedrec.arrays import Float64s
from fedrec.news.central_client import POPULATION, named
from fedrec.privacy.calibration import Plan, calibrate
from fedrec.privacy.guarantee import Guarantee


@dataclass(frozen=True)
class EncoderSettings:
    """What decides speed, and the shares of the budget; chosen on validation users of the MovieLens
    1M click log.

    clip: longest gradient of a user. tau: large beside the noise, so that a step is linear in the
    noised sum, and noise averages out. prior_weight: of the identity in the encoder's values at
    first. width: d. bands: b.
    """

    rounds: int = 12
    clip: float = 0.2
    learning_rate: float = 120.0
    tau: float = 0.1
    population_share: float = 0.05
    prior_weight: float = 8.0
    width: int = 32
    heads: int = 4
    bands: int = 1


def correlation(bands: int) -> Float64s:
    """(b,) the first coefficients of (1 - x)^(-1/2): 1, 1/2, 3/8, ...: the first column of C."""
    found = np.ones(bands)
    for lag in range(1, bands):
        found[lag] = found[lag - 1] * (2 * lag - 1) / (2 * lag)
    return found


def row_sums(rounds: int, bands: int) -> Float64s:
    """(T,) r_t: how much of one user's gradients round t holds, at most, in clips."""
    return np.cumsum(np.pad(correlation(bands), (0, max(rounds - bands, 0)))[:rounds])


def plan_of(guarantee: Guarantee, settings: EncoderSettings) -> Plan:
    """Every release of the training, all gradients with the same noise before C is undone."""
    squares = np.square(row_sums(settings.rounds, settings.bands))
    shares = (1 - settings.population_share) * squares / squares.sum()
    return calibrate(
        guarantee,
        {POPULATION: settings.population_share}
        | {named(t): float(share) for t, share in enumerate(shares, start=1)},
    )
