"""Ids that differ only by what nobody sees are refused, of users and of items, by every reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas
import polars as pl
import pytest

import fedrec
from fedrec.data.behaviors import read_behaviors
from fedrec.data.impressions import News
from fedrec.data.partitioning import open_output, partition_table
from fedrec.data.tables import TableOptions, asked_table

TWINS = {
    "a blank behind": ("ann", "ann "),
    "a blank before": ("ann", " ann"),
    "two of them": ("ann ", " ann"),
    "a tab": ("ann", "ann\t"),
    "a blank that does not break": ("ann", "ann\u00a0"),
    "no width": ("ann", "ann\u200b"),
    "a byte order mark": ("\ufeffann", "ann"),
    "an accent in two forms": ("Zo\u00eb", "Zoe\u0308"),
}
DOORS = ("polars", "pandas", ".csv", ".parquet", "partitions", "test rows")


def _read(door: str, log: dict[str, list[Any]], path: Path) -> Any:
    frame = pl.DataFrame(log)
    file = path / ("log.csv" if door == ".csv" else "log.parquet")
    if door == "pandas":
        return fedrec.Dataset.from_frame(pandas.DataFrame(log))
    if door == "polars":
        return fedrec.Dataset.from_frame(frame)
    if door == "test rows":
        return fedrec.Dataset.from_frame(frame[:2], test=frame[2:])
    frame.write_csv(file) if door == ".csv" else frame.write_parquet(file)
    if door != "partitions":
        return fedrec.Dataset.from_file(file)
    output = str(path / "parts")
    asked = asked_table(file, TableOptions())
    work = open_output(output, parts=3, source="log", resume=False)
    return partition_table(asked, output, work, parts=3)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("side", ["user", "item"])
@pytest.mark.parametrize("case", TWINS)
def test_ids_that_look_the_same_are_refused(
    case: str, side: str, door: str, tmp_path: Path
) -> None:
    other = "item" if side == "user" else "user"
    log = {side: [TWINS[case][0], "bob", TWINS[case][1]], other: ["x", "y", "z"]}
    with pytest.raises(fedrec.DataError, match=f"1 {side} ids of .* each would be {side}") as said:
        _read(door, log, tmp_path)
    assert any(repr(twin) in str(said.value) for twin in TWINS[case])


@pytest.mark.parametrize("door", [door for door in DOORS if door != "test rows"])
def test_a_blank_that_tells_nobody_apart_stays(door: str, tmp_path: Path) -> None:
    _read(door, {"user": ["ann ", "bob", "Ann"], "item": ["x", "X", " y"]}, tmp_path)


MEANS_THE_SAME = [("x\u00b2", "x2"), ("\u2460", "1"), ("\u2122", "TM"), ("\ufb01nn", "finn")]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("others", MEANS_THE_SAME)
def test_people_whose_ids_mean_the_same_are_refused(
    others: tuple[str, str], door: str, tmp_path: Path
) -> None:
    """Of one person two would be trained on at the price of one."""
    log = {"user": [others[0], "bob", others[1]], "item": ["x", "y", "z"]}
    with pytest.raises(fedrec.DataError, match="1 user ids"):
        _read(door, log, tmp_path)


@pytest.mark.parametrize("others", MEANS_THE_SAME)
def test_ids_of_items_that_only_mean_the_same_stay_apart(others: tuple[str, str]) -> None:
    data = fedrec.Dataset.from_frame({"user": ["a", "b"], "item": [*others]})
    assert set(data.source.catalogue.item_ids) == {*others}
    model = fedrec.Popularity(noise="seeded").fit(data)
    assert model.recommend(history=[others[0]])["item"].to_list() == [others[1]]


def test_an_item_of_the_table_of_items_is_compared_with_those_of_the_events() -> None:
    log = {"user": [1, 2], "item": ["x ", "y"]}
    items = {"item": ["x", "y"], "kind": ["a", "b"]}
    with pytest.raises(fedrec.DataError, match="'x' and 'x '"):
        fedrec.Dataset.from_frame(log, items=items)
    twins = {"item": ["x", "x "], "kind": ["a", "b"]}
    with pytest.raises(fedrec.DataError, match="1 item ids of items"):
        fedrec.Dataset.from_frame(log, items=twins)


def test_readers_of_news_are_compared_too(tmp_path: Path) -> None:
    file = tmp_path / "behaviors.tsv"
    rows = [
        f"{n}\t{user}\t11/15/2019 10:22:32 AM\tN1\tN1-1 N2-0\n"
        for n, user in enumerate(("ann", "ann\u00a0"))
    ]
    file.write_text("".join(rows), encoding="utf-8")
    news = News(("N1", "N2"), *[("", "")] * 4, ((), ()))
    with pytest.raises(fedrec.DataError, match="1 user ids"):
        read_behaviors(file, news)
