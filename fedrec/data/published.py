"""Data sets in the form of their publication: Book-Crossing, the Netflix Prize, and clicks of the
graph recommenders.

Book-Crossing: `BX-Book-Ratings.csv` and `BX-Books.csv` as Ziegler published them.

Fields stand in quotes between semicolons, a quote within one is written \", and the text is
Latin-1. A rating of 0 says that a book was read and not rated; others are 1 to 10.

Netflix Prize: blocks of ratings, each below a line with the film's number.

    123:
    1488844,3,2005-09-06

One file (`combined_data_1.txt`), or a folder of such files or of `mv_0000001.txt` and so on;
`movie_titles.csv` beside them (Latin-1: number, year, title) gives titles and years.

Clicks as the graph recommenders publish them, with their own train, validation and test sets.

`clicks-lists`: `train.txt` and `test.txt` (and `validation.txt` or `valid.txt`), one user a line,
the user and then its items, numbers from 0 separated by blanks (LightGCN, KGAT). `clicks-npz`:
`*train*.npz` and `*test*.npz` (and `*valid*.npz`), SciPy sparse matrices of users x items, every
stored entry a click.
"""

from __future__ import annotations

import csv
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from fedrec.arrays import Float32s, Int32s
from fedrec.data.assembling import Frame, RowRules, dataset_of
from fedrec.data.delimited import is_integer, title_lines
from fedrec.data.features import PublicFeatures
from fedrec.data.interactions import (
    CATALOGUE_OF_ROWS,
    Catalogue,
    Dataset,
    Interactions,
    Provenance,
    added,
    digest_file,
)
from fedrec.data.item_tables import ItemTable, item_table
from fedrec.data.opening import content_of, lines_of, npz_matrix, require_file, understood
from fedrec.data.resolving import Duplicates, Missing, OutOfRange, Policies, Rows
from fedrec.data.table_columns import TableColumns
from fedrec.data.table_files import Written, complete, typed
from fedrec.data.text_tables import require_text
from fedrec.errors import DataError, MalformedRowError

_RATINGS = ("BX-Book-Ratings.csv", "Book-Ratings.csv")
_BOOKS = ("BX-Books.csv", "BX_Books.csv", "Books.csv")
_BOOK_COLUMNS = TableColumns("User-ID", "ISBN", "Book-Rating")
_UNRATED = "0 says that a book was not rated"
_NETFLIX_COLUMNS = TableColumns("user", "film", "rating", "date")
_STARS = (1.0, 5.0)  # of the Netflix prize
_HEAD = r"^\s*\d{1,18}:\s*$"
_ROW = r"^\s*(\d{1,18}),(\d{1,18}),(\d{4}-\d{2}-\d{2})\s*$"
Shape = tuple[int, int]
Pairs = tuple[Int32s, Int32s, Shape, Float32s | None, Int32s | None]
"""Users, items, the shape that holds them, and, where there are any, values and lines."""


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


def read_click_lists(path: Path, *, duplicates: Duplicates = "auto") -> Dataset:
    """A folder with `train.txt` and, if there are any, `test.txt` (the `given_test`) and
    `validation.txt`; or one such file.

    Users and items are the numbers up to the largest in any file. Raises DataError on a missing or
    empty file, MalformedRowError at a line that is not whole numbers from 0.
    """
    files = {"train": path / "train.txt" if path.is_dir() else path}
    if path.is_dir():
        names = {"test": ("test.txt",), "validation": ("validation.txt", "valid.txt")}
        files |= {
            part: path / name
            for part, known in names.items()
            for name in known
            if (path / name).exists()
        }
    return _dataset("clicks-lists", files, _list_pairs, Policies(duplicates), None)


def read_click_matrices(
    path: Path, *, duplicates: Duplicates = "auto", click_threshold: float | None = None
) -> Dataset:
    """A folder with one `*train*.npz`, at most one `*test*.npz` (the `given_test`) and one
    `*valid*.npz`; or one such file.

    Every stored entry but zeros is a click; with a click_threshold, those of so much or more, of
    several entries of one user and item their sum. Without one, entries below zero are refused.

    Raises DataError on missing files or what is not a SciPy sparse matrix. A "line" in a message is
    the number of a stored entry.
    """
    files = {"train": _single(path, "*train*.npz") if path.is_dir() else path}
    if path.is_dir():
        files |= {
            part: _single(path, name)
            for part, name in (("test", "*test*.npz"), ("validation", "*valid*.npz"))
            if any(path.glob(name))
        }
    return _dataset(
        "clicks-npz",
        files,
        partial(_matrix_pairs, least=click_threshold),
        Policies(duplicates),
        click_threshold,
    )


def _dataset(
    name: str,
    files: Mapping[str, Path],
    pairs: Callable[[Path], Pairs],
    policies: Policies,
    click_threshold: float | None,
) -> Dataset:
    parts = [pairs(require_file(file)) for file in files.values()]
    num_users, num_items = (max(shape[side] for _, _, shape, _, _ in parts) for side in (0, 1))
    clicks = sum(len(users) for users, _, _, _, _ in parts)
    if max(num_users, num_items) > max(10_000, 50 * clicks):
        remedy = "Users and items must be numbered from 0 without large gaps."
        raise DataError(
            f"{files['train']} names {num_users} x {num_items} users and items in {clicks} clicks",
            remedy,
        )
    valued = click_threshold is not None
    columns = TableColumns(rating="value" if valued else None)
    rules = RowRules(files["train"].name, columns, policies, click_threshold=click_threshold)
    events = dict[str, Interactions]()
    reports = []
    notes = list[str]()
    for (part_name, file), (users, items, _, values, lines) in zip(
        files.items(), parts, strict=True
    ):
        rows = Rows(file, users, items, values if valued else None, None, lines=lines)
        part, report = rules.read(rows, num_users=num_users, num_items=num_items)
        events[part_name] = rules.counted(part)
        notes += rules.left_out(part, events[part_name], file.name)
        if values is not None and not valued and (values != 1).any():
            notes.append(f"{file.name}: every entry is a click, whatever its value")
        reports.append(report)
    catalogue = Catalogue(
        tuple(map(str, range(num_items))), None, tuple(map(str, range(num_users)))
    )
    digests = tuple(digest_file(file) for file in files.values())
    provenance = Provenance(name, digests, added(reports, tuple(notes)), (CATALOGUE_OF_ROWS,))
    return Dataset(
        events["train"],
        catalogue,
        PublicFeatures({}),
        provenance,
        events.get("test"),
        events.get("validation"),
        {"rating": "value"} if valued else {},
    )


def _list_pairs(path: Path) -> Pairs:
    """Users, items, the smallest shape that holds them, and the line of each pair."""
    users: list[int] = []
    items: list[Int32s] = []
    with path.open("rb") as file:
        for line, text in enumerate(lines_of(file), start=1):
            numbers = _whole_numbers(path, line, text)
            users.append(int(numbers[0]))
            items.append(numbers[1:])
    lengths = [len(part) for part in items]
    clicked = np.concatenate(items)
    if not len(clicked):
        raise DataError(f"{path} holds no clicks", "Check that the file is whole.")
    lines = np.repeat(np.arange(1, len(users) + 1, dtype=np.int32), lengths)
    return (
        np.repeat(np.array(users, np.int32), lengths),
        clicked,
        (max(users) + 1, int(clicked.max()) + 1),
        None,
        lines,
    )


def _whole_numbers(path: Path, line: int, text: bytes) -> Int32s:
    fields = text.removeprefix(BOM_UTF8 if line == 1 else b"").split()
    if not fields or not all(field.isdigit() and len(field) < 10 for field in fields):
        bad = next((field for field in fields if not field.isdigit() or len(field) >= 10), b"")
        raise MalformedRowError(
            path,
            line,
            "a user and its items as whole numbers from 0",
            bad.decode("utf-8", "replace"),
        )
    return np.array(fields, dtype=np.int32)


def _matrix_pairs(path: Path, *, least: float | None) -> Pairs:
    matrix = npz_matrix(path)
    with understood(path, "Store numbers, 1 for a click."):
        values = np.asarray(matrix.data, np.float32)
        bad = ~np.isfinite(values) if least is not None else ~(values >= 0)
    if len(found := np.flatnonzero(bad)):
        raise MalformedRowError(
            path,
            int(found[0]) + 1,
            "1 for a click, or a count",
            f"{values[found[0]]:g}",
            "Drop such entries, or say from which value on one is a click: click_threshold.",
        )
    some = values != 0
    users, items = (side[some].astype(np.int32) for side in (matrix.row, matrix.col))
    lines = (np.flatnonzero(some) + 1).astype(np.int32)
    return users, items, matrix.shape, values[some], lines


def _single(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise DataError(
            f"{folder} holds {len(found)} files {pattern}, one is needed",
            "Leave one, or give the path of the train matrix alone.",
        )
    return found[0]
