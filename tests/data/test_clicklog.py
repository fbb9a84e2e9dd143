import itertools
from dataclasses import replace

import numpy as np
import pytest

from fedrec.data.clicklog import ClickLogProtocol, OrderedRatings, by_time, click_log, draw_others
from fedrec.data.impressions import Impressions
from fedrec.data.keyed_hash import first_words
from fedrec.data.planted import PlantedShape, planted, write_parquet
from fedrec.data.rated_news import news_of, read_rated_films, read_rated_news
from fedrec.errors import DataError, MalformedRowError
from fedrec.randomness import Streams

PROTOCOL = ClickLogProtocol(least_likes=6, history=8, labels=4, candidates=10)


def ratings(users: int = 200, items: int = 60, times: bool = True, seed: int = 0) -> OrderedRatings:
    """User k comes at time 1000 (users - k), so that the first are the latest; rows stand user by
    user."""
    rng = np.random.default_rng(seed)
    rows = [
        (k, int(j), rng.integers(1, 6))
        for k in range(users)
        for j in rng.permutation(items)[: rng.integers(4, 40)]
    ]
    who, what, value = (np.array(column) for column in zip(*rows, strict=True))
    stamp = 1000 * (users - who) + np.arange(len(who)) % 900 + 1
    columns = who.astype(np.int32), what.astype(np.int32), value.astype(np.float32)
    return OrderedRatings(*columns, stamp.astype(np.int64) if times else None, users, items)


@pytest.fixture(scope="module")
def log():
    return click_log(ratings(), PROTOCOL, streams=Streams(1))


def likes_in_order(data: OrderedRatings) -> list[list[int]]:
    """Of each user with enough of them."""
    likes = [
        data.items[(data.users == k) & (data.values >= 4)].tolist() for k in range(data.num_users)
    ]
    return [items for items in likes if len(items) >= PROTOCOL.least_likes]


def users_of(part: Impressions) -> list[tuple[list[int], list[int], list[list[int]], list[int]]]:
    """History, labels, others of each impression, and all likes in order, found by the history:
    parts do not say who their users are."""
    shown = part.candidates.reshape(-1, 10)
    clicked = part.clicked.reshape(-1, 10)
    found = []
    for k in range(part.num_users):
        history = part.history[part.history_ptr[k] : part.history_ptr[k + 1]].tolist()
        rows = np.flatnonzero(part.users == k)
        labels = shown[rows][clicked[rows]].tolist()
        (likes,) = [
            x
            for x in likes_in_order(ratings())
            if x[: len(history)] == history and set(labels) <= set(x)
        ]
        found.append((history, labels, [shown[i][~clicked[i]].tolist() for i in rows], likes))
    return found


@pytest.mark.slow
def test_history_is_the_first_half_of_the_likes_at_most_so_many_and_labels_come_after_it(log):
    for part in (log.train, log.validation, log.test):
        for history, labels, _, likes in users_of(part):
            assert len(history) == min(8, len(likes) // 2)
            assert len(labels) == min(4, len(likes) - len(history))
            assert not set(history) & set(labels)
            assert labels == [j for j in likes if j in labels], "labels keep the order of the likes"


@pytest.mark.slow
def test_others_are_distinct_and_always_labels_of_train_and_never_liked_by_whom_is_tested(log):
    labels_of_train = set(log.train.candidates[log.train.clicked].tolist())
    for part in (log.train, log.validation, log.test):
        for _, labels, others, likes in users_of(part):
            assert len(others) == len(labels)
            for label, row in zip(labels, others, strict=True):
                assert len({label, *row}) == 10
                assert set(row) <= labels_of_train - (set() if part is log.train else set(likes))


@pytest.mark.slow
def test_what_train_shows_does_not_tell_what_a_history_holds(log):
    """How often a user's own history and earlier labels are shown: as often as other items of their
    popularity.

    When they were left out, an item that the others of a user never show was one of that user's
    likes.
    """
    counts = np.bincount(log.train.candidates[log.train.clicked], minlength=log.train.num_news)
    shown = expected = 0.0
    for history, labels, others, _ in users_of(log.train):
        for label, row in zip(labels, others, strict=True):
            mine = [j for j in history if counts[j]]
            shown += len(set(mine) & set(row))
            weights = counts.astype(float)
            weights[label] = 0
            # with repetition: a little less than without
            inclusion = 1 - (1 - weights / weights.sum()) ** 9
            expected += inclusion[mine].sum()
    assert shown > 30
    assert shown == pytest.approx(expected, rel=0.35)


def test_the_place_of_the_click_tells_nothing(log):
    places = np.flatnonzero(log.train.clicked) % 10
    expected = len(places) / 10
    # chi-square, 9 degrees, p < 1e-6
    assert (((np.bincount(places, minlength=10) - expected) ** 2) / expected).sum() < 45


def test_test_users_are_the_latest_by_time_and_the_last_by_row_without_times():
    def test_histories(data: OrderedRatings) -> set[tuple[int, ...]]:
        part = click_log(data, replace(PROTOCOL, division="latest"), streams=Streams(1)).test
        return {tuple(part.history[a:b].tolist()) for a, b in itertools.pairwise(part.history_ptr)}

    likes = likes_in_order(ratings())  # by user number, and the first numbers are the latest users
    tenth = round(0.1 * len(likes))
    expected = [
        {tuple(mine[: min(8, len(mine) // 2)]) for mine in part}
        for part in (likes[:tenth], likes[-tenth:])
    ]
    assert test_histories(ratings()) == expected[0]
    assert test_histories(ratings(times=False)) == expected[1]
    partly = ratings()
    partly.times[np.random.default_rng(0).random(len(partly)) < 0.5] = 0
    assert test_histories(partly) == expected[0], "one known time a user is enough"
    unknown = ratings()
    unknown.times[unknown.users == 3] = 0
    assert test_histories(unknown) == expected[1], (
        "a user without any puts all users in the order of rows"
    )


def test_users_drawn_for_test_depend_on_the_streams_and_not_on_when_they_came():
    def users(division: str, seed: int) -> set[tuple[int, ...]]:
        part = click_log(
            ratings(), replace(PROTOCOL, division=division), streams=Streams(seed)
        ).test
        return {tuple(part.history[a:b].tolist()) for a, b in itertools.pairwise(part.history_ptr)}

    assert users("latest", 1) == users("latest", 2)
    drawn = [users("drawn", seed) for seed in range(8)]
    latest = users("latest", 1)
    size = len(drawn[0])
    assert all(found != latest and 0 < len(found) < 3 * size for found in drawn)
    assert len(set.union(*drawn)) > 3 * size, (
        "eight draws of a tenth meet more than three tenths of all users"
    )


def test_every_user_with_enough_likes_is_in_exactly_one_part(log):
    parts = (log.train, log.validation, log.test)
    n = len(likes_in_order(ratings()))
    assert sum(part.num_users for part in parts) == n
    # binomial numbers, within four standard deviations of about n / 10
    for part in (log.test, log.validation):
        assert abs(part.num_users - 0.1 * n) < 4 * np.sqrt(0.09 * n)


def test_the_same_streams_give_the_same_bytes_and_others_do_not(log):
    again, other = (click_log(ratings(), PROTOCOL, streams=Streams(seed)) for seed in (1, 2))
    for column in vars(log.train):
        np.testing.assert_array_equal(getattr(again.train, column), getattr(log.train, column))
    assert not np.array_equal(other.train.candidates[:50], log.train.candidates[:50])


def test_a_second_like_of_an_item_is_passed_over():
    data = ratings()
    twice = data.take(np.concatenate([np.arange(len(data)), np.arange(300)]))
    for ours, theirs in zip(
        *(vars(click_log(x, PROTOCOL, streams=Streams(1)).train).values() for x in (data, twice)),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)


def test_drawing_follows_the_weights_without_repetition():
    weights = np.array([4.0, 3, 2, 1, 0, 5])
    # user 0 owns nothing, user 1 owns item 5
    nobody = np.array([0, 0, 1], np.int64)
    last = np.array([5], np.int32)
    drawn = draw_others(
        weights,
        own_ptr=nobody,
        own=last,
        users=np.ones(20_000, np.int32),
        size=2,
        seeds=first_words(20_000),
    )
    found = np.zeros((6, 6))
    np.add.at(found, (drawn[:, 0], drawn[:, 1]), 1 / 20_000)
    p = np.array([4, 3, 2, 1, 0, 0]) / 10
    expected = p[:, None] * p / (1 - p[:, None]) * (1 - np.eye(6))
    assert np.abs(found - expected).max() < 5.5 * np.sqrt(0.2 / 20_000)  # p < 1e-6 over all pairs


def test_too_few_items_to_draw_from_are_refused_and_not_waited_for():
    with pytest.raises(DataError, match="2 items left to draw 3 others"):
        draw_others(
            np.array([1, 1, 1, 0]), own_ptr=np.array([0, 1]), own=np.array([0], np.int32),
            users=np.zeros(1, np.int32), size=3,
            seeds=first_words(1),
        )  # fmt: skip
    with pytest.raises(DataError, match="leave none for"):
        click_log(ratings(users=3), PROTOCOL, streams=Streams(0))


@pytest.mark.parametrize("change", [{"candidates": 1}, {"test_share": 0.0}, {"least_likes": 1}])
def test_protocols_that_cannot_be_are_refused(change):
    with pytest.raises(ValueError):
        replace(PROTOCOL, **change)


def write_films(
    folder, rows, films="7::Seven Up (1964)::Drama|War\n9::Nine::Comedy\n", metadata=None
):
    (folder / "ratings.dat").write_text(rows)
    (folder / "movies.dat").write_text(films, encoding="latin-1")
    if metadata:
        (folder / "metadata.jsonl").write_text(metadata)
    return folder


def test_films_keep_the_order_of_the_file_unless_every_row_has_a_time(tmp_path):
    ordered = read_rated_films(write_films(tmp_path, "5::9::4::0\n5::7::5::30\n2::7::3::20\n"))
    assert list(zip(ordered.ratings.users, ordered.ratings.items, strict=True)) == [
        (1, 1),
        (1, 0),
        (0, 0),
    ]
    timed = read_rated_films(write_films(tmp_path, "5::9::4::40\n5::7::5::30\n2::7::3::20\n"))
    assert list(zip(timed.ratings.users, timed.ratings.items, strict=True)) == [
        (0, 0),
        (1, 0),
        (1, 1),
    ]


@pytest.mark.filterwarnings("ignore::fedrec.errors.UnknownIdsWarning")
def test_films_become_news_with_plot_genres_and_people(tmp_path):
    record = (
        '{"movieId": 7, "plot": "Children grow.", "director": "Paul Almond", "actors": "Bruce '
        'Balden, Paul Almond"}\n'
    )
    news = read_rated_films(write_films(tmp_path, "1::7::5::1\n", metadata=record)).news
    assert news.titles == ("Seven Up", "Nine")
    assert news.abstracts == ("Children grow.", "")
    assert news.categories == ("Drama", "Comedy")
    assert news.subcategories == ("Drama|War", "Comedy")
    assert news.entities == (("Paul Almond", "Bruce Balden"), ())


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("1::7::5::1\n1::8::5::1\n", "line 2: expected a film of the films file, found '8'"),
        ("1::7::5::1\n2::7::5::1\n1::7::4::2\n", "line 3: expected one row per user and film"),
        ("1::7::5::1\n2::7::five::1\n", "line 2: expected a rating"),
    ],
)
def test_bad_rows_are_named(tmp_path, rows, said):
    with pytest.raises(MalformedRowError, match=said):
        read_rated_films(write_films(tmp_path, rows))


def test_any_other_data_set_with_times_becomes_a_log_in_the_order_of_its_times(tmp_path):
    shape = PlantedShape(users=60, items=120, events=2000)
    items = write_parquet(tmp_path, shape, seed=1)[-1]
    options = {
        "rating": "rating",
        "timestamp": "timestamp",
        "rating_range": (1, 5),
        "item_features": str(items),
    }
    rated = read_rated_news(tmp_path, "table", **options)
    assert np.all(np.diff(rated.ratings.times) >= 0)
    assert len(rated.news) == 120
    assert all(
        category in several.split("|")
        for category, several in zip(rated.news.categories, rated.news.subcategories, strict=True)
    )
    log = click_log(rated.ratings, replace(PROTOCOL, liked=3.0), streams=Streams(0))
    assert len(log.train) > 100


def test_a_data_set_without_times_has_no_order():
    data = planted(PlantedShape(users=20, items=40, events=220), seed=1)
    assert len(news_of(data)) == 40
    with pytest.raises(DataError, match="no time"):
        by_time(replace(data.interactions, times=None))


@pytest.mark.slow
def test_ml_1m_is_a_benchmark_on_which_popularity_says_little(real_data):
    rated = read_rated_news(real_data / "ml-1m")
    log = click_log(rated.ratings, streams=Streams(0))
    assert (len(rated.news), rated.ratings.num_users) == (3883, 6040)
    assert 4000 < log.train.num_users < 4400
    assert 55_000 < len(log.train) < 65_000
    counts = np.bincount(log.train.candidates[log.train.clicked], minlength=3883)
    shown = counts[log.test.candidates].reshape(-1, 37)
    click = shown[log.test.clicked.reshape(-1, 37)][:, None]
    above = (shown < click).sum(axis=1) + 0.5 * ((shown == click).sum(axis=1) - 1)
    assert np.mean(above) / 36 == pytest.approx(0.52, abs=0.03)
    assert rated.news.abstracts[0].startswith("A cowboy doll")
