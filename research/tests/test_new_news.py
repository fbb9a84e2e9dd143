"""News left out of training are ranked by their texts, and by nothing that training had of them."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from fedrec.data.planted_news import NEWS_SHAPES, planted_news
from fedrec_research.quality import new_news
from fedrec_research.trials import Asked


def test_nothing_of_the_news_left_out_is_in_training() -> None:
    train = planted_news(NEWS_SHAPES["small"], seed=1).log.train
    new = np.arange(train.num_news) % 7 == 3
    order = np.argsort(new, kind="stable")
    found = new_news.without(train, new, order)
    assert found.num_news == int((~new).sum())
    assert found.candidates.max() < found.num_news
    assert len(order[found.history]) == int((~new[train.history]).sum())
    first = train.select(np.arange(len(train)))
    kept = [
        j
        for a, b in zip(first.candidate_ptr[:-1], first.candidate_ptr[1:], strict=True)
        if (first.clicked[a:b] & ~new[first.candidates[a:b]]).any()
        for j in first.candidates[a:b][~new[first.candidates[a:b]]].tolist()
    ]
    assert order[found.candidates].tolist() == kept


def test_lists_of_new_news_are_better_than_chance_by_their_texts(tmp_path) -> None:
    row = new_news.run(Asked(quick=True, folder=tmp_path))["rows"][0]
    assert row["new"] > 30
    assert row["answer at inf"] > 1.5 * row["random order"]
