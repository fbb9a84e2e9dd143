"""Correlated Gaussian noise: prefix sums of T weekly sums, each released in its week, under one
guarantee.

The server wants X_1 + ... + X_t in every week t. A, all ones on and below its diagonal, is B C, C
lower triangular Toeplitz with the coefficients c_0 = 1, c_k of (1 - x)^(-1/2) (Denisov et al. 2022;
Fichtenberger, Henzinger and Upadhyay 2023), here rounded to multiples of 2^-b, b = `BITS`. In
week t the aggregator has the sum X_t, integers on a grid, and derives z_1, ..., z_t again from its
secret: discrete Gaussians of std s on the lattice of 2^-b grid steps. It releases

    w_t = z_t - floor(sum_{k >= 1} c_k w_(t - k)),    Y_t = X_t + round(w_t)

floor: to the lattice, round: to the grid. Nothing but the secret is state. Y_1 + ... + Y_t has the
noise B z, of std s |B_t|, apart from what is rounded.

Guarantee. Let each person report every row of X in one week at most, and let the squared norms of
its reports of all weeks sum to 1 at most; each may depend on what was released before. All T
releases together are mu-GDP for that person (add/remove), mu = |c| / sqrt(s^2 - 4 h^2), |c| the
norm of C's first column (`column_norm`), h the lattice; up to the factor of `privacy.gaussian`.

Proof. Sensitivity: M_t = sum_k c_k X_(t - k) + z_t. When the person leaves, row j of C X moves by
d_j times column s_j of C, d_j the report of that row and s_j its week. Rows are disjoint, so the
squared norm of all that moves is sum_j |d_j|^2 |C_(s_j)|^2 <= |c|^2 sum_j |d_j|^2 <= |c|^2: later
columns are the first one cut off. Without disjoint rows the norms of the weeks would add, not their
squares. Noise: c_k X_(t - k) is on the lattice, as z is, so that M is what `privacy.gaussian`
proves mu-GDP; that the reports of later weeks may depend on earlier M is allowed since C is lower
triangular (Denisov et al. 2022, Theorem 2.1), the bound holding on every path. Post-processing: V_t
= M_t - floor(sum_{k >= 1} c_k V_(t - k)) is a function of M_1, ..., M_t alone. By induction V_t =
X_t + w_t, since a multiple of the lattice leaves the floor as it is; and Y_t is V_t rounded, since
X_t is on the grid. Rounding is thus part of the proof, and no exact inverse of C is needed.

A week's sum is released once: with two sums of one week the noise would cancel. Where several
aggregators add noise, each rounds its own, which this proof does not cover.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedrec.arrays import Float64s, Int64s
from fedrec.privacy.discrete_gaussian import sample
from fedrec.privacy.keystream import derive

BITS = 6
"""Of c_k behind the point: |c| |B_T| is .05% more than with unrounded coefficients at T = 52, .2%
at 366. More would leave less room for the noise, at most 2^40 lattice steps."""
LONGEST = 366
"""Most weeks: |w| <= 2^44 lattice steps, 16 times the largest std, times the sum of all c_k, below
2^11, stays far below 2^63."""
_CHUNK = 1 << 16
"""Numbers whose noise of all weeks is in memory together: T times half a megabyte."""


def square_root(length: int) -> Float64s:
    """(length,) the first coefficients of (1 - x)^(-1/2): 1, 1/2, 3/8, ..."""
    found = np.ones(length)
    for lag in range(1, length):
        found[lag] = found[lag - 1] * (2 * lag - 1) / (2 * lag)
    return found


def factor(horizon: int) -> Int64s:
    """(T,) first column of C, in units of 2^-`BITS`.

    Raises ValueError where the horizon is below 1 or beyond `LONGEST`."""
    if not 1 <= horizon <= LONGEST:
        raise ValueError(f"a horizon is between 1 and {LONGEST} releases, found {horizon}")
    # to the nearest: any C is proved, the closest to the square root has least noise
    return np.asarray(np.rint(square_root(horizon) * 2**BITS), np.int64)


def column_norm(horizon: int) -> float:
    """|c|: the largest norm of a column of C, by which every report is multiplied at most."""
    return float(np.linalg.norm(factor(horizon) / 2**BITS))


def prefix_norms(horizon: int) -> Float64s:
    """(T,) |B_t|: std of the noise of X_1 + ... + X_t over that of z."""
    c = factor(horizon) / 2**BITS
    inverse = np.zeros(horizon)
    inverse[0] = 1
    for t in range(1, horizon):
        inverse[t] = -(c[1 : t + 1] @ inverse[t - 1 :: -1])
    return np.asarray(np.sqrt(np.cumsum(np.cumsum(inverse) ** 2)), np.float64)


def widened(horizon: int) -> tuple[float, float]:
    """What a stream multiplies the radius of reports by, and the step of the lattice of noise; 1
    and 1 where there is none (0)."""
    return (column_norm(horizon), 2.0**-BITS) if horizon else (1.0, 1.0)


def week_noise(
    shape: tuple[int, ...], *, step: float, std: float, horizon: int, keys: Sequence[bytes]
) -> Int64s:
    """Noise of the last of the weeks whose keys are given, first week first, in grid steps; zeros
    for std = 0.

    keys: secret, of one stream and block, one for each week. Raises ValueError past the horizon.
    """
    if not 1 <= len(keys) <= horizon:
        raise ValueError(f"week {len(keys)} is none of the {horizon} that were planned")
    found = np.zeros(math.prod(shape), np.int64)
    if std == 0:
        return found.reshape(shape)
    c = factor(horizon)
    for start in range(0, len(found), _CHUNK):
        some = found[start : start + _CHUNK]
        w = np.empty((len(keys), len(some)), np.int64)
        for t, key in enumerate(keys):
            z = sample(len(some), std=std / step * 2**BITS, key=derive(key, f"numbers/{start}"))
            # >> is the floor of the proof; integers, so that no order of sums changes a bit
            w[t] = z - ((c[t:0:-1] @ w[:t]) >> BITS)
        some[:] = (w[-1] + 2 ** (BITS - 1)) >> BITS  # to the nearest step of the grid
    return found.reshape(shape)
