"""The model that the published recipe releases, and a device's own solve with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s, Floats
from fedrec.data.interactions import Interactions
from fedrec.factorization.least_squares import solve_clicks, solve_users


@dataclass(frozen=True)
class PublishedModel:
    """Item vectors, the noisy mean, and what a device needs for its own solve."""

    item_vectors: npt.NDArray[np.float32]
    offset: float
    user_ridge: float
    click_weight: float

    @staticmethod
    def of_arrays(arrays: Mapping[str, npt.NDArray[np.generic]]) -> PublishedModel:
        """The model of a released file."""
        scalars = (float(arrays[name]) for name in ("offset", "user_ridge", "click_weight"))
        return PublishedModel(np.asarray(arrays["item_vectors"], np.float32), *scalars)

    def user_vectors(self, history: Interactions) -> Floats:
        """u_k = (sum v v' + lambda I)^-1 sum y v (AM-SSP App. E), or Hu et al. eq. 4 for clicks; in
        float64, user by user."""
        return device_vectors(
            history,
            np.asarray(self.item_vectors, np.float64),
            self.offset,
            self.user_ridge,
            self.click_weight,
        )

    def arrays(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """Arrays for the released file."""
        scalars = {
            "offset": self.offset,
            "user_ridge": self.user_ridge,
            "click_weight": self.click_weight,
        }
        return {
            "item_vectors": self.item_vectors,
            **{name: np.array(value) for name, value in scalars.items()},
        }


def device_vectors(
    mine: Interactions, V: Float64s, offset: float, ridge: float, click_weight: float
) -> Float64s:
    """u_k of every user here, by its own events alone."""
    if mine.rated:
        found = solve_users(mine, V, ridge=ridge, targets=mine.values - offset)
    else:
        found = solve_clicks(mine.user_ptr, mine.items, V, ridge=ridge, alpha=click_weight)
    return np.asarray(found, np.float64)
