"""Ids of which nothing or part is known, and the containers of a history: no door is silent."""

from __future__ import annotations

import warnings
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas
import polars as pl
import pytest
from scipy import sparse

import fedrec
from fedrec.api.histories import Histories, warn_of_unknown

Model = fedrec.Recommender


@pytest.fixture(scope="module")
def rated() -> Model:
    data = fedrec.Dataset.planted("small")
    return fedrec.MatrixFactorization(epsilon=50, noise="seeded").fit(data)


@pytest.fixture(scope="module")
def clicked() -> Model:
    return fedrec.ItemItem(noise="seeded").fit(fedrec.Dataset.planted("small", kind="clicks"))


SAME: dict[str, Any] = {
    "a mapping": {"3": 5, "14": 1},
    "a Series by text": pandas.Series({"3": 5, "14": 1}),
    "a Series by number": pandas.Series({3: 5, 14: 1}),
    "a Series of floats": pandas.Series([5.0, 1.0], index=[3, 14]),
    "a column by an index of items": pandas.DataFrame(
        {"movie_id": [3, 14], "stars": [5, 1]}
    ).set_index("movie_id")["stars"],
    "a frame of pandas": pandas.DataFrame({"item": [3, 14], "rating": [5, 1]}, index=[7, 8]),
    "a frame of polars": pl.DataFrame({"movieId": ["3", "14"], "stars": [5, 1]}),
    "a lazy frame": pl.LazyFrame({"item_id": [3, 14], "score": [5, 1]}),
    "a frame of one user": pl.DataFrame({"user": [1, 1], "item": [3, 14], "rating": [5, 1]}),
    "a dict of columns": {"item": [3, 14], "rating": [5, 1]},
}
IDS: dict[str, Any] = {
    "a list": ["3", "14"],
    "numbers": [3, 14],
    "a set": {"3", "14"},
    "a deque": deque(["3", "14"]),
    "keys": {"3": 1, "14": 2}.keys(),
    "an array": np.array([3, 14]),
    "a Series": pandas.Series(["3", "14"]),
    "a column of items": pandas.DataFrame({"item": [3, 14]}, index=[2, 5])["item"],
    "texts under numbers": pandas.Series(["3", "14"], index=[2, 5]),
    "a categorical": pandas.Series(["3", "14"], dtype="category"),
    "an index": pandas.Index(["3", "14"]),
    "a Series of polars": pl.Series(["3", "14"]),
    "a frame of ids": pl.DataFrame({"item": [3, 14]}),
}
REFUSED: dict[str, tuple[Any, str]] = {
    "pairs in a set": ({("3", 5), ("14", 1)}, "an id is a tuple"),
    "pairs in a list": ([["3", 5]], "an id is a list"),
    "pairs of items()": ({"3": 5}.items(), "an id is a tuple"),
    "two dimensions": (np.array([[3, 5], [14, 1]]), "shape"),
    "no dimension": (np.array(3), "shape"),
    "records": (np.array([(3, 5)], dtype=[("i", int), ("r", int)]), "an id is a tuple"),
    "a sparse row": (sparse.csr_matrix(np.eye(3)), "csr_matrix"),
    "a sparse array": (sparse.csr_array(np.eye(3)), "csr_array"),
    "several levels": (pandas.MultiIndex.from_tuples([(3, 5)]), "an id is a tuple"),
    "ratings of no item": (pandas.DataFrame({"rating": [5, 1]})["rating"], "without an index"),
    "two users": (pl.DataFrame({"user": [1, 2], "item": [3, 14]}), "holds 2 users"),
    "a frame without items": (pl.DataFrame({"what": [3]}), "no columns of items"),
    "two columns of ratings": (pl.DataFrame({"item": [3], "stars": [1], "score": [2]}), "several"),
    "bytes": ([b"3"], "an id is a bytes"),
    "a text": ("314", "is one text"),
    "a number": (3, "is a int"),
    "no rating": ({"3": None}, "is no number"),
    "a rating that is missing": (pandas.Series({"3": float("nan")}), "is no number"),
    "a rating that is text": ({"3": "5"}, "is no number"),
    "a missing id": (["3", None], "in the place of an id"),
    "an id of a float": ([3.0], "but it has '3'"),
    "an id with a blank": (["3 "], "but it has '3'"),
    "two ratings": ({"3": 5, 3: 1}, "rates item '3' 5 and 1"),
    "nothing known": (["NOPE"], "1 of the 1 ids"),
    "ids with zeros in front": (["003", "014"], "2 of the 2 ids .* no '003', and ids such as '1'"),
    "nothing known in a Series": (pandas.Series({"x": 5.0}), "1 of the 1 ids"),
}
DOORS: dict[str, Callable[[Model, Any], Any]] = {
    "recommend": lambda model, history: model.recommend(history=history, k=3),
    "histories": lambda model, history: model.recommend(histories={"ann": history}, k=3),
    "predict": lambda model, history: model.predict(history=history, items=["7"]),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("case", SAME)
def test_ratings_by_item_are_read_from_every_container(rated: Model, case: str, door: str) -> None:
    assert DOORS[door](rated, SAME[case]).equals(DOORS[door](rated, {"3": 5, "14": 1}))


@pytest.mark.parametrize("case", IDS)
def test_ids_are_read_from_every_container(rated: Model, clicked: Model, case: str) -> None:
    for model in (rated, clicked):
        assert model.recommend(history=IDS[case]).equals(model.recommend(history=["3", "14"]))
    assert clicked.recommend(history=(i for i in (3, 14))).equals(
        clicked.recommend(history=[3, 14])
    )


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_history_is_refused_by_name(rated: Model, case: str, door: str) -> None:
    history, said = REFUSED[case]
    with pytest.raises(fedrec.DataError, match=said) as refused:
        DOORS[door](rated, history)
    assert refused.value.remedy


@pytest.mark.parametrize("door", DOORS)
def test_unknown_ids_are_counted_with_one_of_each_side(clicked: Model, door: str) -> None:
    with pytest.warns(fedrec.UnknownIdsWarning, match=r"2 of the 3 .* no 'x', .* as '1'") as said:
        DOORS[door](clicked, ["3", "x", "y"])
    assert said[0].filename == __file__
    with pytest.warns(fedrec.UnknownIdsWarning, match="of 1 of 2 users nothing is known"):
        clicked.recommend(histories={"ann": ["3"], "bob": ["x"]})


def test_many_histories_may_be_one_frame(rated: Model) -> None:
    log = pl.DataFrame({"user": ["bob", "ann", "bob"], "item": [3, 14, 5], "rating": [5, 1, 2]})
    wanted = rated.recommend(histories={"bob": {3: 5, 5: 2}, "ann": {14: 1}})
    assert rated.recommend(histories=log).equals(wanted)


def test_the_columns_of_the_training_data_are_those_of_a_history() -> None:
    log = {"who": [1, 1, 2, 2], "what": ["a", "b", "a", "c"], "plus": [1, 5, 2, 4]}
    columns = {"user": "who", "item": "what", "rating": "plus"}
    data = fedrec.Dataset.from_frame(log, **columns, rating_range=(1, 5))
    read = Histories(data.source.columns)
    assert read.entries(pl.DataFrame(log)[:2]) == [("a", 1), ("b", 5)]
    assert read.entries(pandas.Series(["a", "b"], index=[4, 9], name="what"))[0] == ("a", None)


def test_news_of_a_frame_are_read_oldest_first() -> None:
    log = pl.DataFrame({"news_id": ["N2", "N1"], "time": ["2026-02-01", "2026-01-01"]})
    assert [item for item, _ in Histories().entries(log)] == ["N1", "N2"]
    with pytest.raises(fedrec.DataError, match="2 of the 2 ids"):
        warn_of_unknown([["N1", "N2"]], {"n1"}, "n1")


@pytest.mark.parametrize("history", [{"3": 0}, {"3": False}, {"3": -1}, pandas.Series({"3": 0})])
def test_what_was_not_liked_is_no_click(clicked: Model, history: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(fedrec.DataError, match="the model knows clicks"):
            clicked.recommend(history=history)


@pytest.mark.parametrize("history", [Counter("3345"), {"3": 1.5}, pl.DataFrame(SAME["a mapping"])])
def test_values_that_a_model_of_clicks_does_not_use_are_said(clicked: Model, history: Any) -> None:
    history = {"item": [3], "plays": [9]} if isinstance(history, pl.DataFrame) else history
    with pytest.warns(fedrec.UnusedColumnsWarning, match="not used"):
        clicked.recommend(history=history)


def test_two_people_of_histories_have_two_ids() -> None:
    with pytest.raises(fedrec.DataError, match="two users of histories are '1'"):
        Histories().by_user({1: ["a"], "1": ["b"]})
