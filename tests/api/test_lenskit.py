"""The component for LensKit: the scores are those of the estimator; what is unknown has none.

Run where LensKit is installed."""

from __future__ import annotations

import numpy as np
import pytest

import fedrec

pytest.importorskip("lenskit", reason="LensKit is not installed: pip install 'fedrec[lenskit]'")
import pandas as pd
from lenskit.data import ItemList, RecQuery, from_interactions_df

from fedrec.api.lenskit_scorer import PrivateScorer


def test_the_component_scores_as_the_estimator_does() -> None:
    rng = np.random.default_rng(0)
    rows = [
        (user, item, float(rng.integers(1, 6)))
        for user in range(300)
        for item in rng.choice(60, 15, replace=False)
    ]
    frame = pd.DataFrame(rows, columns=["user_id", "item_id", "rating"])
    data = from_interactions_df(frame)
    scorer = PrivateScorer(epsilon=5, delta=1e-5, noise="seeded", rating_range=(1, 5))
    scorer.train(data)
    scores = scorer(
        RecQuery(user_id=3, user_items=data.user_row(3)), ItemList(item_ids=[1, 2, 999])
    ).scores()
    source = fedrec.Dataset.from_frame(
        frame, user="user_id", item="item_id", rating="rating", rating_range=(1, 5)
    )
    model = fedrec.MatrixFactorization(epsilon=5, delta=1e-5, noise="seeded").fit(source)
    history = {str(item): rating for user, item, rating in rows if user == 3}
    assert scores[:2] == pytest.approx(
        model.predict(history=history, items=["1", "2"])["prediction"].to_numpy(), rel=1e-6
    )
    assert np.isnan(scores[2])
