"""Ids that went through a float, rows that are double, and tables as people have them, by every
door that reads rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import fedrec
from fedrec.api.histories import Histories
from fedrec.data.frames import items_of_frame, read_frame
from fedrec.data.interactions import Dataset
from fedrec.data.item_tables import read_item_table
from fedrec.data.read import read
from fedrec.data.table_batches import row_batches
from fedrec.data.tables import TableOptions, asked_table
from fedrec.errors import DataError, SettingsError

Door = Callable[[Path, dict[str, list[Any]], dict[str, Any]], Any]


def _file(suffix: str) -> Door:
    def act(folder: Path, rows: dict[str, list[Any]], options: dict[str, Any]) -> Dataset:
        path = folder / f"log{suffix}"
        frame = pl.DataFrame(rows, strict=False)
        {".csv": frame.write_csv, ".jsonl": frame.write_ndjson, ".parquet": frame.write_parquet}[
            suffix
        ](path)
        asked = asked_table(path, TableOptions(**options))
        list(row_batches(asked))
        return read(path, **options)

    return act


DOORS: dict[str, Door] = {
    "frame": lambda _, rows, options: read_frame(
        rows, **{"time" if k == "timestamp" else k: v for k, v in options.items()}
    ),
    "csv": _file(".csv"),
    "json": _file(".jsonl"),
    "parquet": _file(".parquet"),
}
FLOATED: dict[str, list[Any]] = {
    "Excel's": ["7.65611979709825E+16", "a", "b"],
    "R's": ["1e+05", "a", "b"],
    "a point": ["472.0", "471", "a"],
    "a decimal among integers": ["472.5", "471", "7"],
    "of 64 bits": [float(2**53), 1.0, 2.0],
    "of 64 bits, no integer": [1.5, 1.0, 2.0],
}


@pytest.mark.parametrize("column", ["user", "item"])
@pytest.mark.parametrize("name", FLOATED)
@pytest.mark.parametrize("door", DOORS)
def test_an_id_that_went_through_a_float_is_refused_with_its_row(
    door: str, name: str, column: str, tmp_path: Path
) -> None:
    rows: dict[str, list[Any]] = {"user": ["a", "b", "c"], "item": ["x", "y", "z"]}
    rows[column] = FLOATED[name]
    first = "row 0" if door == "frame" else "line 2" if door == "csv" else "line 1"
    with pytest.raises(DataError, match=f"{first}.*expected an id as text or as an integer"):
        DOORS[door](tmp_path, rows, {})


def test_floats_of_32_bits_items_and_histories_are_refused_and_names_are_not(
    tmp_path: Path,
) -> None:
    narrow = pl.DataFrame({"user": [1, 2], "item": pl.Series([2.0**24, 1], dtype=pl.Float32)})
    with pytest.raises(DataError, match=r"row 0 .*16777216"):
        read_frame(narrow)
    (tmp_path / "items.csv").write_text("item,title\na,A\n472.0,B\n")
    with pytest.raises(DataError, match="line 3: expected an id as text"):
        read_item_table(tmp_path / "items.csv", id_column="item", separator="|")
    with pytest.raises(DataError, match="expected an id as text"):
        items_of_frame(pl.DataFrame({"item": [1.5, 2.0], "title": ["a", "b"]}), "item")
    for history in ([7.5], [2.0**60], {7.656e16: 5}, {"item": [1.5, 2.0]}):
        with pytest.raises(DataError, match=r"as text or as an integer|is a float"):
            Histories().entries(history)
    names = ["2301.00010", "2301.0001", "10.1145", "12e45", "0x1e5"]
    assert set(read_frame({"user": list("abcde"), "item": names}).catalogue.item_ids) == {*names}


RATED = {
    "user": [1, 1, 2, 3, 3],
    "item": [7, 7, 7, 7, 8],
    "stars": [5, 1, 4, 1, 2],
    "at": [1_600_000_000, 1_600_000_100, 1_600_000_000, 1_600_000_000, 1_600_000_000],
}


@pytest.mark.parametrize("scale", [{}, {"rating_range": (1, 5)}])
@pytest.mark.parametrize(
    ("policy", "users"), [("last", [1]), ("mean", [1]), ("sum", [0, 1]), ("refuse", None)]
)
@pytest.mark.parametrize("door", DOORS)
def test_double_rows_are_merged_before_a_threshold_makes_clicks(
    door: str, policy: str, users: list[int] | None, scale: dict[str, Any], tmp_path: Path
) -> None:
    if policy == "sum" and scale:
        scale = {"rating_range": (1, 9)}
    options = {"rating": "stars", "timestamp": "at", "click_threshold": 4, "duplicates": policy}
    act = lambda: DOORS[door](tmp_path, RATED, {**options, **scale})  # noqa: E731
    if users is None:
        with pytest.raises(DataError, match="one row per user and item"):
            act()
        return
    data = act()
    assert data.interactions.kind == "clicks"
    assert data.interactions.users.tolist() == users


def test_plays_add_up_and_thumbs_do_not() -> None:
    rows = {"user": ["a", "a", "b"], "item": ["x", "x", "x"]}
    plays = fedrec.Dataset.from_frame({**rows, "plays": [3, 3, 5]}, click_threshold=6)
    assert plays.to_frame()["user"].to_list() == ["a"]
    thumbs = fedrec.Dataset.from_frame({**rows, "thumb": [1, 0, 1]}, click_threshold=1)
    assert thumbs.to_frame()["user"].to_list() == ["b"]
    with pytest.raises(SettingsError, match="of ratings or counts"):
        fedrec.Dataset.from_frame(rows, duplicates="sum")


GERMAN = {
    "user": ['="0012"', '="0012"', "a"],
    "item": ["x", "y", "x"],
    "note": ["4,5", "1.000,25", "3"],
    "datum": ["31.12.2020 14:05", "1.1.2021 00:00", "02.01.2021 08:00"],
}


@pytest.mark.parametrize("door", DOORS)
def test_a_german_table_is_proposed_its_keys_by_the_first_message_and_read_by_them(
    door: str, tmp_path: Path
) -> None:
    columns = {"rating": "note", "timestamp": "datum", "rating_range": (1, 2000)}
    with pytest.raises(DataError) as caught:
        DOORS[door](tmp_path, GERMAN, columns)
    assert "--decimal ," in caught.value.remedy
    assert "--time-format '%d.%m.%Y %H:%M'" in caught.value.remedy
    forms = {"decimal": ",", "time_format": "%d.%m.%Y %H:%M"}
    data = DOORS[door](tmp_path, GERMAN, {**columns, **forms})
    assert data.catalogue.user_ids == ("0012", "a")
    assert data.interactions.values.tolist() == [4.5, 1000.25, 3.0]
    assert data.interactions.times.tolist() == [1609423500, 1609459200, 1609574400]
    for wrong in ({"decimal": ";"}, {"time_format": "%H:%M"}, {"time_format": "hm"}):
        with pytest.raises(SettingsError, match="is no"):
            DOORS[door](tmp_path, GERMAN, {**columns, **wrong})
    plain = {"user": ["a"], "item": ["x"]}
    for form in forms.items():
        with pytest.raises(SettingsError, match=f"data.{form[0]} is of"):
            DOORS[door](tmp_path, plain, dict([form]))


@pytest.mark.parametrize("kind", [list, pl.Series, pd.Series, pd.Index, pd.array, np.array])
def test_columns_of_a_mapping_may_be_of_any_kind(kind: Any) -> None:
    """pandas' texts lie in Arrow memory, which polars alone takes by pyarrow."""
    columns = {"user": kind(["a", "b"]), "item": kind(["x", "y"])}
    assert fedrec.Dataset.from_frame(columns).to_frame().rows() == [("a", "x"), ("b", "y")]


def test_a_lazy_frame_of_a_file_that_is_missing_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the frame cannot be read: No such file"):
        fedrec.Dataset.from_frame(pl.scan_csv(tmp_path / "missing.csv"))


def test_days_written_as_one_number_are_said_with_their_format() -> None:
    rows = {"user": ["a", "b"], "item": ["x", "y"], "day": [20200131, 20200201]}
    assert "20200131 for a day needs --time-format" in repr(
        fedrec.Dataset.from_frame(rows, time="day")
    )
    data = fedrec.Dataset.from_frame(rows, time="day", time_format="%Y%m%d")
    assert data.to_frame()["day"].to_list() == [1_580_428_800, 1_580_515_200]
