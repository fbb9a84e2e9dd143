"""Noise of three aggregators, of which any two are honest: each adds its own, and any two of them
add what the plan asks for.

A release whose plan asks for noise of std s ("pair std") gets three independent discrete Gaussians,
each of std s / sqrt(2). One corrupt aggregator knows its own and takes it off, or never added it;
the sum keeps noise of std s. If all three add theirs, the sum carries noise of std sqrt(3/2) s
("total std"): that is what everybody else sees, and what `Release.noise_std` states.

Guarantee. A release of L2 sensitivity D is mu-GDP against whoever knows one aggregator's noise,
with mu as planned, and mu / sqrt(3/2)-GDP against whoever knows none, if all three added theirs.
Unit and neighbours are the plan's.

Proof. Let a, b be the stds of two independent discrete Gaussians in units of the grid, s^2 = a^2 +
b^2. Their sum has at integer k the probability proportional to exp(-k^2 / (2 s^2)) times sum over j
of exp(-(j - k a^2 / s^2)^2 / (2 r^2)), r = a b / s: complete the square. By Poisson summation the
second factor is constant in k up to 1 +- 2 exp(-2 pi^2 r^2). With a = b, r = s / 2, so that from s
= 4 on the sum is the discrete Gaussian of std s up to 1 +- 1.1e-34 per coordinate, the same as the
factor that `privacy.gaussian` has already; its proof carries over. `party_std` demands 6 steps,
since off the diagonal of a symmetric matrix an isometric release has s / sqrt(2). The third noise
is added to the sum of two in the same way, with r^2 = s^2 (s^2 / 2) / (3 s^2 / 2) = s^2 / 3, and
the factor is smaller. With the lattice's 8 step^2 in s^2 (`gaussian.noise_std`), the total has 12
step^2, more than mu / sqrt(3/2) needs. What depends on nothing but a noise that an adversary knows
or chose is taken off the release by subtraction: post-processing.
"""

from __future__ import annotations

import math

PARTIES = 3
"""Aggregators, each with noise of its own."""
EXCESS = math.sqrt(1.5)
"""Std of all three noises together over that of any two."""
SMALLEST_PAIR_STD = 6.0
"""In grid steps: below, the sum of two discrete Gaussians is not surely one (the proof above)."""

_SLACK = 1e-12
"""Each noise is drawn so much wider, relatively, that rounding of sqrt(2) leaves no two with less
than the plan asks for."""


def party_std(pair_std: float, *, coarsest_step: float) -> float:
    """Real std of one aggregator's noise, so that any two have at least `pair_std`; 0 for 0.

    Raises ValueError where the pair's noise is narrower than the proof holds for.
    """
    if pair_std == 0:
        return 0.0
    if pair_std < SMALLEST_PAIR_STD * coarsest_step:
        raise ValueError(
            f"noise of std {pair_std:g} is no sum of two on a grid of {coarsest_step:g}: use "
            "more bits"
        )
    return pair_std / math.sqrt(2) * (1 + _SLACK)


def total_std(pair_std: float, *, coarsest_step: float) -> float:
    """Real std of all three noises together."""
    return math.sqrt(PARTIES) * party_std(pair_std, coarsest_step=coarsest_step)
