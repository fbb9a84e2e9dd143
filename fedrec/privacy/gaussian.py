"""Gaussian noise, the only way to it: integer sums in, noised real values out.

Guarantee. Let two inputs differ by one unit whose whole contribution has L2 norm at most D, and add
to every coordinate of the integer sum an independent discrete Gaussian of std s (in real units:
integers times `step`). The release is mu-GDP with mu = D / sqrt(s^2 - 4 step^2), up to a factor 1
+- 2e-34 per coordinate on the likelihood.

Proof. Draw a continuous Gaussian of std sqrt(s^2 - 4 step^2) around the sum, and round it randomly
to an integer with weights exp(-(k - z)^2 / (2 2^2)). By Poisson summation the normaliser of those
weights is constant in z up to 1 +- 2 exp(-2 pi^2 2^2) < 1 +- 1.1e-34, so the rounded value is
distributed as the discrete Gaussian of variance s^2/step^2 up to that factor (Peikert 2010, Thm
3.1, in one dimension): the discrete release is post-processing of the continuous one, whose mu is
exact (Dong, Roth, Su 2022, Thm 2.7). Over 23 million coordinates the factor moves delta by less
than 1e-26. The zCDP bound D^2/(2 s^2) of the discrete Gaussian (Canonne, Kamath, Steinke 2020, Thm
14) needs no such factor.

Symmetric matrices: svec(A) = (A_ii, sqrt(2) A_ij) keeps the Frobenius norm, so noise of std s on
svec is noise of std s / sqrt(2) on A_ij off the diagonal. Its lattice has step sqrt(2) * step
there, hence 8 instead of 4 in `noise_std`. The papers' iid upper triangle (`isometric=False`) adds
sqrt(2) too much off the diagonal and has the same guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s, Int64s
from fedrec.errors import PrivacyError
from fedrec.privacy.discrete_gaussian import sample

_SMALLEST_STD = 4.0  # in grid steps: below, the proof's random rounding would eat the noise


def noise_std(*, radius: float, mu: float, coarsest_step: float) -> float:
    """The real std that makes a release of L2 sensitivity `radius` on grids up to `coarsest_step`
    mu-GDP; 0 for infinite mu.

    Raises PrivacyError where the grid is too coarse for that noise.
    """
    if math.isinf(mu):
        return 0.0
    std = math.sqrt((radius / mu) ** 2 + 8 * coarsest_step**2)
    if std < _SMALLEST_STD * coarsest_step:
        raise PrivacyError(
            f"noise of std {std:g} needs an integer grid finer than {coarsest_step:g}",
            "So large an epsilon protects nothing: use a smaller one, or inf and no noise.",
        )
    return std


def mu_of(*, radius: float, std: float, coarsest_step: float) -> float:
    """What a release of L2 sensitivity `radius` costs with noise of real std `std` on grids up to
    `coarsest_step`, by the theorem above.

    The inverse of `noise_std`, for noise that was drawn; infinite where the grid leaves none.
    """
    left = std**2 - 8 * coarsest_step**2
    return radius / math.sqrt(left) if left > 0 else math.inf


def row_noise(shape: tuple[int, ...], *, step: float, std: float, key: bytes) -> Int64s:
    """Integers of real std `std` on a grid of `step` for every entry; zeros for std = 0."""
    if std == 0:
        return np.zeros(shape, np.int64)
    return sample(math.prod(shape), std=std / step, key=key).reshape(shape)


def symmetric_noise(
    shape: tuple[int, ...], *, step: float, std: float, key: bytes, isometric: bool
) -> Int64s:
    """Noise for rows of packed upper triangles; std / sqrt(2) off the diagonal where
    `isometric`."""
    if not isometric or std == 0:
        return row_noise(shape, step=step, std=std, key=key)
    diagonal = _diagonal(shape[1])
    noise = np.empty(shape, np.int64)
    for mask, part in ((diagonal, std), (~diagonal, std / math.sqrt(2))):
        if mask.any():
            columns = int(mask.sum())
            noise[:, mask] = row_noise(
                (shape[0], columns), step=step, std=part, key=key + (b"d" if part == std else b"o")
            )
    return noise


def add_to_rows(sums: Int64s, *, step: float, std: float, key: bytes) -> Float64s:
    """(r, c) integer sums to real values with noise of real std `std` on every entry; exact for std
    = 0."""
    return np.asarray(
        (sums + row_noise(sums.shape, step=step, std=std, key=key)) * step, np.float64
    )


def add_row_by_row(sums: Int64s, *, step: float, std: float, keys: Sequence[bytes]) -> Float64s:
    """Adds noise as `add_to_rows` does, each row under a key of its own: what one person draws does
    not depend on who else is there."""
    rows = [
        add_to_rows(row[None], step=step, std=std, key=key)
        for row, key in zip(sums, keys, strict=True)
    ]
    return np.concatenate(rows) if rows else np.zeros(sums.shape)


def _diagonal(packed: int) -> npt.NDArray[np.bool_]:
    width = (math.isqrt(8 * packed + 1) - 1) // 2
    row, column = np.triu_indices(width)
    return np.asarray(row == column)
