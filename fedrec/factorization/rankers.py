"""Rankers and predictors of a model, by the kind of its events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s, Floats
from fedrec.data.interactions import Interactions

Ids = npt.NDArray[np.integer]
_EVENTS = 1 << 10
"""Predicted at a time: two gathered rows of each stay in the cache, and memory is used again."""


class Model(Protocol):
    """Item vectors (m, D) and a local solve; `predict = offset + u . v`, clipped to the public
    range for ratings."""

    @property
    def item_vectors(self) -> Floats:
        """(m, D): one row per item."""

    @property
    def offset(self) -> float:
        """Added to every dot product; 0 for clicks."""

    def user_vectors(self, history: Interactions) -> Floats:
        """(num_users, D), each row from that user's own events alone."""

    def arrays(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """What is written into the released file."""


def ranker_of(model: Model) -> Model:
    """What makes the model's lists: the model that it carries as `ranker`, or itself where it
    carries none."""
    ranker: Model | None = getattr(model, "ranker", None)
    return model if ranker is None else ranker


def predictor(model: Model, history: Interactions) -> Callable[[Ids, Ids], Float64s]:
    """`predict(users, items)` for the users of `history`, whose vectors are solved once; ratings
    are clipped to their range."""
    return predictor_of(model, model.user_vectors(history), history)


def predictor_of(model: Model, U: Floats, history: Interactions) -> Callable[[Ids, Ids], Float64s]:
    """`predictor` where the vectors U (num_users, D) are known."""
    V = model.item_vectors
    low, high = history.value_range if history.rated else (-np.inf, np.inf)

    def predictions(users: Ids, items: Ids) -> Float64s:
        raw = np.empty(len(users))
        for start in range(0, len(users), _EVENTS):
            part = slice(start, start + _EVENTS)
            raw[part] = np.einsum("ed,ed->e", U[users[part]], V[items[part]], dtype=np.float64)
        return np.clip(raw + model.offset, low, high)

    return predictions
