"""Discrete Laplace noise: integers in, noised integers out, P(z) ~ exp(-|z| / t).

Guarantee, of the unit and neighbours by which its caller bounds D (`news.attention`: click,
replace). Let two inputs differ by at most D in L1, in grid steps. Independent discrete Laplace
noise of parameter t = D / epsilon on every coordinate is (epsilon, eta)-DP: P(z - x) / P(z - x') <=
exp(|x - x'|_1 / t) (Ghosh, Roughgarden, Sundararajan 2012). For what the sampler rounds and cuts
off, add 2^-40 to epsilon per coordinate, as little as its calibration's own rounding, and eta is at
most (1 + e^epsilon) 2^-56 per coordinate, far below any delta in use. Noise on the reals drawn in
floating point has no such guarantee (Mironov 2012).

Sampler. z = g - g' with independent geometric g, P(g) ~ q^g, q = exp(-1/t). The binary digits of g
are independent, digit i is 1 with probability q^(2^i) / (1 + q^(2^i)): P(g) is a product over
digits. Digits beyond 64 t are cut off (mass below exp(-64)); each of at most 47 digits is a coin
whose two probabilities are right to a factor 1 +- 2^-48, and to 2^-64 more.
"""

from __future__ import annotations

import math

import numpy as np

from fedrec.arrays import Int64s
from fedrec.privacy import keystream
from fedrec.privacy.keystream import derive

SMALLEST = 1.0
LARGEST = 2.0**40
"""In grid steps. Below one step about half of all draws or more would be zero; above, 64 t has more
than the 47 digits of the docstring."""


def sample(size: int, *, parameter: float, key: bytes) -> Int64s:
    """(size,) independent draws; `parameter` t in grid steps, std about sqrt(2) t.

    Raises ValueError outside [1, 2^40]."""
    if not SMALLEST <= parameter <= LARGEST:
        raise ValueError(f"the parameter must be in [1, 2^40] grid steps, found {parameter!r}")
    return _geometric(size, parameter, derive(key, "laplace/+")) - _geometric(
        size, parameter, derive(key, "laplace/-")
    )


def _geometric(size: int, parameter: float, key: bytes) -> Int64s:
    drawn = np.zeros(size, np.int64)
    for digit in range(math.ceil(math.log2(64 * parameter)) + 1):  # upwards: all of 64 t
        odds = math.exp(-(2.0**digit) / parameter)
        drawn += (
            keystream.coins(
                size, probability=odds / (1 + odds), key=derive(key, f"{digit}")
            ).astype(np.int64)
            << digit
        )
    return drawn
