from dataclasses import replace

import numpy as np
import pytest

from fedrec.data.impressions import Impressions
from fedrec.data.planted_news import NEWS_SHAPES, PlantedNewsShape, _interests, planted_news
from fedrec.evaluation.impressions import evaluate_impressions, history_swap

SHAPE = PlantedNewsShape(users=600, news=1200, history_mean=20, impressions_mean=6)


@pytest.fixture(scope="module")
def data():
    return planted_news(SHAPE, seed=3)


def parts(data) -> dict[str, Impressions]:
    return {name: getattr(data.log, name) for name in ("train", "validation", "test")}


def test_sizes_are_the_declared_ones(data):
    assert len(data.news) == 1200
    assert [part.num_users for part in parts(data).values()] == [486, 54, 60]
    for name, part in parts(data).items():
        assert part.num_news == 1200
        assert set(np.diff(part.candidate_ptr)) == {37}
        assert data.utilities[name].shape == part.candidates.shape
        assert len(np.unique(part.users)) == part.num_users
    train = data.log.train
    assert len(train.history) / train.num_users == pytest.approx(20, rel=0.2)
    assert len(train) / train.num_users == pytest.approx(6, rel=0.1)


def test_mind_smalls_sizes_are_declared():
    shape = NEWS_SHAPES["mind-small"]
    assert (shape.users, shape.news, shape.candidates) == (50_000, 51_282, 37)


def test_candidates_are_distinct_and_no_click_is_also_in_the_history_or_in_a_later_impression(data):
    part = data.log.train
    rows = part.candidates.reshape(-1, 37)
    assert all(len(set(row)) == 37 for row in rows.tolist())
    clicks: list[set[int]] = [
        set(part.history[a:b].tolist())
        for a, b in zip(part.history_ptr[:-1], part.history_ptr[1:], strict=True)
    ]
    assert [len(c) for c in clicks] == np.diff(part.history_ptr).tolist()
    for user, row, clicked in zip(part.users, rows, part.clicked.reshape(-1, 37), strict=True):
        assert not clicks[user] & set(row.tolist())
        clicks[user] |= set(row[clicked].tolist())


def test_one_click_an_impression_or_two_in_the_declared_share():
    assert {
        int(row.sum()) for row in planted_news(SHAPE, seed=1).log.train.clicked.reshape(-1, 37)
    } == {1}
    some = (
        planted_news(replace(SHAPE, several=0.25), seed=1)
        .log.train.clicked.reshape(-1, 37)
        .sum(axis=1)
    )
    assert set(some) == {1, 2}
    assert abs(np.mean(some == 2) - 0.25) < 5 * np.sqrt(0.25 * 0.75 / len(some))  # p < 1e-6


def test_the_place_of_the_click_tells_nothing(data):
    places = np.flatnonzero(data.log.train.clicked) % 37
    expected = len(places) / 37
    # chi-square, 36 degrees of freedom, p < 1e-6
    assert (((np.bincount(places, minlength=37) - expected) ** 2) / expected).sum() < 91


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(data):
    again = planted_news(SHAPE, seed=3)
    other = planted_news(SHAPE, seed=4)
    assert again.news == data.news
    assert other.news != data.news
    for name, part in parts(data).items():
        for column, values in vars(part).items():
            np.testing.assert_array_equal(getattr(getattr(again.log, name), column), values)
        np.testing.assert_array_equal(again.utilities[name], data.utilities[name])
    assert not np.array_equal(other.log.train.candidates[:500], data.log.train.candidates[:500])


def subcategory_counts(data):
    """A personal score from what anybody can see: how often the history has the candidate's
    subcategory, and its category."""
    kinds = [
        np.unique(column, return_inverse=True)[1]
        for column in (data.news.subcategories, data.news.categories)
    ]

    def score(part: Impressions) -> np.ndarray:
        total = np.zeros(len(part.candidates))
        for kind in kinds:
            counts = np.zeros((part.num_users, kind.max() + 1))
            np.add.at(
                counts,
                (
                    np.repeat(np.arange(part.num_users), np.diff(part.history_ptr)),
                    kind[part.history],
                ),
                1,
            )
            total += counts[np.repeat(part.users, 37), kind[part.candidates]]
        return total

    return score


@pytest.mark.slow
def test_the_truth_ranks_far_above_popularity_and_is_learnable_from_histories(data):
    train = data.log.train
    test = data.log.test
    seen = np.bincount(train.history, minlength=1200) + np.bincount(
        train.candidates[train.clicked], minlength=1200
    )
    popularity = evaluate_impressions(seen[test.candidates].astype(float), test).auc
    oracle = evaluate_impressions(data.utilities["test"], test).auc
    counted = evaluate_impressions(subcategory_counts(data)(test), test).auc
    swapped = history_swap(subcategory_counts(data), test, rng=np.random.default_rng(0)).auc
    assert popularity < 0.62
    assert oracle > 0.8
    assert popularity + 0.05 < counted < oracle
    assert swapped < counted - 0.07


def test_clicks_follow_the_softmax_of_the_utilities(data):
    utility = data.utilities["train"].reshape(-1, 37).astype(float)
    chance = np.exp(utility - utility.max(axis=1, keepdims=True))
    chance /= chance.sum(axis=1, keepdims=True)
    hit = data.log.train.clicked.reshape(-1, 37)
    # The sum of the clicked candidates' chances has this mean and variance under the softmax.
    mean = (chance**2).sum()
    variance = ((chance**3).sum(axis=1) - (chance**2).sum(axis=1) ** 2).sum()
    assert abs(chance[hit].sum() - mean) < 5 * np.sqrt(variance)  # p < 1e-6


def test_interests_drift_so_that_late_clicks_say_more_than_early_ones():
    data = planted_news(replace(SHAPE, users=3000, drift=1.0, history_mean=24), seed=5)
    part = data.log.train
    kind = np.unique(data.news.categories, return_inverse=True)[1]

    def auc(table: np.ndarray) -> float:
        counts = np.zeros((part.num_users, 18))
        users = np.repeat(np.arange(part.num_users), table.shape[1])[table.ravel() >= 0]
        np.add.at(counts, (users, kind[table.ravel()[table.ravel() >= 0]]), 1)
        return evaluate_impressions(
            counts[np.repeat(part.users, 37), kind[part.candidates]], part
        ).auc

    starts = part.history_ptr[:-1, None] + np.arange(5)
    early = np.where(
        starts < part.history_ptr[1:, None],
        part.history[np.minimum(starts, len(part.history) - 1)],
        -1,
    )
    assert auc(part.last_clicks(5)) > auc(early) + 0.02


def test_texts_tell_the_category_and_the_subcategory(data):
    news = data.news
    for j in range(0, 1200, 97):
        title = news.titles[j].split()
        assert len(title) == 9
        assert sum(word.rstrip("0123456789") == news.categories[j] for word in title) == 3
        assert news.subcategories[j].startswith(news.categories[j])
        assert len(news.abstracts[j].split()) == 24
        assert news.entities[j]


@pytest.mark.parametrize("change", [{"users": 5}, {"drift": 2.0}, {"news": 100}])
def test_sizes_that_cannot_be_are_refused(change):
    with pytest.raises(ValueError):
        replace(SHAPE, **change)


def test_tastes_join_categories_that_interests_keep_apart_without_them():
    """Correlations of interests between categories over 4,000 people: at random a standard
    deviation of .016."""
    apart, joined = (
        _interests(replace(SHAPE, users=4000, tastes=tastes), np.random.default_rng(5))[0]
        for tastes in (0, 4)
    )
    between = {}
    for name, wide in (("apart", apart), ("joined", joined)):
        categories = wide.reshape(4000, 18, SHAPE.subcategories).mean(axis=2)
        between[name] = np.corrcoef(categories.T)[np.triu_indices(18, 1)]
        assert wide.std() == pytest.approx(SHAPE.strength, rel=0.05)
    assert np.abs(between["apart"]).max() < 0.09  # p < 1e-5 over 153 pairs
    assert np.sqrt(np.mean(between["joined"] ** 2)) > 0.2
