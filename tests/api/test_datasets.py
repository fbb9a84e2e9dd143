"""Data frames as data sets: polars, pandas, Arrow and mappings give the same rows, and what is
wrong is said with a remedy."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import fedrec
from fedrec.errors import DataError, FedRecError, LeakageError, SettingsError

STARS = {
    "user_id": ["ann", "ann", "bob", "bob", "eve"],
    "movie": [10, 20, 10, 30, 30],
    "stars": [5.0, 3.0, 4.0, 1.0, 2.0],
    "at": ["2024-01-01", "2024-01-02", "2024-02-01", "2024-03-01", "2024-03-02"],
}
NAMES: dict[str, Any] = {"user": "user_id", "item": "movie"}
RATED: dict[str, Any] = {**NAMES, "rating": "stars", "rating_range": (1, 5)}


class ArrowOnly:
    """A table of which nothing is known but the Arrow C stream."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self._frame = frame

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._frame.__arrow_c_stream__(requested_schema)


def same(one: fedrec.Dataset, other: fedrec.Dataset) -> None:
    a = one.source.interactions
    b = other.source.interactions
    for left, right in ((a.user_ptr, b.user_ptr), (a.items, b.items), (a.values, b.values)):
        np.testing.assert_array_equal(left, right)
    assert (a.times is None) == (b.times is None)
    if a.times is not None and b.times is not None:
        np.testing.assert_array_equal(a.times, b.times)
    assert one.source.catalogue == other.source.catalogue


@pytest.mark.parametrize(
    "kind",
    [pl.DataFrame, pd.DataFrame, dict, pl.LazyFrame, lambda rows: ArrowOnly(pl.DataFrame(rows))],
)
def test_every_kind_of_frame_is_the_same_data_set(kind: Any) -> None:
    expected = fedrec.Dataset.from_frame(pl.DataFrame(STARS), **RATED, time="at")
    same(fedrec.Dataset.from_frame(kind(STARS), **RATED, time="at"), expected)
    assert repr(expected) == "Dataset(ratings, 3 users, 3 items, 5 events)"


def test_a_frame_and_the_parquet_file_it_came_from_are_the_same_data_set(tmp_path: Path) -> None:
    frame = pl.DataFrame(STARS)
    frame.write_parquet(tmp_path / "log.parquet")
    columns = {"user": "user_id", "item": "movie", "rating": "stars", "timestamp": "at"}
    of_file = fedrec.Dataset.from_file(
        tmp_path / "log.parquet", columns=columns, rating_range=(1, 5)
    )
    same(fedrec.Dataset.from_frame(frame, **RATED, time="at"), of_file)


PAIRS: dict[str, Any] = {"user": [1, 1, 2], "item": [1, 2, 1]}
NO_FRAMES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "nothing": (None, {}, "a NoneType is no frame"),
    "a series": (pl.Series([1, 2]), {}, "a Series is no frame"),
    "a series of pandas": (pd.Series([1, 2]), {}, "a Series is no frame"),
    "one column twice": (PAIRS, {"user": "item"}, "user and item are both the column 'item'"),
    "bytes": ({**PAIRS, "user": [b"a", b"b", b"c"]}, {}, "'user' holds bytes"),
    "objects": (pd.DataFrame({**PAIRS, "item": [uuid.UUID(int=n) for n in range(3)]}), {},
    "'item' holds Python objects"),
    "tuples": ({**PAIRS, "user": [(1, 2), (1, 3), (2, 3)]}, {}, "'user' holds lists or records"),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_FRAMES)
def test_what_is_no_frame_of_ids_is_refused_with_its_column(name: str) -> None:
    frame, options, cause = NO_FRAMES[name]
    with pytest.raises(FedRecError) as failure:
        fedrec.Dataset.from_frame(frame, **options)
    assert cause in failure.value.cause
    assert failure.value.remedy


@pytest.mark.parametrize(("folder", "name"), [("/dev/null", "data"), ("", "a/b")])
def test_recbole_files_that_cannot_be_written_are_said(
    folder: str, name: str, tmp_path: Path
) -> None:
    with pytest.raises(FedRecError, match=r"cannot be written|is none of a file"):
        fedrec.Dataset.from_frame(PAIRS).to_recbole(folder or tmp_path, name=name)


NOTHING_LEFT: dict[str, tuple[dict[str, Any], str]] = {
    "a wrong scale": ({"rating_range": (10, 100), "out_of_range": "drop"}, "no rating of frame"),
    "a threshold above the scale": ({"click_threshold": 6.0}, "none counts as a click"),
    "a scale without an end": ({"rating_range": (1, float("inf"))}, "is no scale"),
    "one number": ({"rating_range": 5}, "is no scale"),
    "words": ({"rating_range": ("1", "5")}, "is no scale"),
}


@pytest.mark.parametrize("name", NOTHING_LEFT)
def test_data_of_which_nothing_is_left_is_refused(name: str) -> None:
    options, cause = NOTHING_LEFT[name]
    with pytest.raises(FedRecError, match=cause):
        fedrec.Dataset.from_frame(STARS, **{**RATED, **options})


@pytest.mark.parametrize(
    ("unit", "each"),
    [("", 1), ("milliseconds", 10**3), ("microseconds", 10**6), ("nanoseconds", 10**9)],
)
def test_units_of_times_are_told_by_their_size(unit: str, each: int) -> None:
    seconds = [978_300_760, 1_600_000_000, 1_700_000_000]
    log = {"user": [1, 1, 2], "item": [1, 2, 1], "at": [second * each for second in seconds]}
    data = fedrec.Dataset.from_frame(log, time="at")
    assert data.source.interactions.times is not None
    assert data.source.interactions.times.tolist() == seconds
    assert any(f"times are in {unit}, guessed" in note for note in data.notes) == bool(unit)


def test_a_time_that_is_none_is_shown_as_it_was_given() -> None:
    log = {"user": [1, 2], "item": [1, 2], "at": ["2020-02-01", "01/02/2020"]}
    with pytest.raises(DataError, match=r"row 1 .*: expected a time .* as at, found '01/02/2020'"):
        fedrec.Dataset.from_frame(log, time="at")
    log["at"][1] = "978300760"
    with pytest.raises(DataError, match=r"one kind .the first is a date. as at"):
        fedrec.Dataset.from_frame(log, time="at")


def test_whole_floats_are_the_ids_that_they_were_before_a_value_was_missing() -> None:
    items = pd.DataFrame({"item": [10, 20, 30], "title": ["a", "b", "c"]})
    log = {"user": [1.0, 1.0, 2.0], "item": [10.0, 20.0, 10.0]}
    data = fedrec.Dataset.from_frame(pd.DataFrame(log), items=items)
    assert data.item_ids == (10, 20, 30)
    assert data.source.catalogue.user_ids == ("1", "2")
    floats = fedrec.Dataset.from_frame(log, items=items.astype({"item": float}))
    assert floats.item_ids == data.item_ids
    with pytest.raises(DataError, match=r"row 1 .* found '1.5'"):
        fedrec.Dataset.from_frame({**log, "item": [10.0, 1.5, 10.0]})


@pytest.mark.parametrize("gap", [float("nan"), float("inf"), None])
@pytest.mark.parametrize("column", ["user", "item"])
def test_a_gap_in_a_column_of_ids_is_nobody_and_nothing(column: str, gap: Any) -> None:
    log: dict[str, Any] = {"user": [1.0, 1.0, 2.0], "item": [10.0, 20.0, 10.0]}
    log[column][1] = gap
    for frame in (log, pd.DataFrame(log), pl.DataFrame(log)):
        with pytest.raises(DataError, match=r"row 1 .*rows lack a value"):
            fedrec.Dataset.from_frame(frame)


def test_a_table_of_items_that_names_none_of_them_is_refused() -> None:
    with pytest.raises(DataError, match="none of the 2 items") as failure:
        fedrec.Dataset.from_frame(
            {"user": [1, 2], "item": ["i1", "i2"]}, items={"item": [1, 2], "title": ["a", "b"]}
        )
    assert "'1'" in failure.value.remedy
    assert "'i1'" in failure.value.remedy


def test_dates_of_pandas_are_times() -> None:
    frame = pd.DataFrame({**STARS, "at": pd.to_datetime(STARS["at"])})
    same(
        fedrec.Dataset.from_frame(frame, **RATED, time="at"),
        fedrec.Dataset.from_frame(STARS, **RATED, time="at"),
    )


def test_repeated_clicks_are_merged_and_counted_and_repeated_ratings_resolved_as_asked() -> None:
    clicks = fedrec.Dataset.from_frame({"user": [1, 1, 2], "item": ["a", "a", "b"]})
    assert len(clicks) == 2
    assert clicks.notes[0] == "1 repeated rows merged"
    twice = {"user": [1, 1], "item": ["a", "a"], "stars": [1.0, 3.0]}
    mean = fedrec.Dataset.from_frame(twice, rating="stars", rating_range=(1, 5), duplicates="mean")
    assert mean.source.interactions.values.tolist() == [2.0]


def test_a_threshold_makes_clicks_of_ratings() -> None:
    clicks = fedrec.Dataset.from_frame(STARS, **RATED, click_threshold=4)
    assert (clicks.kind, len(clicks)) == ("clicks", 2)
    assert len(fedrec.Dataset.from_frame(STARS, **NAMES, click_threshold=4)) == 2  # no scale needed


def test_items_come_with_titles_and_features() -> None:
    items = pd.DataFrame(
        {
            "movie": [10, 20, 30, 40],
            "title": ["Ten", "Twenty", "Thirty", "Forty"],
            "genre": ["a|b", "a", None, "b"],
        }
    )
    data = fedrec.Dataset.from_frame(STARS, **RATED, items=items)
    assert data.item_ids == (10, 20, 30, 40)
    assert data.source.catalogue.titles == ("Ten", "Twenty", "Thirty", "Forty")
    assert data.source.features.bags["genre"].counts.toarray().tolist() == [
        [1, 1],
        [1, 0],
        [0, 0],
        [0, 1],
    ]


def test_data_that_comes_divided_is_split_as_it_came() -> None:
    first = pl.DataFrame(STARS).head(3)
    last = pl.DataFrame(STARS).tail(2).with_columns(movie=pl.lit(20))
    with pytest.warns(fedrec.UnknownIdsWarning, match="training names"):
        train, test = fedrec.Dataset.from_frame(first, **RATED, test=last).split()
    assert (len(train), len(test)) == (3, 2)
    with pytest.raises(LeakageError):
        fedrec.Dataset.from_frame(first, **RATED, test=first).split()


BAD: dict[str, tuple[Any, dict[str, Any], str, str]] = {
    "a list": ([1, 2], {}, "a list is no frame", "polars or pandas"),
    "no such column": (
        STARS,
        {"user": "userid", "item": "movie"},
        "no column 'userid'",
        "Did you mean 'user_id'",
    ),
    "a mistyped column": (
        STARS,
        {"user": "user_id", "item": "movi"},
        "no column 'movi'",
        "Did you mean 'movie'",
    ),
    "a mistyped time": (STARS, {**NAMES, "time": "att"}, "no column 'att'", "time="),
    "no scale": (STARS, {**NAMES, "rating": "stars"}, "no rating_range", "[1, 5]"),
    "a scale upside down": (STARS, {**RATED, "rating_range": (5, 1)}, "is no scale", "[1, 5]"),
    "off the scale": (STARS, {**RATED, "rating_range": (1, 4)}, "row 0", "clip"),
    "text for ratings": (
        {**STARS, "stars": list("abcde")},
        RATED,
        "a finite number as stars",
        "Fill the value",
    ),
    "a missing user": (
        {**STARS, "user_id": ["ann", None, "bob", "bob", "eve"]},
        RATED,
        "row 1",
        "Fill the value",
    ),
    "not a time": ({**STARS, "at": ["x"] * 5}, {**RATED, "time": "at"}, "row 0", "Fill the value"),
    "twice": ({**STARS, "movie": [10, 10, 10, 30, 30]}, RATED, "row 1", "duplicates"),
    "an unknown policy": (STARS, {**RATED, "duplicates": "first"}, "not a policy", "last"),
    "no rows": (
        {"user_id": [], "movie": [], "stars": []},
        RATED,
        "holds no rows",
        "row for each event",
    ),
    "a threshold without ratings": (
        {"user_id": [1, 2], "movie": [10, 20]},
        {**NAMES, "click_threshold": 4},
        "no column 'rating'",
        "columns are user_id, movie",
    ),
    "an item twice": (STARS, {**RATED, "items": {"movie": [10, 10]}}, "items, row 1", "one row"),
    "uneven columns": ({"user": [1], "item": [1, 2]}, {}, "cannot be read", "one type"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_frame_is_refused_with_its_cause_and_a_remedy(name: str) -> None:
    frame, keywords, cause, remedy = BAD[name]
    with pytest.raises(FedRecError) as failure:
        fedrec.Dataset.from_frame(frame, **keywords)
    assert cause in failure.value.cause
    assert remedy in failure.value.remedy
    assert failure.value.__notes__ == [f"remedy: {failure.value.remedy}"]  # which a traceback shows
    assert isinstance(failure.value, (DataError, SettingsError))


def test_recbole_reads_what_is_written_and_gives_the_same_events(tmp_path: Path) -> None:
    items = pd.DataFrame(
        {
            "movie": [10, 20, 30],
            "title": ["Ten", "Twenty one", "Thirty"],
            "genre": ["a|b c", "a", None],
        }
    )
    data = fedrec.Dataset.from_frame(STARS, **RATED, time="at", items=items)
    folder = data.to_recbole(tmp_path, "films")
    assert (folder / "films.inter").read_text().splitlines()[
        0
    ] == "user_id:token\titem_id:token\trating:float\ttimestamp:float"
    again = fedrec.Dataset.from_file(folder, "recbole", rating_range=(1, 5))
    same(again, data)
    assert again.source.features.bags["genre"].vocabulary == ("a", "b_c")
    with pytest.raises(DataError, match="not empty"):
        data.to_recbole(tmp_path, "films")
