"""Numeric rating files, fast: `user<sep>item<sep>rating<sep>time` with `::`, a tab or a comma between.

The fast path is Polars. It has single-byte separators only, so `1::2::3.5::4` is read as seven columns split at `:`; a count of the
separators in the file's bytes then proves that every row had exactly the declared ones. Only when something fails are the lines
read one by one, to name the first that is wrong.
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

from fedrec.data.interactions import Float32s, Int32s, Int64s
from fedrec.errors import DataError, MalformedRowError

_BLOCK_BYTES = 1 << 24
_INTEGER = re.compile(r"[+-]?[0-9]+")
_COLUMNS = {"user": pl.Int32, "item": pl.Int32, "rating": pl.Float32, "time": pl.Int64}


@dataclass(frozen=True)
class NumericColumns:
    """Columns in the file's order; the numbers are the file's own ids. users, items: (n,) int32, times: (n,) int64 seconds."""

    path: Path
    users: Int32s
    items: Int32s
    ratings: Float32s
    times: Int64s
    first_line: int


def require_file(path: Path) -> Path:
    """The path, when a file with something in it is there. Raises DataError otherwise."""
    if not path.is_file():
        raise DataError(f"{path} is missing", "Check the path and the format: the file belongs to the format's official archive.")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty", "Download or unpack it again.")
    return path


def read_numeric(path: Path, *, separator: str, header: tuple[str, ...] | None = None) -> NumericColumns:
    """All rows of a four-column file of numbers.

    Raises DataError when the file is missing or empty, MalformedRowError at the first row that is not four valid numbers.
    """
    require_file(path)
    if header is not None:
        _check_header(path, separator.join(header))
    try:
        frame = _fast(path, separator, header is not None)
        sound = all(frame[name].null_count() == 0 for name in _COLUMNS) and _separators_agree(path, separator, len(frame), header)
    except pl.exceptions.PolarsError as error:
        refuse_first_malformed(path, separator, header is not None, str(error))
    users, items, ratings, times = (frame[name].to_numpy() for name in _COLUMNS)
    if not sound or min(users.min(), items.min()) < 0 or not np.isfinite(ratings).all():
        refuse_first_malformed(path, separator, header is not None, "a row is incomplete")
    return NumericColumns(path, users, items, ratings, times, 1 if header is None else 2)


def number_ids(ids: npt.NDArray[np.integer]) -> tuple[Int32s, npt.NDArray[np.integer]]:
    """Ids of any size to 0..k-1 in increasing order: (n,) int32 numbers, and the (k,) ids they stand for."""
    if len(ids) and 0 <= int(ids.min()) and int(ids.max()) < max(1 << 20, 8 * len(ids)):
        present = np.bincount(ids) > 0  # a table is several times faster than a sort
        return (np.cumsum(present, dtype=np.int32) - np.int32(1))[ids], np.flatnonzero(present)
    known, numbers = np.unique(ids, return_inverse=True)
    return numbers.astype(np.int32), known


def _fast(path: Path, separator: str, has_header: bool) -> pl.DataFrame:
    types: dict[str, type[pl.DataType]] = {}
    for place, (name, kind) in enumerate(_COLUMNS.items()):
        types |= {f"between{place}{n}": pl.String for n in range(len(separator) - 1) if place} | {name: kind}
    return pl.read_csv(
        path, has_header=False, skip_rows=int(has_header), separator=separator[0], quote_char=None, schema=types, columns=list(_COLUMNS)
    )


def _separators_agree(path: Path, separator: str, rows: int, header: tuple[str, ...] | None) -> bool:
    """Three separators in every row. With no row incomplete, the totals can only agree when every row agrees."""
    whole, single, wide = separator.encode(), separator[:1].encode(), 0
    found = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES) + file.readline():  # whole lines, so no separator is cut in two
            found += block.count(whole)
            wide += block.count(single)
    expected = (len(_COLUMNS) - 1) * (rows + (header is not None))
    return found == expected and wide == expected * len(separator)


def _check_header(path: Path, expected: str) -> None:
    with path.open("rb") as file:
        found = file.readline().decode("utf-8", "replace").removeprefix("\ufeff").rstrip("\r\n")
    if found != expected:
        raise MalformedRowError(path, 1, f"the header {expected!r}", found)


def refuse_first_malformed(path: Path, separator: str, has_header: bool, reason: str) -> NoReturn:
    """Read line by line and raise MalformedRowError at the first bad one; DataError with `reason` when no line explains it."""
    with path.open("rb") as file:
        for line, raw in enumerate(file, start=1):
            if line == 1 and has_header:
                continue
            text = raw.decode("utf-8", "replace").rstrip("\r\n")
            fields = (text.removeprefix("\ufeff") if line == 1 else text).split(separator)
            if len(fields) != len(_COLUMNS):
                raise MalformedRowError(path, line, f"{len(_COLUMNS)} fields separated by {separator!r}", text)
            for field, (expected, valid) in zip(fields, _FIELDS, strict=True):
                if not valid(field):
                    raise MalformedRowError(path, line, expected, field)
    raise DataError(f"{path} cannot be read: {reason.splitlines()[0]}", "Check that the file is in the stated format.")


def is_integer(text: str, *, low: int, high: int) -> bool:
    """Whether the text is an integer in [low, high]."""
    return _INTEGER.fullmatch(text) is not None and low <= int(text) <= high


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
