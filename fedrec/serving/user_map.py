"""Map from the coefficients of a query to a vector that items are ranked by: the part of a released
model that reads users.

    U = A a + c + W2 gelu(W1 a + c1)

A linear model has no hidden units. It is what runs on the server, and with the coefficients before
noise, on the device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float32s

_erf = np.frompyfunc(math.erf, 1, 1)
"""Not SciPy's: a server would hold 27 MB of SciPy for this one function, and a query has few hidden
units."""


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
