"""Non-private alternating least squares as a `Model`: a reference for private training, and no
upper bound.

Ratings: variational ALS, whose ridges are posteriors' and hence need no tuning. Clicks, and lists
of what people rate: Hu, Koren and Volinsky 2008, the same iteration as the package `implicit`
(`python -m benchmarks als` compares them).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float32s
from fedrec.data.interactions import Interactions
from fedrec.data.splits import Fold
from fedrec.evaluation.item_item import MOST_EVENTS, evenly
from fedrec.factorization import variational
from fedrec.factorization.least_squares import alternate_clicks, solve_clicks
from fedrec.factorization.model import Model, predict
from fedrec.randomness import Streams

ALS = "non-private ALS"
WIDTH = 16
ITERATIONS = 12
CLICK_WIDTH = 64
CLICK_RIDGE = 10.0
CLICK_ALPHA = 10.0


@dataclass(frozen=True)
class ClickCeiling:
    """Implicit ALS (Hu, Koren, Volinsky 2008)."""

    item_vectors: Float32s
    offset: float = 0.0

    def user_vectors(self, history: Interactions) -> Float32s:
        """(n, d), each user folded in from its history."""
        solved = solve_clicks(
            history.user_ptr, history.items, self.item_vectors, ridge=CLICK_RIDGE, alpha=CLICK_ALPHA
        )
        return solved.astype(np.float32)

    def arrays(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """Arrays as a file keeps them; never released, as they are not private."""
        return {"item_vectors": self.item_vectors}


def als_model(train: Interactions, validation: Fold, *, seed: int, ranking: bool = False) -> Model:
    """Train on train alone; ratings keep the iteration with the smallest validation RMSE, and where
    `ranking`, carry a ranker."""
    rng = Streams(seed).numpy("als-init")
    if not train.rated:
        return _of_clicks(train, rng)
    best = None
    error = np.inf
    for found in variational.alternate(train, width=WIDTH, iterations=ITERATIONS, rng=rng):
        if not len(validation.targets):
            best = found  # nothing to choose by: the last
            continue
        predicted = predict(found, validation.history, validation.targets)
        rmse = float(np.sqrt(np.mean((predicted - validation.targets.values) ** 2)))
        if rmse < error:
            best = found
            error = rmse
    assert best is not None
    if not ranking:
        return best
    # lists are what ratings are measured by besides: a minute is enough for them
    some = evenly(train, most_events=MOST_EVENTS)
    return replace(best, ranker=_of_clicks(some, Streams(seed).numpy("als-lists")))


def _of_clicks(train: Interactions, rng: np.random.Generator) -> ClickCeiling:
    *_, last = alternate_clicks(
        train,
        width=CLICK_WIDTH,
        ridge=CLICK_RIDGE,
        alpha=CLICK_ALPHA,
        iterations=ITERATIONS,
        rng=rng,
    )
    return ClickCeiling(last.model.V)
