"""The component for LensKit in LensKit's own pipeline: the scores are those of the estimator, what is
unknown has none, and ids may be numbers or texts.

Run where LensKit is installed, by `make lenskit`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedrec

pytest.importorskip("lenskit", reason="LensKit is not installed: make lenskit")
import pandas as pd
from lenskit.data import ItemList, RecQuery, from_interactions_df

from fedrec.api.lenskit_scorer import PrivateScorer

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


def _frame(ids: Any) -> Any:
    rng = np.random.default_rng(0)
    rows = [
        (ids(user), ids(item), float(rng.integers(1, 6)))
        for user in range(300)
        for item in rng.choice(60, 15, replace=False)
    ]
    return pd.DataFrame(rows, columns=["user_id", "item_id", "rating"])


@pytest.mark.parametrize("ids", [int, lambda number: f"x{number}"], ids=["numbers", "texts"])
def test_the_pages_pipeline_lists_ten_new_items_with_the_estimators_scores(ids: Any) -> None:
    frame = _frame(ids)
    names: dict[str, Any] = {"dataset": from_interactions_df(frame)}
    (block,) = re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(block.replace("epsilon=5", "epsilon=5, noise='seeded'"), names)
    pipeline, found = names["pipeline"], names["found"]
    assert len(found) == 10
    mine = {item: rating for user, item, rating in frame.itertuples(False) if user == ids(3)}
    listed = pipeline.run("recommender", query=ids(3))
    assert len(listed) == 10
    assert not {str(item) for item in listed.ids()} & {str(item) for item in mine}
    source = fedrec.Dataset.from_frame(
        frame, user="user_id", item="item_id", rating="rating", rating_range=(1, 5)
    )
    model = fedrec.MatrixFactorization(epsilon=5, noise="seeded").fit(source)
    expected = model.predict(history=mine, items=listed.ids().tolist())["prediction"].to_numpy()
    assert listed.scores() == pytest.approx(expected, rel=1e-6)
    assert len(pipeline.run("recommender", query=ids(999))) == 10  # of somebody unknown
    scorer = pipeline.node("scorer").component
    assert scorer.is_trained()
    mixed = scorer(RecQuery(history_items=listed), ItemList(item_ids=[ids(1), ids(2), ids(999)]))
    assert np.isnan(mixed.scores()).tolist() == [False, False, True]


def test_item_item_scores_clicks_and_a_trained_one_stays() -> None:
    data = from_interactions_df(_frame(int).drop(columns="rating"))
    scorer = PrivateScorer(estimator="ItemItem", epsilon=5, noise="seeded")
    assert not scorer.is_trained()
    scorer.train(data)
    first = scorer.model_
    from lenskit.training import TrainingOptions

    scorer.train(data, TrainingOptions(retrain=False))
    assert scorer.model_ is first
    scores = scorer(3, ItemList(item_ids=range(60))).scores()
    assert np.isfinite(scores).all()
