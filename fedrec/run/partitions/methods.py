"""Methods under evaluation, as values that cross to other machines: predictions of ratings and
scores for lists of a part's users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s
from fedrec.data.interactions import Interactions
from fedrec.data.splits import Fold
from fedrec.evaluation.item_item import FewPeople, ItemItem
from fedrec.evaluation.toplists import Scores, dot_product, of_another_user, same_for_everyone
from fedrec.factorization.model import Model, predictor, ranker_of


class PartitionedMethod(Protocol):
    """One line of a comparison."""

    def predictions(self, fold: Fold) -> Float64s | None:
        """(n,) predicted values of the fold's targets; None where the method predicts none."""

    def scores(self, history: Interactions) -> Scores | None:
        """Scores of the whole catalogue for each user; None where the method makes no lists."""


@dataclass(frozen=True)
class ModelMethod:
    """A model. exchanged: every user gets another's vector, of the same part: the control of what a
    history is worth.

    Of a part with one user that is its own.
    """

    model: Model
    exchanged: bool = False

    def predictions(self, fold: Fold) -> Float64s | None:
        """See `PartitionedMethod`."""
        users = fold.targets.users
        n = fold.history.num_users
        if not fold.targets.rated:
            return None
        if self.exchanged:
            users = ((users.astype(np.int64) + n // 2) % n).astype(np.int32)
        return predictor(self.model, fold.history)(users, fold.targets.items)

    def scores(self, history: Interactions) -> Scores | None:
        """See `PartitionedMethod`."""
        ranker = ranker_of(self.model)
        found = dot_product(
            np.asarray(ranker.user_vectors(history), np.float32),
            np.asarray(ranker.item_vectors, np.float32),
        )
        return of_another_user(found, history.num_users) if self.exchanged else found


@dataclass(frozen=True)
class BiasMethod:
    """mean + b_j + c_k within the scale, c_k solved from the user's own history; user_ridge None
    for no c_k."""

    mean: float
    item_bias: Float64s
    user_ridge: float | None
    value_range: tuple[float, float]

    def user_biases(self, history: Interactions) -> Float64s:
        """(num_users,) ridge regression of each user's residuals."""
        if self.user_ridge is None:
            return np.zeros(history.num_users)
        residuals = history.values.astype(np.float64) - self.mean - self.item_bias[history.items]
        n = np.diff(history.user_ptr)
        return np.bincount(history.users, weights=residuals, minlength=history.num_users) / (
            n + self.user_ridge
        )

    def predictions(self, fold: Fold) -> Float64s | None:
        """See `PartitionedMethod`."""
        own = self.user_biases(fold.history)
        return np.clip(
            self.mean + self.item_bias[fold.targets.items] + own[fold.targets.users],
            *self.value_range,
        )

    def scores(self, history: Interactions) -> Scores | None:
        """See `PartitionedMethod`."""
        return None


@dataclass(frozen=True)
class PopularityMethod:
    """One list for everybody, by popularity, less their history. counts: (m,) train events of each
    item."""

    counts: npt.NDArray[np.int64]

    def predictions(self, fold: Fold) -> Float64s | None:
        """See `PartitionedMethod`."""
        return None

    def scores(self, history: Interactions) -> Scores | None:
        """See `PartitionedMethod`."""
        return same_for_everyone(self.counts)


@dataclass(frozen=True)
class ItemItemMethod:
    """Item-item similarities without privacy."""

    model: ItemItem | FewPeople

    def predictions(self, fold: Fold) -> Float64s | None:
        """See `PartitionedMethod`."""
        return None

    def scores(self, history: Interactions) -> Scores | None:
        """See `PartitionedMethod`."""
        return self.model.scores(history)
