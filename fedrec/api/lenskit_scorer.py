"""Component for LensKit pipelines: a private estimator as a scorer (`fedrec[lenskit]`; no other
part of fedrec needs LensKit).

    from fedrec.api.lenskit_scorer import PrivateScorer
    pipeline = lenskit.pipeline.topn_pipeline(PrivateScorer(epsilon=5), predicts_ratings=True)

The guarantee is that of training: a query's history is read without noise, in this process.
"""

from __future__ import annotations

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

    def train(self, data: LensKitDataset, options: TrainingOptions = TrainingOptions()) -> None:  # noqa: B008  as LensKit's own
        """Train the estimator. Raises PrivacyError and DataError as `Recommender.fit`."""
        if hasattr(self, "model_") and not options.retrain:
            return
        rated = self.config.rating_range is not None
        frame = data.interaction_table(format="pandas", original_ids=True)
        columns: dict[str, Any] = {"user": "user_id", "item": "item_id"} | (
            {"rating": "rating", "rating_range": self.config.rating_range} if rated else {}
        )
        kind = {"MatrixFactorization": MatrixFactorization, "ItemItem": ItemItem}[
            self.config.estimator
        ]
        made: Recommender = kind(
            epsilon=self.config.epsilon,
            delta=self.config.delta,
            noise=self.config.noise,
            seed=self.config.seed,
            settings=self.config.settings,
        )
        self.model_ = made.fit(Dataset.from_frame(frame, **columns))
        self.known_ = set(self.model_.item_ids)

    def __call__(self, query: QueryInput, items: ItemList) -> ItemList:
        """The items with scores by the query's history; NaN for items that the model does not
        know."""
        asked = RecQuery.create(query)
        scores = np.full(len(items), np.nan)
        ids = [str(item) for item in items.ids()]
        known = [place for place, item in enumerate(ids) if item in self.known_]
        past = asked.user_items
        if past is None or not known:
            return ItemList(items, scores=scores)
        held = [str(item) for item in past.ids()]
        ratings = past.field("rating")
        rated = self.config.rating_range is not None and ratings is not None
        history: Any = dict(zip(held, map(float, ratings), strict=True)) if rated else held
        history = (
            {i: v for i, v in history.items() if i in self.known_}
            if rated
            else [i for i in history if i in self.known_]
        )
        frame = self.model_.predict(history=history, items=[ids[place] for place in known])
        scores[known] = frame["prediction"].to_numpy()
        return ItemList(items, scores=scores)
