"""Rows that lack a value: all counted in the first message, and dropped where that is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas
import polars as pl
import pytest

import fedrec
from fedrec.data.table_batches import row_batches
from fedrec.data.tables import TableOptions, asked_table
from fedrec.settings import Scenario, validated

COLUMNS = {"user": "user", "item": "item", "rating": "rating", "time": "time"}
LOG = {
    "user": ["ann", None, "bob", "bob", "eve"],
    "item": ["a", "a", "b", None, "c"],
    "rating": [5.0, 1.0, None, None, 2.0],
    "time": [10, 20, 30, 40, 50],
}
SAID = "3 of 5 rows lack a value: 1 user, 1 item, 2 rating, 0 time"


def _door(name: str, path: Path, **said: Any) -> fedrec.Dataset:
    frame = pl.DataFrame(LOG)
    scale = {**COLUMNS, "rating_range": (1, 5), **said}
    if name == "polars":
        return fedrec.Dataset.from_frame(frame, **scale)
    if name == "pandas":
        return fedrec.Dataset.from_frame(pandas.DataFrame(LOG), **scale)
    file = path / f"log{name}"
    if name == ".parquet":
        frame.write_parquet(file)
    else:
        frame.write_csv(file, separator="\t" if name == ".tsv" else ",")
    return fedrec.Dataset.from_file(file, **scale)


DOORS = ("polars", "pandas", ".csv", ".tsv", ".parquet")


@pytest.mark.parametrize("door", DOORS)
def test_the_first_message_counts_all_rows_that_lack_a_value(door: str, tmp_path: Path) -> None:
    with pytest.raises(fedrec.DataError) as refused:
        _door(door, tmp_path)
    assert SAID in str(refused.value)
    assert 'missing = "drop"' in refused.value.remedy


@pytest.mark.parametrize("door", DOORS)
def test_rows_that_lack_a_value_are_dropped_and_counted(door: str, tmp_path: Path) -> None:
    data = _door(door, tmp_path, missing="drop")
    assert (data.num_users, data.num_items, len(data)) == (2, 2, 2)
    assert any(SAID in note for note in data.notes)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_batches_of_rows_have_the_same_policy(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"log{suffix}"
    frame = pl.DataFrame(LOG)
    frame.write_parquet(file) if suffix == ".parquet" else frame.write_csv(file)
    options = {"rating_range": (1.0, 5.0), "missing": "drop"}
    ((rows, notes),) = row_batches(asked_table(file, TableOptions(**options)))  # type: ignore[arg-type]
    assert rows["line"].to_list() == ([2, 6] if suffix == ".csv" else [1, 5])
    assert SAID.removesuffix(", 0 time") in "".join(notes)
    with pytest.raises(fedrec.DataError, match="3 of 5 rows lack a value"):
        list(row_batches(asked_table(file, TableOptions(rating_range=(1.0, 5.0)))))


@pytest.mark.parametrize("empty", ["", "  "])
def test_an_id_without_a_letter_is_missing(empty: str) -> None:
    with pytest.raises(fedrec.DataError, match="1 of 2 rows lack a value: 1 user, 0 item"):
        fedrec.Dataset.from_frame({"user": ["ann", empty], "item": ["a", "b"]})


def test_nothing_left_is_refused() -> None:
    with pytest.raises(fedrec.DataError, match="every row"):
        fedrec.Dataset.from_frame({"user": [None, None], "item": ["a", "b"]}, missing="drop")


def test_another_policy_is_refused() -> None:
    with pytest.raises(fedrec.SettingsError, match="not a policy"):
        fedrec.Dataset.from_frame({"user": [1], "item": [2]}, missing="ignore")  # type: ignore[arg-type]


def test_the_policy_is_a_key_that_moves_no_digest_until_it_is_used() -> None:
    assert "missing" not in Scenario().model_dump()["data"]
    chosen = validated({"data": {"missing": "drop"}}, source="test")
    assert chosen.digest() != Scenario().digest()
