"""Popularity is ranked and released as it says, and differences to it are paired by user."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from fedrec.data.clicklog import ClickLog
from fedrec.data.impressions import Impressions
from fedrec.data.planted_news import NEWS_SHAPES, planted_news
from fedrec.evaluation.impressions import evaluate_impressions
from fedrec.randomness import Streams
from fedrec.run.news_run import serving_guarantee
from fedrec_research.quality import news_popularity
from fedrec_research.quality.news_popularity import BARE, LIST, SHOWN, Popularity, above

KEY = Streams(1).key("test")


@pytest.fixture(scope="module")
def log() -> ClickLog:
    return planted_news(NEWS_SHAPES["small"], seed=1).log


def popularity(log: ClickLog, epsilon: float = math.inf) -> Popularity:
    return Popularity.of(log, serving_guarantee(epsilon, 1e-5), key=KEY)


def test_popularity_counts_the_clicks_of_train_and_is_measured_as_any_score(log: ClickLog) -> None:
    found = popularity(log)
    train = log.train
    test = log.test
    counts = [int((train.candidates[train.clicked] == j).sum()) for j in range(train.num_news)]
    assert found.counted.tolist() == counts == found.released.tolist()
    expected = evaluate_impressions(np.array(counts, np.float32)[test.candidates], test).means()
    for row in found.rows().values():
        assert {name: row[name].mean for name in SHOWN} == pytest.approx(
            {name: expected[name] for name in SHOWN}
        )


def test_released_counts_have_noise_of_the_std_that_sensitivity_sqrt_2_needs() -> None:
    noise = news_popularity.released(
        np.zeros(20_000, np.int64), serving_guarantee(5.0, 1e-5), key=KEY
    )
    # delta of a mu-GDP release at epsilon 5, by Dong, Roth and Su (2022), Cor. 2.13
    grid = np.arange(0.5, 3, 1e-4)
    delta = norm.cdf(grid / 2 - 5 / grid) - math.exp(5) * norm.cdf(-grid / 2 - 5 / grid)
    mu = grid[delta <= 1e-5].max()
    assert noise.std() == pytest.approx(math.sqrt(2) / mu, rel=0.03)
    assert abs(noise.mean()) < 0.05


def test_a_list_holds_nothing_of_the_history_and_counts_clicks_by_their_rank() -> None:
    """One user with history {0}, who clicks 2 and 4 of six items; the second user clicks 1."""
    test = Impressions(
        num_news=6,
        history_ptr=np.array([0, 1, 1]),
        history=np.array([0], np.int32),
        users=np.array([0, 0, 1], np.int32),
        candidate_ptr=np.array([0, 2, 4, 6]),
        candidates=np.array([2, 1, 4, 1, 1, 5], np.int32),
        clicked=np.array([True, False, True, False, True, False]),
    )
    counts = np.array([9.0, 1.0, 4.0, 3.0, 2.0, 0.0])  # lists: 2 3 4 1 5, and 0 2 3 4 1 5
    found = Popularity(counts, counts, test).rows()["counted"][LIST].mean
    one = (1 + 1 / math.log2(4)) / (1 + 1 / math.log2(3))
    assert found == pytest.approx((one + 1 / math.log2(6)) / 2)


def test_differences_are_paired_by_user_whose_impressions_err_together(log: ClickLog) -> None:
    popular = popularity(log, 5.0)
    rng = np.random.default_rng(1)
    scores = rng.normal(size=(log.test.num_users, log.test.num_news)).astype(np.float32)
    rows = popular.rows()
    assert all(
        row["above"] == 0 == row["above_stderr"]
        for row in above(rows["counted"], rows["counted"]).values()
    )
    once = popular.beside(scores, np.zeros(log.test.num_news))
    assert {*once} == {*SHOWN, LIST, BARE}
    twice = replace(popular, test=log.test.select(np.repeat(np.arange(len(log.test)), 2)))
    again = twice.beside(scores, np.zeros(log.test.num_news))
    for name in SHOWN:
        one = above(once, rows["counted"])[name]
        other = above(again, twice.rows()["counted"])[name]
        assert one["above_stderr"] > 0
        assert other == pytest.approx(one)  # the same impressions again tell nothing


def test_what_was_shown_orders_a_constant_score_and_leaves_candidates_as_they_are(
    log: ClickLog,
) -> None:
    popular = popularity(log)
    train = log.train
    exposure = np.log1p(popular.counted)
    scores = np.tile(exposure.astype(np.float32), (log.test.num_users, 1))
    found = above(popular.beside(scores, exposure), popular.rows()["counted"])
    assert found[LIST]["above"] == pytest.approx(0)
    assert found["auc"]["mean"] == pytest.approx(0.5)
    assert found[BARE]["mean"] < found[LIST]["mean"]
    assert train.num_news == len(exposure)
