"""Numeric rating files, fast: `user<sep>item<sep>rating<sep>time` with `::`, a tab or a comma
between.

The fast path is Polars. It has single-byte separators only, so `1::2::3.5::4` is read as seven
columns split at `:`; a count of the separators in the file's bytes then proves that every row had
exactly the declared ones. Only when something fails are the lines read one by one, to name the
first that is wrong.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import polars as pl

from fedrec.arrays import Float32s, Int32s, Int64s
from fedrec.errors import DataError, MalformedRowError

Ids = npt.NDArray[np.integer]

_BLOCK_BYTES = 1 << 24
_INTEGER = re.compile(r"[+-]?[0-9]+")
_COLUMNS = {"user": pl.Int32, "item": pl.Int32, "rating": pl.Float32, "time": pl.Int64}


@dataclass(frozen=True)
class NumericColumns:
    """Columns in the file's order; the numbers are the file's own ids. users, items: (n,) int32,
    times: (n,) int64 seconds."""

    path: Path
    users: Int32s
    items: Int32s
    ratings: Float32s
    times: Int64s
    first_line: int


def require_file(path: Path) -> Path:
    """The path, when a file with something in it is there. Raises DataError otherwise."""
    if not path.is_file():
        raise DataError(
            f"{path} is missing",
            (
                "Check the path; formats are guessed from names of files, and data.format says "
                "another."
            ),
        )
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty", "Download or unpack it again.")
    return path


def decoded(raw: bytes, path: Path, line: int) -> str:
    """A line of a text file, without the mark that some editors put before the first.

    Raises MalformedRowError where it is not UTF-8."""
    try:
        return raw.decode("utf-8").removeprefix("\ufeff" if line == 1 else "")
    except UnicodeDecodeError as failure:
        found = raw[max(0, failure.start - 20) : failure.end + 20].decode("cp1252", "replace")
        raise MalformedRowError(
            path,
            line,
            "UTF-8",
            found,
            "If that reads well, the file is Windows-1252 (Latin-1): save it as UTF-8, for example "
            f"by iconv -f WINDOWS-1252 -t UTF-8 {path.name} > new.",
        ) from None


def plain_ids(column: pl.Series) -> pl.Series:
    """Ids as integers, or as text. Floats, which pandas makes of integers where one is missing, are
    written as integers where they are whole; what is no number among them is null."""
    if column.dtype.is_integer():
        return column
    if not column.dtype.is_float():
        return column.cast(pl.String)
    frame = pl.DataFrame({"id": column.cast(pl.Float64)})
    given = pl.when(pl.col("id").is_finite()).then(pl.col("id"))
    number = given.cast(pl.Int64, strict=False)
    whole = (number.cast(pl.Float64) == given).fill_null(False)
    chosen = (
        pl.when(whole).then(number)
        if frame.select((whole | given.is_null()).all()).item()
        else pl.when(whole).then(number.cast(pl.String)).otherwise(given.cast(pl.String))
    )
    return frame.select(chosen.alias(column.name))[column.name]


def read_numeric(
    path: Path, *, separator: str, header: tuple[str, ...] | None = None
) -> NumericColumns:
    """All rows of a four-column file of numbers.

    Raises DataError when the file is missing or empty, MalformedRowError at the first row that is
    not four valid numbers.
    """
    require_file(path)
    if header is not None:
        _check_header(path, separator.join(header))
    try:
        frame = _fast(path, separator, header is not None)
        complete = all(frame[name].null_count() == 0 for name in _COLUMNS)
    except pl.exceptions.PolarsError as error:
        refuse_first_malformed(path, separator, header is not None, str(error))
    if not len(frame):
        raise DataError(f"{path} holds no ratings", "Download or unpack it again.")
    if not complete or not _separators_agree(path, separator, len(frame), header):
        refuse_first_malformed(path, separator, header is not None, "a row is incomplete")
    users, items, ratings, times = (frame[name].to_numpy() for name in _COLUMNS)
    if min(users.min(), items.min()) < 0 or not np.isfinite(ratings).all():
        refuse_first_malformed(
            path, separator, header is not None, "an id is negative or a rating is not finite"
        )
    return NumericColumns(path, users, items, ratings, times, 1 if header is None else 2)


def number_ids(ids: Ids) -> tuple[Int32s, Ids]:
    """Ids of any size to 0..k-1 in increasing order: (n,) int32 numbers, and the (k,) ids they
    stand for."""
    if _fits_table(ids):
        present = np.bincount(ids) > 0
        return (np.cumsum(present, dtype=np.int32) - np.int32(1))[ids], np.flatnonzero(present)
    known, numbers = np.unique(ids, return_inverse=True)
    return numbers.astype(np.int32), known


def positions_in(ids: Ids, known: Ids) -> Int32s:
    """Where each id stands in `known` (distinct, in any order), -1 where it does not."""
    if _fits_table(ids) and _fits_table(known):
        table = np.full(max(int(ids.max()), int(known.max())) + 1, -1, dtype=np.int32)
        table[known] = np.arange(len(known), dtype=np.int32)
        return table[ids]
    order = np.argsort(known, kind="stable")
    place = np.minimum(np.searchsorted(known, ids, sorter=order), len(known) - 1)
    found = order[place].astype(np.int32)
    return np.where(known[found] == ids, found, np.int32(-1))


def _fits_table(ids: Ids) -> bool:
    """Whether a table over all ids, several times faster than a sort, stays small."""
    return bool(len(ids)) and int(ids.min()) >= 0 and int(ids.max()) < max(1 << 20, 8 * len(ids))


def _fast(path: Path, separator: str, has_header: bool) -> pl.DataFrame:
    types: dict[str, type[pl.DataType]] = {}
    for place, (name, kind) in enumerate(_COLUMNS.items()):
        types |= {f"between{place}{n}": pl.String for n in range(len(separator) - 1) if place} | {
            name: kind
        }
    wanted = [place for place, name in enumerate(types) if name in _COLUMNS]
    return pl.read_csv(
        path,
        has_header=False,
        skip_rows=int(has_header),
        separator=separator[0],
        quote_char=None,
        schema=types,
        columns=wanted,
    )


def _separators_agree(
    path: Path, separator: str, rows: int, header: tuple[str, ...] | None
) -> bool:
    """Three separators in every row.

    With no row incomplete, the totals can only agree when every row agrees."""
    whole, single = count_bytes(path, separator.encode(), separator[:1].encode())
    expected = (len(_COLUMNS) - 1) * (rows + (header is not None))
    return whole == expected and single == expected * len(separator)


def count_bytes(path: Path, *patterns: bytes) -> tuple[int, ...]:
    """How often each pattern occurs in a file, in blocks of whole lines so that none is cut in
    two."""
    found = [0] * len(patterns)
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES) + file.readline():
            found = [
                count + block.count(pattern) for count, pattern in zip(found, patterns, strict=True)
            ]
    return tuple(found)


def _check_header(path: Path, expected: str) -> None:
    with path.open("rb") as file:
        found = decoded(file.readline(), path, 1).rstrip("\r\n")
    if found != expected:
        raise MalformedRowError(path, 1, f"the header {expected!r}", found[:80])


def refuse_first_malformed(path: Path, separator: str, has_header: bool, reason: str) -> NoReturn:
    """Read line by line and raise MalformedRowError at the first bad one; DataError with `reason`
    when no line explains it."""
    with path.open("rb") as file:
        for line, raw in enumerate(file, start=1):
            if line == 1 and has_header:
                continue
            text = decoded(raw, path, line).rstrip("\r\n")
            fields = text.split(separator)
            if len(fields) != len(_COLUMNS):
                raise MalformedRowError(
                    path, line, f"{len(_COLUMNS)} fields separated by {separator!r}", text[:80]
                )
            for field, (expected, valid) in zip(fields, _FIELDS, strict=True):
                if not valid(field):
                    raise MalformedRowError(path, line, expected, field[:80])
    raise DataError(
        f"{path} cannot be read: {reason.splitlines()[0]}",
        "Check that the file is in the stated format.",
    )


def is_integer(text: str, *, low: int, high: int) -> bool:
    """Whether the text is an integer in [low, high]."""
    return len(text) <= 20 and _INTEGER.fullmatch(text) is not None and low <= int(text) <= high


def is_number(text: str) -> bool:
    """Whether the text is a finite number, with no blanks around it."""
    try:
        return math.isfinite(float(text)) and text.strip() == text and "_" not in text
    except ValueError:
        return False


def _is_id(text: str) -> bool:
    return is_integer(text, low=0, high=2**31 - 1)


_FIELDS: tuple[tuple[str, Callable[[str], bool]], ...] = (
    ("a user id, an integer from 0", _is_id),
    ("an item id, an integer from 0", _is_id),
    ("a rating, a finite number", is_number),
    ("a time in whole seconds", lambda text: is_integer(text, low=-(2**63), high=2**63 - 1)),
)
