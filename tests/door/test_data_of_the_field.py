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


def netflix(folder: Path) -> Path:
    first = "1:\n10,3,2005-09-06\n11,5,2005-05-13\n2:\n10,1,2004-01-02\n"
    (folder / "combined_data_1.txt").write_text(first)
    (folder / "combined_data_2.txt").write_text("7:\n12,4,2003-03-04\n")
    titles = "1,2003,Dinosaur Planet\n2,NULL,Am\xe9lie, Part 2\n7,1999,Seven\n"
    (folder / "movie_titles.csv").write_bytes(titles.encode("latin-1"))
    return folder


def test_blocks_of_the_netflix_prize_are_ratings_with_titles(tmp_path: Path) -> None:
    data = fedrec.Dataset.from_file(netflix(tmp_path))
    assert repr(data) == "Dataset(ratings, 3 users, 3 items, 4 events)"
    assert data.source.catalogue.titles == ("Dinosaur Planet", "Am\xe9lie, Part 2", "Seven")
    assert data.to_frame().rows()[0] == (10, 1, 3.0, 1125964800)
    (tmp_path / "movie_titles.csv").unlink()
    assert len(fedrec.Dataset.from_file(tmp_path / "combined_data_1.txt")) == 3


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("1:\n10,3\n", 2),
        ("10,3,2005-09-06\n", 1),
        ("1:\n10,3,06.09.2005\n", 2),
        ("1:\nx\n", 2),
    ],
)
def test_a_line_that_is_no_rating_is_named(text: str, line: int, tmp_path: Path) -> None:
    (tmp_path / "combined_data_1.txt").write_text(text)
    with pytest.raises(fedrec.DataError, match=f"line {line}: expected a film as 123:"):
        fedrec.Dataset.from_file(tmp_path, "netflix")


def books(folder: Path) -> Path:
    rows = ['"User-ID";"ISBN";"Book-Rating"', '"276725";"034545104X";"0"']
    rows += ['"276726";"0155061224";"5"', r'"276727";"\"0446520802";"10"']
    rows += ['"276725";"0155061224";"7"']
    (folder / "BX-Book-Ratings.csv").write_bytes("\r\n".join(rows).encode("latin-1"))
    named = ['"ISBN";"Book-Title";"Book-Author"', r'"0155061224";"Rites \"of\" Passage; 1";"J"']
    named += ['"034545104X";"Fl\xfcgel";"K"', r'"\"0446520802";"Sch\xf6n";"L"']
    (folder / "BX-Books.csv").write_bytes("\r\n".join(named).encode("latin-1"))
    return folder


def test_book_crossing_is_read_as_it_is_quoted(tmp_path: Path) -> None:
    data = fedrec.Dataset.from_file(books(tmp_path), out_of_range="drop")
    assert (data.kind, len(data)) == ("ratings", 3)
    assert 'Rites "of" Passage; 1' in (data.source.catalogue.titles or ())
    assert '"0446520802' in data.item_ids
    clicks = fedrec.Dataset.from_file(tmp_path, kind="clicks", rating_range=(0, 10))
    assert (clicks.kind, len(clicks)) == ("clicks", 4)
    with pytest.raises(fedrec.DataError, match=r"1 of 4 rows .* have the rating 0") as refused:
        fedrec.Dataset.from_file(tmp_path)
    assert 'out_of_range = "drop"' in refused.value.remedy


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
