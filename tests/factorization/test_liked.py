"""The ranker that rating models have at once: popularity times the probability of being liked."""

import dataclasses
import itertools

import numpy as np
import pytest
from scipy import stats

from fedrec.data.interactions import Interactions
from fedrec.factorization.default_clicks.item_item import ItemItem
from fedrec.factorization.default_ratings.liked_ranker import LikedRanker
from fedrec.factorization.default_ratings.model import DefaultModel
from fedrec.factorization.rankers import ranker_of
from fedrec.factorization.released import arrays_of, model_of

ITEMS = 40


def model(seed: int = 1) -> DefaultModel:
    rng = np.random.default_rng(seed)
    return DefaultModel(
        rng.normal(size=(ITEMS, 4)),
        0.3 * rng.normal(size=ITEMS),
        np.full(ITEMS, 0.1),
        0.2,
        0.6,
        (1.0, 5.0),
    )


def events(users: int = 3, seed: int = 2) -> Interactions:
    rng = np.random.default_rng(seed)
    rows = np.repeat(np.arange(users), 6)
    items = np.concatenate([rng.permutation(ITEMS)[:6] for _ in range(users)])
    return Interactions.from_columns(
        rows,
        items,
        rng.integers(1, 6, len(rows)),
        num_users=users,
        num_items=ITEMS,
        value_range=(1.0, 5.0),
    )


@pytest.mark.parametrize("scale", [(1.0, 5.0), (0.5, 5.0), (0.0, 100.0)])
def test_the_slope_is_the_derivative_of_the_log_probability_of_liking_at_the_mean(
    scale: tuple[float, float],
) -> None:
    low, high = scale
    std = 0.22 * (high - low)
    taste = model()
    object.__setattr__(taste, "value_range", scale)
    slope = LikedRanker.of(taste, np.ones(ITEMS), std=std, value_range=scale).slope
    r = taste.offset
    h = 1e-4 * (high - low)
    line = low + 0.625 * (high - low)  # on 1 to 5: 3.5
    up, down = (stats.norm.logcdf((at - line) / std) for at in (r + h, r - h))
    assert slope == pytest.approx((up - down) / (2 * h), rel=1e-5)


def test_scores_are_log_counts_plus_the_slope_times_the_prediction() -> None:
    taste = model()
    counts = np.random.default_rng(5).uniform(1, 90, ITEMS)
    mine = events()
    ranker = LikedRanker.of(taste, counts, std=0.9, value_range=(1.0, 5.0))
    found = ranker.user_vectors(mine) @ ranker.item_vectors.T.astype(np.float64) + ranker.offset
    predicted = taste.user_vectors(mine) @ taste.item_vectors.T.astype(np.float64)
    np.testing.assert_allclose(
        found, np.log(counts) + ranker.slope * predicted, rtol=1e-5, atol=1e-5
    )


def pairs(rng: np.random.Generator, K: int = 12, r: int = 3) -> ItemItem:
    right = rng.normal(size=(K, r))
    right -= right.mean(axis=0)
    return ItemItem(
        rng.permutation(ITEMS)[:K],
        rng.normal(size=(K, r)).astype(np.float32),
        right.astype(np.float32),
        0.7,
    )


def test_pairs_decide_on_the_items_that_they_know_and_change_no_other() -> None:
    rng = np.random.default_rng(6)
    taste = model()
    counts = rng.uniform(1, 90, ITEMS)
    mine = events()
    similar = pairs(rng)
    plain = LikedRanker.of(taste, counts, std=0.9, value_range=(1.0, 5.0))
    scores = plain.user_vectors(mine) @ plain.item_vectors.T.astype(np.float64)
    both = dataclasses.replace(plain, similar=similar, blend=0.8)
    found = both.user_vectors(mine) @ both.item_vectors.T.astype(np.float64)
    others = np.setdiff1d(np.arange(ITEMS), similar.head)
    np.testing.assert_allclose(found[:, others], scores[:, others], rtol=1e-5, atol=1e-5)
    for user, (a, b) in enumerate(itertools.pairwise(mine.user_ptr)):
        known = [list(similar.head).index(j) for j in mine.items[a:b] if j in similar.head]
        e = similar.left[known].astype(np.float64).sum(axis=0) @ similar.right.T.astype(np.float64)
        s = scores[user, similar.head]
        e *= (s - s.mean()).std() / (similar.spread * np.sqrt(b - a))
        np.testing.assert_allclose(
            found[user, similar.head], 0.2 * s + 0.8 * (s.mean() + e), rtol=1e-4, atol=1e-4
        )


def test_a_ranker_with_pairs_comes_back_from_its_file() -> None:
    rng = np.random.default_rng(7)
    ranker = dataclasses.replace(
        LikedRanker.of(model(), rng.uniform(1, 90, ITEMS), std=0.9, value_range=(1.0, 5.0)),
        similar=pairs(rng),
        blend=0.8,
    )
    saved = dataclasses.replace(model(), ranker=ranker)
    read = ranker_of(model_of(arrays_of(saved), "default"))
    np.testing.assert_allclose(read.item_vectors, ranker.item_vectors, rtol=1e-5)
    np.testing.assert_allclose(
        read.user_vectors(events()), ranker.user_vectors(events()), rtol=1e-5
    )


def test_a_model_without_a_ranker_is_its_own() -> None:
    assert ranker_of(plain := model()) is plain
