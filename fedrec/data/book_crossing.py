"""Book-Crossing: `BX-Book-Ratings.csv` and `BX-Books.csv` as Ziegler published them.

Fields stand in quotes between semicolons, a quote within one is written \", and the text is
Latin-1. A rating of 0 says that a book was read and not rated; others are 1 to 10.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from fedrec.data.assembling import Frame, RowRules, dataset_of
from fedrec.data.delimited import title_lines
from fedrec.data.interactions import (
    Dataset,
    digest_file,
)
from fedrec.data.item_tables import item_table
from fedrec.data.opening import content_of, require_file
from fedrec.data.resolving import Duplicates, Missing, OutOfRange, Policies
from fedrec.data.table_columns import TableColumns
from fedrec.data.table_files import Written, complete, typed
from fedrec.data.text_tables import require_text
from fedrec.errors import DataError, MalformedRowError

_RATINGS = ("BX-Book-Ratings.csv", "Book-Ratings.csv")


_BOOKS = ("BX-Books.csv", "BX_Books.csv", "Books.csv")


_BOOK_COLUMNS = TableColumns("User-ID", "ISBN", "Book-Rating")


_UNRATED = "0 says that a book was not rated"


def read_book_crossing(
    path: Path,
    *,
    rating_range: tuple[float, float] = (1.0, 10.0),
    duplicates: Duplicates = "auto",
    out_of_range: OutOfRange = "refuse",
    missing: Missing = "refuse",
) -> Dataset:
    """Ratings of 1 to 10 with `out_of_range = "drop"`, which leaves books without a rating out; for
    clicks of all books that were read, `rating_range = [0, 10]` and `data.kind = "clicks"`.

    Raises DataError where no ratings are there, MalformedRowError at a row of another length."""
    file = _ratings(path)
    books = next((file.parent / name for name in _BOOKS if (file.parent / name).is_file()), None)
    table = (
        None
        if books is None
        else item_table(books, _book_titles(books), id_column="ISBN", separator="|")
    )

    def frame_of(_: Path) -> Frame:
        lines, rows = zip(*((line, row[:3]) for line, row in _book_rows(file, 3)), strict=True)
        header, *events = rows
        names = _BOOK_COLUMNS.names()
        if header != list(names.values()):
            expected = ";".join(names.values())
            raise MalformedRowError(file, 1, f"the header {expected}", ";".join(header))
        if not events:
            raise DataError(f"{file} holds no rows", "Check that the file is whole.")
        try:
            texts = pl.DataFrame(events, schema=list(names.values()), orient="row")
            frame = typed(texts, names, file)
            chosen, notes, _unit = complete(frame, file, names, Written(missing))
        except MalformedRowError as bad:
            line = lines[bad.line]  # the header is the first of these
            raise MalformedRowError(file, line, bad.expected, bad.found, bad.remedy) from None
        if rating_range[0] > 0 and out_of_range == "refuse" and (chosen["rating"] == 0).any():
            count = int((chosen["rating"] == 0).sum())
            raise DataError(
                f"{count:,} of {len(chosen):,} rows of {file.name} have the rating 0: {_UNRATED}",
                'Leave them out: out_of_range = "drop". Or take all as clicks: kind = "clicks" '
                "with rating_range = [0, 10].",
            )
        return chosen, 2, notes

    policies = Policies(duplicates, out_of_range, missing)
    return dataset_of(
        {"train": file},
        "book-crossing",
        RowRules(file.name, _BOOK_COLUMNS, policies, rating_range, items=table),
        frame_of,
        digests=lambda *_: (
            digest_file(file),
            *([] if books is None else [digest_file(books, public=True)]),
        ),
    )


def is_book_crossing(path: Path) -> bool:
    """Whether it is the file of ratings, or a folder with it."""
    return path.name in _RATINGS or (path.is_dir() and any((path / n).is_file() for n in _RATINGS))


def _ratings(path: Path) -> Path:
    if not path.is_dir():
        return require_file(path)
    found = [path / name for name in _RATINGS if (path / name).is_file()]
    if not found:
        raise DataError(f"{path} holds no {_RATINGS[0]}", "Give the folder with it.")
    return found[0]


def _book_titles(books: Path) -> Iterator[list[str]]:
    yield ["ISBN", "title"]
    yield from (row[:2] for line, row in _book_rows(books, 2) if line > 1)


def _book_rows(path: Path, least: int) -> Iterator[tuple[int, list[str]]]:
    """Line and fields of each row, at least so many."""
    require_text(path, content_of(path)[:64])
    # a backslash before a quote, and before nothing else: titles end in one now and then
    texts = (text.replace('\\"', '""') for _, text in title_lines(path))
    reader = csv.reader(texts, delimiter=";")
    for row in reader:
        if len(row) < least:
            expected = f"{least} fields or more separated by ;"
            raise MalformedRowError(path, reader.line_num, expected, ";".join(row)[:80])
        yield reader.line_num, row
