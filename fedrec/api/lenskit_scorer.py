"""Component for LensKit pipelines: a private estimator as a scorer (`fedrec[lenskit]`; no other
part of fedrec needs LensKit).

    from fedrec.api.lenskit_scorer import PrivateScorer
    pipeline = lenskit.pipeline.topn_pipeline(PrivateScorer(epsilon=5), n=10)

The guarantee is that of training: a query's history is read without noise, in this process.
"""

from __future__ import annotations

import warnings
from typing import Any, Literal

import numpy as np
from lenskit.data import Dataset as LensKitDataset
from lenskit.data import ItemList, QueryInput, RecQuery
from lenskit.pipeline import Component
from lenskit.training import Trainable, TrainingOptions
from pydantic import BaseModel, Field

from fedrec.api.datasets import Dataset
from fedrec.api.estimators import ItemItem, MatrixFactorization
from fedrec.api.recommender import Recommender
from fedrec.errors import GenericListWarning


class PrivateScorerConfig(BaseModel):
    """Parameters of the estimator. rating_range: lowest and highest rating, which are public;
    without it every row is a click."""

    estimator: Literal["MatrixFactorization", "ItemItem"] = "MatrixFactorization"
    epsilon: float = 5.0
    delta: float = 1e-5
    noise: Literal["system", "seeded"] = "system"
    seed: int = 1
    rating_range: tuple[float, float] | None = None
    settings: dict[str, Any] = Field(default_factory=dict)


class PrivateScorer(Component[ItemList], Trainable):
    """Scores of an estimator of fedrec, trained on a LensKit data set with differential privacy per
    user."""

    config: PrivateScorerConfig

    def is_trained(self) -> bool:
        """Whether `train` was called; LensKit asks from 2026 on.

        Returns:
            Whether there is a model.
        """
        return hasattr(self, "model_")

    def train(self, data: LensKitDataset, options: TrainingOptions = TrainingOptions()) -> None:  # noqa: B008  as LensKit's own
        """Train the estimator on all interactions of the data set.

        Args:
            data: LensKit's.
            options: LensKit's; `retrain` alone is read.

        Raises:
            PrivacyError: As `Recommender.fit`.
            DataError: As `Recommender.fit`.
        """
        if self.is_trained() and not options.retrain:
            return
        frame = data.interaction_table(format="pandas", original_ids=True)
        columns: dict[str, Any] = {"user": "user_id", "item": "item_id"}
        if self.config.rating_range is not None:
            columns |= {"rating": "rating", "rating_range": self.config.rating_range}
        kind = {"MatrixFactorization": MatrixFactorization, "ItemItem": ItemItem}
        chosen = self.config.model_dump(exclude={"estimator", "rating_range"})
        made: Recommender = kind[self.config.estimator](**chosen)
        self.model_ = made.fit(Dataset.from_frame(frame, **columns))
        self.known_ = {str(item) for item in self.model_.item_ids}

    def __call__(self, query: QueryInput, items: ItemList) -> ItemList:
        """The items with scores by the query's items, by its user's history where it names none;
        without any they are everybody's. NaN for items that the model does not know."""
        scores = np.full(len(items), np.nan)
        ids = [str(item) for item in items.ids()]
        known = [place for place, item in enumerate(ids) if item in self.known_]
        if not known:
            return ItemList(items, scores=scores)
        past = RecQuery.create(query).query_items
        held = [] if past is None else [str(item) for item in past.ids()]
        ratings = None if past is None or self.config.rating_range is None else past.field("rating")
        values = [1.0] * len(held) if ratings is None else [float(rating) for rating in ratings]
        own = {i: value for i, value in zip(held, values, strict=True) if i in self.known_}
        history: Any = list(own) if ratings is None else own
        with warnings.catch_warnings():  # of many queries, some have no history
            warnings.simplefilter("ignore", GenericListWarning)
            found = self.model_.predict(history=history, items=[ids[place] for place in known])
        scores[known] = found["prediction"].to_numpy()
        return ItemList(items, scores=scores)
