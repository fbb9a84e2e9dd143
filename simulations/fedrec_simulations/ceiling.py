"""Non-private alternating least squares as a `Model`: the ceiling that private training is measured against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrec.data.interactions import Interactions
from fedrec.data.splits import Split
from fedrec.factorization.alternating import RatingRecipe, alternate_clicks, alternate_ratings
from fedrec.factorization.least_squares import count_ridge, solve_clicks, solve_users
from fedrec.factorization.model import Model, predict
from fedrec.settings import Scenario
from fedrec.streams import Streams

Float32s = npt.NDArray[np.float32]

RATINGS = RatingRecipe(width=16, user_ridge=0.06, item_ridge=0.06)
ITERATIONS = 15
CLICK_WIDTH, CLICK_RIDGE, CLICK_ALPHA = 64, 10.0, 10.0


@dataclass(frozen=True)
class RatingCeiling:
    """Item vectors with two more columns, the item's bias and a one for the user's; every user is solved from its history."""

    vectors: Float32s
    bias: Float32s
    offset: float
    ridge: float
    power: float

    @property
    def item_vectors(self) -> Float32s:
        """(m, d + 2): factors, bias, one."""
        return np.column_stack([self.vectors, self.bias, np.ones(len(self.bias), np.float32)])

    def user_vectors(self, history: Interactions) -> Float32s:
        """(n, d + 2): factors, one, the user's bias."""
        with_one = np.column_stack([self.vectors, np.ones(len(self.bias), np.float32)])
        targets = history.values - np.float32(self.offset) - self.bias[history.items]
        solved = solve_users(history, with_one, ridge=count_ridge(history.user_ptr, self.ridge, power=self.power), targets=targets)
        return np.column_stack([solved[:, :-1], np.ones(len(solved)), solved[:, -1]]).astype(np.float32)

    def arrays(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """For a file; never released: it is not private."""
        return {"item_vectors": self.item_vectors, "offset": np.array(self.offset)}


@dataclass(frozen=True)
class ClickCeiling:
    """Implicit ALS (Hu, Koren, Volinsky 2008)."""

    item_vectors: Float32s
    offset: float = 0.0

    def user_vectors(self, history: Interactions) -> Float32s:
        """(n, d), each user folded in from its history."""
        solved = solve_clicks(history.user_ptr, history.items, self.item_vectors, ridge=CLICK_RIDGE, alpha=CLICK_ALPHA)
        return solved.astype(np.float32)

    def arrays(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """For a file; never released: it is not private."""
        return {"item_vectors": self.item_vectors}


def als_model(split: Split, scenario: Scenario) -> Model:
    """Train on train alone; ratings keep the iteration with the smallest validation RMSE."""
    rng = Streams(scenario.seed).numpy("als-init")
    if split.train.kind == "clicks":
        *_, last = alternate_clicks(split.train, width=CLICK_WIDTH, ridge=CLICK_RIDGE, alpha=CLICK_ALPHA, iterations=ITERATIONS, rng=rng)
        return ClickCeiling(last.model.V)
    best, error = None, np.inf
    for step in alternate_ratings(split.train, RATINGS, iterations=ITERATIONS, rng=rng):
        found = RatingCeiling(step.model.V, step.model.item_bias, step.model.mean, RATINGS.user_ridge, RATINGS.ridge_power)
        predicted = predict(found, split.validation.history, split.validation.targets)
        rmse = float(np.sqrt(np.mean((predicted - split.validation.targets.values) ** 2)))
        if rmse < error:
            best, error = found, rmse
    assert best is not None
    return best
