"""Values of kinds that no column of its role holds, and JSON that parsers read in two ways, by every
reader: refused with the column or the line."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from datetime import date, time, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import fedrec
from fedrec.data.read import read
from fedrec.data.table_batches import row_batches
from fedrec.data.tables import TableOptions, asked_table
from fedrec.errors import DataError, FedRecError, MalformedRowError, UnusedColumnsWarning
from fedrec.storage import parsed_json, read_json

KINDS: dict[str, Any] = {
    "records": pl.Series([{"v": 1}, {"v": 2}]),
    "lists": pl.Series([[4], [5]]),
    "bytes": pl.Series([b"4", b"5"]),
    "objects": pl.Series([object(), object()], dtype=pl.Object),
    "dates": pl.Series([date(2020, 1, 1)] * 2),
    "durations": pl.Series([timedelta(1)] * 2),
    "times of day": pl.Series([time(1)] * 2),
    "true and false": pl.Series([True, False]),
    "categories": pl.Series(["4", "5"], dtype=pl.Categorical),
    "decimals": pl.Series(["4.5", "5.0"]).cast(pl.Decimal(scale=1)),
    "texts": pl.Series(["4", "5"]),
}
ROLES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "user": ({}, {"categories", "texts"}),
    "item": ({}, {"categories", "texts"}),
    "rating": (
        {"rating_range": (0, 5)},
        {"categories", "texts", "decimals", "true and false"},
    ),
    "plays": (
        {"rating": "plays", "click_threshold": 1},
        {"categories", "texts", "decimals", "true and false"},
    ),
    "time": ({"time": "time"}, {"categories", "texts", "decimals", "dates"}),
}
"""Of a column: what is said beside it, and the kinds of values that it may hold."""


def _of_frame(frame: pl.DataFrame, folder: Path, said: dict[str, Any]) -> Any:
    return fedrec.Dataset.from_frame(frame, **said)


def _of_parquet(frame: pl.DataFrame, folder: Path, said: dict[str, Any]) -> Any:
    frame.write_parquet(folder / "log.parquet")
    return fedrec.Dataset.from_file(folder / "log.parquet", **said)


def _of_batches(frame: pl.DataFrame, folder: Path, said: dict[str, Any]) -> Any:
    frame.write_parquet(folder / "log.parquet")
    options = {"timestamp" if key == "time" else key: value for key, value in said.items()}
    return list(row_batches(asked_table(folder / "log.parquet", TableOptions(**options))))


@pytest.mark.parametrize("door", [_of_frame, _of_parquet, _of_batches])
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_column_holds_values_of_its_role_or_is_refused_by_name(
    kind: str, role: str, door: Callable[..., Any], tmp_path: Path
) -> None:
    if kind == "objects" and door is not _of_frame:
        pytest.skip("no file holds Python objects")
    said, right = ROLES[role]
    frame = pl.DataFrame({"user": ["a", "b"], "item": ["x", "y"]})
    frame = frame.with_columns(KINDS[kind].alias(role))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind in right:
            door(frame, tmp_path, said)
        else:
            with pytest.raises(DataError, match=f"'{role}'|an id as text") as caught:
                door(frame, tmp_path, said)
            assert "not supported" not in str(caught.value)  # words of Polars
            assert caught.value.remedy


JSON = {
    '{"user":"a","item":"x","user":"b"}': "comes twice",
    '{"user":"a","item":"x","more":{"k":1,"k":2}}': "comes twice",
    '{"us\\u0065r":"a","item":"x","user":"b"}': "comes twice",
    '{"user":1,"item":"x"}': "of one type in all lines",
    '{"user":true,"item":"x"}': "of one type in all lines",
    '{"user":1.0,"item":"x"}': "an id as text or as an integer",
    '{"user":"\\ud83d","item":"x"}': "an id as text or as an integer",
    '{"user":"a","item":NaN}': "one JSON object",
    '{"user":"a","item":"x"}{"user":"b","item":"x"}': "one JSON object",
}


@pytest.mark.parametrize("batches", [False, True])
@pytest.mark.parametrize("line", JSON)
def test_json_lines_that_parsers_read_in_two_ways_are_refused_with_their_line(
    line: str, batches: bool, tmp_path: Path
) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(f'{{"user":"c","item":"y"}}\n\n{line}\n')
    with pytest.raises(MalformedRowError, match=JSON[line]) as caught:
        list(row_batches(asked_table(path, TableOptions()))) if batches else read(path)
    assert caught.value.line == 3


def test_a_doubled_key_of_a_json_object_is_refused_by_the_one_loader(tmp_path: Path) -> None:
    for text in ('{"a": 1, "a": 1}', b'[{"b": {"a": 1, "a": 2}}]'):
        with pytest.raises(match="'a' comes twice"):
            parsed_json(text)
    (tmp_path / "kept.json").write_text('{"epsilon": 1, "epsilon": 2}')
    with pytest.raises(FedRecError, match="'epsilon' comes twice"):
        read_json(tmp_path / "kept.json")


NUMBERS = ("\u0664", "\uff14", "1_0", "4/5", "\u2605\u2605", "80%", "4 ", "\u22124", "0x4", "inf")


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("role", ["rating", "time"])
@pytest.mark.parametrize("form", ["csv", "parquet", "frame"])
def test_what_is_no_plain_number_is_refused_with_its_line(
    form: str, role: str, number: str, tmp_path: Path
) -> None:
    said = {"rating_range": (0, 99)} if role == "rating" else {"time": "time"}
    frame = pl.DataFrame({"user": ["a", "b"], "item": ["x", "y"], role: ["4", number]})
    frame.write_csv(tmp_path / "log.csv")
    frame.write_parquet(tmp_path / "log.parquet")
    make, given = fedrec.Dataset.from_frame, frame
    if form != "frame":
        make, given = fedrec.Dataset.from_file, tmp_path / f"log.{form}"
    with pytest.raises(DataError, match=r"line 3|line 2|row 1 ") as caught:
        make(given, **said)
    assert f"as {role}" in str(caught.value)


def test_no_path_is_no_planted_data() -> None:
    with pytest.raises(DataError, match="'' is no path"):
        fedrec.Dataset.from_file("")


def test_ratings_with_a_decimal_comma_under_any_name_are_not_lost_in_silence(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log.csv"
    rows = "".join(f"k{n};m{n};{1 + n % 5},0\n" for n in range(9))
    path.write_text(f"Kunde;Artikel;Note\n{rows}")
    with pytest.warns(UnusedColumnsWarning, match="'Note' is not used"):
        fedrec.Dataset.from_file(path, user="Kunde", item="Artikel")
    path.write_text(f"Kunde;Artikel;Note\n{rows}", encoding="utf-16")
    with pytest.raises(DataError, match="UTF-16") as refused:
        fedrec.Dataset.from_file(path, user="Kunde", item="Artikel")
    assert "iconv -f UTF-16 -t UTF-8 log.csv > new.csv" in refused.value.remedy
