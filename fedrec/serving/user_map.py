"""Map from the coefficients of a query to a vector that items are ranked by: the part of a released
model that reads users.

    U = A a + c + W2 gelu(W1 a + c1)

A linear model has no hidden units. It is what runs on the server, and with the coefficients before
noise, on the device.

Reading a noised sum of rows when people hold very different numbers of clicks: a population for
each size of history.

The sum of n rows grows with n, and what n clicks tell of a taste does not grow with it. With one
population for all, the few clicks of a light user would be read as a weak taste of a heavy one, and
their noise as a strong one. A last coordinate of the rows is the same for all items, so that the
release carries n too, at no cost (`factorization_basis.counted_rows`).

    p(g | a) ~ share_g N(a; mean_g, C_g + s^2 I)
    query    = sum_g p(g | a) (a - mean_g) (C_g + s^2 I)^-1 C_g matrix_g, the posterior mean, (C,)

Everything is public but a, which is the noised release: post-processing. With s = 0 the same
formula reads exact coefficients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float32s, Float64s

_PREFIX = "sizes."
_BINS_PER_OCTAVE = 1.5
_FEWEST = 40
"""Groups are bins of log2(n); with fewer synthetic users than this a bin is joined to its
neighbour."""
_erf = np.frompyfunc(math.erf, 1, 1)
"""Not SciPy's: a server would hold 27 MB of SciPy for this one function, and a query has few hidden
units."""


@dataclass(frozen=True)
class Sizes:
    """G groups: clicks (G,) their mean n; shares (G,) of people; mean (G, B), covariance (G, B, B)
    of true coefficients; matrix (G, B, C).

    The C numbers of a query are orthonormal in scores, so that squares of them are what lists
    differ by.
    """

    clicks: Float64s
    shares: Float64s
    mean: Float64s
    covariance: Float64s
    matrix: Float64s

    @staticmethod
    def of(arrays: Mapping[str, npt.NDArray[np.generic]]) -> Sizes | None:
        """Sizes in a bundle's further arrays; None where there are none.

        Raises KeyError or ValueError where parts lack or do not fit."""
        if f"{_PREFIX}shares" not in arrays:
            return None
        clicks, shares, mean, covariance, matrix = (
            np.asarray(arrays[_PREFIX + name], np.float64)
            for name in ("clicks", "shares", "mean", "covariance", "matrix")
        )
        G, B = mean.shape
        if G < 1 or (clicks.shape, shares.shape, covariance.shape, matrix.shape[:2]) != (
            (G,),
            (G,),
            (G, B, B),
            (G, B),
        ):
            raise ValueError(
                "groups of sizes do not fit together: "
                f"{[a.shape for a in (clicks, shares, mean, covariance, matrix)]}"
            )
        if not (shares > 0).all():
            raise ValueError("a group of sizes has no share of the people")
        return Sizes(clicks, shares, mean, covariance, matrix)

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """Arrays for a bundle."""
        return {_PREFIX + name: array for name, array in vars(self).items()}

    def read(self, values: Float64s, *, noise_std: float) -> Float64s:
        """(n, C) queries for (n, B) releases with noise of this std on every entry."""
        logs = np.empty((len(self.shares), len(values)))
        means = np.empty((len(self.shares), len(values), self.matrix.shape[2]))
        for g, (share, mean, C, matrix) in enumerate(
            zip(self.shares, self.mean, self.covariance, self.matrix, strict=True)
        ):
            L = np.linalg.cholesky(C + noise_std**2 * np.eye(len(C)))
            z = np.linalg.solve(L, (values - mean).T)
            logs[g] = np.log(share) - np.log(np.diag(L)).sum() - 0.5 * (z**2).sum(axis=0)
            means[g] = z.T @ np.linalg.solve(L, C @ matrix)
        p = np.exp(logs - logs.max(axis=0))
        return np.asarray(np.einsum("gn,gnc->nc", p / p.sum(axis=0), means), np.float64)

    def told(self, *, noise_std: float) -> Float64s:
        """(G,) which share of what the clicks of a group say of its lists is left under this noise:
        1 without noise, 0 for none."""
        found = []
        for C, matrix in zip(self.covariance, self.matrix, strict=True):
            kept = C @ np.linalg.solve(C + noise_std**2 * np.eye(len(C)), C)
            found.append(
                np.einsum("bc,bd,dc->", matrix, kept, matrix)
                / max(np.einsum("bc,bd,dc->", matrix, C, matrix), 1e-300)
            )
        return np.asarray(found, np.float64)

    def explained(self, *, noise_std: float) -> float:
        """Mean square of the posterior mean's scores over people: what lists differ by at this
        noise. Comparable between bases."""
        kept = (C @ np.linalg.solve(C + noise_std**2 * np.eye(len(C)), C) for C in self.covariance)
        parts = [
            np.einsum("bc,bd,dc->", matrix, K, matrix)
            for matrix, K in zip(self.matrix, kept, strict=True)
        ]
        return float(self.shares @ np.asarray(parts))


def grouped(clicks: npt.NDArray[np.integer]) -> list[npt.NDArray[np.int64]]:
    """Users (n,) by bins of their number of clicks, fewest first; each with at least `_FEWEST`
    where there are so many users."""
    bins = np.floor(_BINS_PER_OCTAVE * np.log2(np.maximum(clicks, 1)))  # numbers of bins
    groups = [np.flatnonzero(bins == b) for b in np.unique(bins)]
    joined = [groups[0]]
    for group in groups[1:]:
        if len(joined[-1]) < _FEWEST:
            joined[-1] = np.concatenate([joined[-1], group])
        else:
            joined.append(group)
    if len(joined) > 1 and len(joined[-1]) < _FEWEST:
        joined[-2:] = [np.concatenate(joined[-2:])]
    return joined


@dataclass(frozen=True)
class UserMap:
    """A: (B, D), c: (D,), W1: (B, h), c1: (h,), W2: (h, D); all float32, h may be 0."""

    linear: Float32s
    offset: Float32s
    first: Float32s
    first_bias: Float32s
    second: Float32s

    def __post_init__(self) -> None:
        (B, D), h = self.linear.shape, len(self.first_bias)
        if (self.offset.shape, self.first.shape, self.second.shape) != ((D,), (B, h), (h, D)):
            raise ValueError(
                f"parts of a user map do not fit together: {[a.shape for a in vars(self).values()]}"
            )

    @staticmethod
    def of_linear(matrix: npt.NDArray[np.floating], offset: npt.NDArray[np.floating]) -> UserMap:
        """a -> a matrix + offset; matrix: (B, D)."""
        B, D = matrix.shape
        parts = (matrix, offset, np.zeros((B, 0)), np.zeros(0), np.zeros((0, D)))
        return UserMap(*(np.ascontiguousarray(part, np.float32) for part in parts))

    def __call__(self, coefficients: Float32s) -> Float32s:
        """(n, D) from (n, B)."""
        users = coefficients @ self.linear + self.offset
        if len(self.first_bias):
            hidden = coefficients @ self.first + self.first_bias
            below = 0.5 * (1.0 + _erf(hidden * math.sqrt(0.5)).astype(np.float64))
            # the exact gelu, as in training
            users = users + (hidden * below).astype(np.float32) @ self.second
        return np.asarray(users, np.float32)

    def arrays(self) -> Mapping[str, Float32s]:
        """By the names they have in a bundle."""
        return {f"users.{name}": array for name, array in vars(self).items()}

    @staticmethod
    def of_arrays(arrays: Mapping[str, npt.NDArray[np.generic]]) -> UserMap:
        """Raises KeyError where one is missing."""
        names = ("linear", "offset", "first", "first_bias", "second")
        return UserMap(*(np.asarray(arrays[f"users.{name}"], np.float32) for name in names))
