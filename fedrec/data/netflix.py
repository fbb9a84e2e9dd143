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

from fedrec.data.assembling import Frame, RowRules, dataset_of
from fedrec.data.delimited import is_integer, title_lines
from fedrec.data.interactions import (
    Dataset,
    digest_file,
)
from fedrec.data.item_tables import ItemTable, item_table
from fedrec.data.opening import content_of, require_file
from fedrec.data.resolving import Duplicates, OutOfRange, Policies
from fedrec.data.table_columns import TableColumns
from fedrec.data.table_files import complete
from fedrec.data.text_tables import require_text
from fedrec.errors import DataError, MalformedRowError

_NETFLIX_COLUMNS = TableColumns("user", "film", "rating", "date")


_STARS = (1.0, 5.0)  # of the Netflix prize


_HEAD = r"^\s*\d{1,18}:\s*$"


_ROW = r"^\s*(\d{1,18}),(\d{1,18}),(\d{4}-\d{2}-\d{2})\s*$"


def read_netflix(
    path: Path, *, duplicates: Duplicates = "auto", out_of_range: OutOfRange = "refuse"
) -> Dataset:
    """Ratings of 1 to 5 stars with dates. Raises DataError where no file holds any, and
    MalformedRowError at the first line that is neither a film nor a rating."""
    files = _files(path)

    def frame_of(_: Path) -> Frame:
        rows = pl.concat([_netflix_rows(file) for file in files])
        if rows.is_empty():
            raise DataError(f"{path} holds no rows", "Check that the files are whole.")
        chosen, notes, _unit = complete(rows, path, _NETFLIX_COLUMNS.names())
        return chosen, 1, notes

    titles = (path if path.is_dir() else path.parent) / "movie_titles.csv"
    table = _film_titles(titles) if titles.is_file() else None
    policies = Policies(duplicates, out_of_range)
    return dataset_of(
        {"train": path},
        "netflix",
        RowRules(path.name, _NETFLIX_COLUMNS, policies, _STARS, items=table),
        frame_of,
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


def _netflix_rows(file: Path) -> pl.DataFrame:
    require_text(file, content_of(file)[:64])
    rows = [text.rstrip("\r\n") for _, text in title_lines(file)]
    lines = pl.DataFrame({"text": rows}).with_row_index("line", 1)
    text = pl.col("text")
    lines = lines.with_columns(
        pl.when(text.str.contains(_HEAD))
        .then(text.str.strip_chars().str.strip_chars_end(":"))
        .forward_fill()
        .cast(pl.Int64, strict=False)
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
        pl.col("user").cast(pl.Int64, strict=False),
        "item",
        pl.col("rating").cast(pl.Float32),
        pl.col("timestamp"),
    )


def _film_titles(path: Path) -> ItemTable:
    def rows() -> Iterator[list[str]]:
        yield ["film", "year", "title"]
        for line, text in title_lines(path):
            number, _, rest = text.rstrip("\r\n").partition(",")
            year, _, title = rest.partition(",")  # a title may hold commas
            if not is_integer(number, low=1, high=2**31):
                raise MalformedRowError(path, line, "number, year and title of a film", text[:80])
            yield [number, "" if year == "NULL" else year, title]

    return item_table(path, rows(), id_column="film", separator="|")
