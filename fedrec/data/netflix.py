"""Netflix Prize: blocks of ratings, each below a line with the film's number.

    123:
    1488844,3,2005-09-06

One file (`combined_data_1.txt`), or a folder of such files or of `mv_0000001.txt` and so on;
`movie_titles.csv` beside them (Latin-1: number, year, title) gives titles and years.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from fedrec.data.dataset import Dataset, digest_file
from fedrec.data.delimited import is_integer, require_file
from fedrec.data.item_tables import ItemTable, item_table
from fedrec.data.resolving import Duplicates, Missing, OutOfRange, Policies
from fedrec.data.table_files import complete
from fedrec.data.tables import TableColumns, dataset_of
from fedrec.errors import DataError, MalformedRowError

_COLUMNS = TableColumns("user", "film", "rating", "date")
_STARS = (1.0, 5.0)
_HEAD = r"^\s*\d+:\s*$"
_ROW = r"^\s*(\d+),(\d+),(\d{4}-\d{2}-\d{2})\s*$"


def read_netflix(
    path: Path,
    *,
    duplicates: Duplicates = "auto",
    out_of_range: OutOfRange = "refuse",
    missing: Missing = "refuse",
) -> Dataset:
    """Ratings of 1 to 5 stars with dates. Raises DataError where no file holds any, and
    MalformedRowError at the first line that is neither a film nor a rating."""
    files = _files(path)

    def frame_of(_: Path) -> tuple[pl.DataFrame, int, tuple[str, ...]]:
        rows = pl.concat([_rows(file) for file in files])
        if rows.is_empty():
            raise DataError(f"{path} holds no rows", "Check that the files are whole.")
        chosen, notes, _unit = complete(rows, path, _COLUMNS.names(), missing)
        return chosen, 1, notes

    titles = (path if path.is_dir() else path.parent) / "movie_titles.csv"
    table = _titles(titles) if titles.is_file() else None
    return dataset_of(
        {"train": path},
        "netflix",
        _COLUMNS,
        frame_of,
        _STARS,
        table,
        Policies(duplicates, out_of_range, missing),
        digests=lambda *_: (
            *map(digest_file, files),
            *([] if table is None else [digest_file(titles, public=True)]),
        ),
    )


def is_netflix(path: Path) -> bool:
    """Whether a file, or the first of a folder, begins with the number of a film."""
    if path.is_dir():
        return any(path.glob("combined_data_*.txt")) or any(path.glob("mv_*.txt"))
    if path.suffix != ".txt":
        return False
    with path.open("rb") as file:
        first = file.readline(64).strip()
    return first.endswith(b":") and first[:-1].isdigit()


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [require_file(path)]
    found = sorted([*path.glob("combined_data_*.txt"), *path.glob("mv_*.txt")])
    if not found:
        raise DataError(
            f"{path} holds no combined_data_*.txt and no mv_*.txt", "Give the folder of ratings."
        )
    return found


def _rows(file: Path) -> pl.DataFrame:
    lines = pl.DataFrame({"text": file.read_text("latin-1").splitlines()}).with_row_index("line", 1)
    text = pl.col("text")
    lines = lines.with_columns(
        pl.when(text.str.contains(_HEAD))
        .then(text.str.strip_chars().str.strip_chars_end(":"))
        .forward_fill()
        .cast(pl.Int64)
        .alias("item"),
        text.str.contains(_HEAD).alias("head"),
        (text.str.strip_chars() == "").alias("blank"),
    ).filter(~pl.col("head") & ~pl.col("blank"))
    parts = text.str.extract_groups(_ROW)
    lines = lines.with_columns(
        parts.struct.rename_fields(["user", "rating", "timestamp"]).alias("row")
    )
    lines = lines.unnest("row")
    bad = lines.filter(pl.col("user").is_null() | pl.col("item").is_null())
    if len(bad):
        found = bad.row(0, named=True)
        expected = "a film as 123:, or a user, stars and a day as 1488844,3,2005-09-06"
        raise MalformedRowError(file, int(found["line"]), expected, found["text"][:80])
    return lines.select(
        pl.col("user").cast(pl.Int64),
        "item",
        pl.col("rating").cast(pl.Float32),
        pl.col("timestamp"),
    )


def _titles(path: Path) -> ItemTable:
    def rows() -> Iterator[list[str]]:
        yield ["film", "year", "title"]
        for line, text in enumerate(path.read_text("latin-1").splitlines(), start=1):
            number, _, rest = text.partition(",")
            year, _, title = rest.partition(",")  # a title may hold commas
            if not is_integer(number, low=1, high=2**31):
                raise MalformedRowError(path, line, "number, year and title of a film", text[:80])
            yield [number, "" if year == "NULL" else year, title]

    return item_table(path, rows(), id_column="film", separator="|")
