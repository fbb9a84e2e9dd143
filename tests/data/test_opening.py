"""A name is a name: whatever a person calls a file, that file is read, and what is none is said."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import polars as pl
import pytest

from fedrec.data.item_tables import frame_of_items, read_item_table
from fedrec.data.opening import open_bytes
from fedrec.data.read import read
from fedrec.data.table_batches import row_batches
from fedrec.data.tables import TableOptions, asked_table
from fedrec.errors import DataError

FORMS = ("csv", "csv.gz", "tsv", "jsonl", "parquet")
NAMES = ("p[1]", "p*", "p?", "{p,q}", "~", "a b", "-", "#", "%41", "f\udcfcr")
"""Beside each stands what the name would mean as a pattern."""


def written(path: Path, user: str) -> Path:
    rows = pl.DataFrame({"user": [user] * 3, "item": ["x", "y", "z"]})
    form = path.name.partition(".")[2]
    if form == "parquet":
        content = rows.write_parquet
        with path.open("wb") as file:
            content(file)
        return path
    text = rows.write_ndjson() if form == "jsonl" else rows.write_csv(
        separator="\t" if form == "tsv" else ","
    )  # fmt: skip
    path.write_bytes(gzip.compress(text.encode()) if form.endswith("gz") else text.encode())
    return path


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_every_reader_reads_the_file_of_exactly_this_name(
    name: str, form: str, tmp_path: Path
) -> None:
    for other in ("p1", "px", "p", "q"):
        written(tmp_path / f"{other}.{form}", "other")
    path = written(tmp_path / f"{name}.{form}", "this")
    assert read(path).catalogue.user_ids == ("this",)
    (batch, _), *_ = row_batches(asked_table(path, TableOptions()))
    assert batch["user"].unique().to_list() == ["this"]
    if form != "jsonl":
        items = written(tmp_path / f"{name}-items.{form}", "this")
        once = read_item_table(items, id_column="item", separator="|")
        assert once.ids == ("x", "y", "z")
        assert frame_of_items(items)["user"].unique().to_list() == ["this"]


def test_a_folder_with_brackets_holds_its_own_parts(tmp_path: Path) -> None:
    for folder, user in (("day1", "other"), ("day[1]", "this")):
        (tmp_path / folder).mkdir()
        written(tmp_path / folder / "part-0.parquet", user)
    assert read(tmp_path / "day[1]").catalogue.user_ids == ("this",)


@pytest.mark.parametrize("door", [read, open_bytes], ids=["read", "open"])
def test_what_is_no_file_is_refused_in_words(door, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "gone.csv").symlink_to(tmp_path / "nowhere")
    (tmp_path / "empty.csv").touch()
    for path, said in (
        (tmp_path / "pipe.csv", "no file, but a pipe"),
        (Path("/dev/null"), "no file, but a pipe or a device"),
        (Path("-"), "rows are not read from a terminal or a pipe"),
        (tmp_path / "gone.csv", "is missing"),
        (tmp_path / "empty.csv", "is empty"),
        (tmp_path / ("n" * 300), "cannot be opened: File name too long|does not exist"),
    ):
        with pytest.raises(DataError, match=said) as caught:
            door(path)
        assert caught.value.remedy
