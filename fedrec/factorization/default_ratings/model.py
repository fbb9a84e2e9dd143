"""The model that the default recipe releases: what a device needs to solve its own user and to
predict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s
from fedrec.data.interactions import Interactions
from fedrec.factorization.default_ratings import client as default_client
from fedrec.factorization.rankers import Model


@dataclass(frozen=True)
class DefaultModel:
    """phi (m, D), bias and variance (m,), mean, noise: what a device needs to solve its own w and
    to predict.

    ranker: what orders lists, which predictions do badly (`model.ranker_of`); kept in the released
    file by `released`.
    """

    phi: Float64s
    bias: Float64s
    variance: Float64s
    mean: float
    noise: float
    value_range: tuple[float, float]
    ranker: Model | None = None

    @staticmethod
    def of_arrays(arrays: Mapping[str, npt.NDArray[np.generic]]) -> DefaultModel:
        """The model of a released file."""
        low, high = (float(x) for x in arrays["value_range"])
        phi, bias, variance = (
            np.asarray(arrays[name], np.float64) for name in ("phi", "bias", "variance")
        )
        return DefaultModel(
            phi, bias, variance, float(arrays["mean"]), float(arrays["noise"]), (low, high)
        )

    @property
    def _unit(self) -> float:
        return (self.value_range[1] - self.value_range[0]) / 4

    @property
    def item_vectors(self) -> npt.NDArray[np.float32]:
        """(m, D + 1): phi and the bias, in rating units."""
        return (self._unit * np.column_stack([self.phi, self.bias])).astype(np.float32)

    @property
    def offset(self) -> float:
        """The private mean, in rating units."""
        return sum(self.value_range) / 2 + self._unit * self.mean

    def user_vectors(self, history: Interactions) -> Float64s:
        """(n, D + 1): the posterior mean of w from the user's own history, and a one for the
        bias."""
        targets = default_client.scaled(history) - self.mean - self.bias[history.items]
        w = default_client.posterior_means(history, self.phi, targets, self.variance + self.noise)
        return np.column_stack([w, np.ones(len(w))])

    def arrays(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """Everything a device needs to predict, for the released file."""
        scalars = {
            "mean": np.array(self.mean),
            "noise": np.array(self.noise),
            "value_range": np.array(self.value_range),
        }
        return {
            "phi": self.phi.astype(np.float32),
            "bias": self.bias,
            "variance": self.variance,
            **scalars,
        }
