"""Data sets of the field as they are published, without a converter of one's own."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pandas
import polars as pl
import pytest

import fedrec
from fedrec.cli.flags import own_data
from fedrec.cli.main import guarded

TEXT = 'a "quoted" text, with commas'
YELP = [
    {
        "review_id": f"r{n}",
        "user_id": f"u{n % 4}",
        "business_id": f"b{n // 4}",
        "stars": 1.0 + n % 5,
        "text": TEXT,
        "date": "2014-02-13 01:02:03",
    }
    for n in range(12)
]
AMAZON: list[dict[str, Any]] = [
    {
        "reviewerID": f"A{n % 4}",
        "asin": f"000{n // 4}",
        "helpful": [0, n],
        "overall": 1.0 + n % 5,
        "unixReviewTime": 1_400_000_000 + n,
    }
    for n in range(12)
]
AMAZON[3].pop("helpful")
JSON: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "yelp": (YELP, {"user": "user_id", "item": "business_id", "rating": "stars", "time": "date"}),
    "amazon": (
        AMAZON,
        {"user": "reviewerID", "item": "asin", "rating": "overall", "time": "unixReviewTime"},
    ),
}


def written(rows: list[dict[str, Any]], file: Path) -> Path:
    text = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    file.write_bytes(gzip.compress(text) if file.suffix == ".gz" else text)
    return file


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".ndjson", ".json.gz"])
@pytest.mark.parametrize("name", JSON)
def test_json_lines_are_the_table_that_a_frame_of_them_is(
    name: str, suffix: str, tmp_path: Path
) -> None:
    rows, columns = JSON[name]
    file = written(rows, tmp_path / f"reviews{suffix}")
    data = fedrec.Dataset.from_file(file, **columns, rating_range=(1, 5))
    frame = fedrec.Dataset.from_frame(pandas.DataFrame(rows), **columns, rating_range=(1, 5))
    assert data.to_frame().equals(frame.to_frame())
    assert len(data) == 12


def test_json_lines_are_described_and_divided_by_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, columns = JSON["yelp"]
    file = str(written(rows, tmp_path / "log.jsonl"))
    roles = {"user": "user", "item": "item", "rating": "rating", "time": "timestamp"}
    told = [f"data.columns.{roles[role]}={name}" for role, name in columns.items()]
    sets = [word for key in [*told, "data.rating_range=[1,5]"] for word in ("--set", key)]
    assert guarded(["data", "describe", file, *sets]) == 0
    parts = str(tmp_path / "parts")
    assert guarded(["data", "partition", file, *sets, "--parts", "2", "--output", parts]) == 0
    assert len(fedrec.Dataset.from_file(parts)) == 12


LOG = {"user": [1, 1, 2, 2], "item": [7, 8, 7, 9], "plays": [1, 40, 3, 5], "thumb": [0, 1, 1, 0]}
KEPT = {("plays", 5): {(1, 8), (2, 9)}, ("thumb", 1): {(1, 8), (2, 7)}}


@pytest.mark.parametrize("door", ["frame", "parquet", "csv", "jsonl"])
@pytest.mark.parametrize(("column", "least"), KEPT)
def test_counts_and_thumbs_are_clicks_from_a_threshold_on(
    door: str, column: str, least: float, tmp_path: Path
) -> None:
    """A thumbs-down is never a like."""
    frame = pl.DataFrame(LOG).select("user", "item", column)
    told: dict[str, Any] = {"rating": column, "click_threshold": least}
    assert fedrec.Dataset.from_frame(frame, click_threshold=least).to_frame().rows() == (
        fedrec.Dataset.from_frame(frame, **told).to_frame().rows()  # the column is found, too
    )
    if door == "frame":
        data = fedrec.Dataset.from_frame(frame, **told)
    else:
        file = tmp_path / f"log.{door}"
        write = {"parquet": frame.write_parquet, "csv": frame.write_csv}
        write.get(door, frame.write_ndjson)(file)
        data = fedrec.Dataset.from_file(file, **told)
    assert data.kind == "clicks"
    found = {(int(user), int(item)) for user, item in data.to_frame().rows()}
    assert found == KEPT[column, int(least)]
    assert any("2 of 4 rows are below" in note for note in data.notes)


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("named", [True, False])
def test_a_scenario_and_a_flag_say_the_same_of_counts(
    named: bool, header: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = pl.DataFrame(LOG).select("user", "item", "plays")
    frame.write_csv(tmp_path / "log.csv", include_header=header)
    rating = ("plays" if header else "3") if named else ""
    keys = own_data(str(tmp_path / "log.csv"), rating=rating, clicks_from=5)
    assert "data.kind=clicks" in keys
    sets = [word for key in keys for word in ("--set", key)]
    assert guarded(["data", "describe", str(tmp_path / "log.csv"), *sets]) == 0
    assert "2 of 4 rows are below 5 and no clicks" in " ".join(capsys.readouterr().out.split())


def test_a_column_of_dislikes_is_not_taken_for_likes() -> None:
    frame = pl.DataFrame(LOG).select("user", "item", pl.col("thumb").alias("dislike"))
    with pytest.raises(fedrec.DataError, match="no column 'rating'"):
        fedrec.Dataset.from_frame(frame, click_threshold=1)


def test_a_threshold_that_nobody_reaches_is_refused() -> None:
    with pytest.raises(fedrec.DataError, match="no row of frame has 100 or more"):
        fedrec.Dataset.from_frame(
            pl.DataFrame(LOG).drop("thumb"), rating="plays", click_threshold=100
        )
