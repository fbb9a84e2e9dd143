"""Fields of text files: lines in UTF-8, integers, numbers, and ids as they are written and
numbered."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from fedrec.arrays import Int32s
from fedrec.errors import DataError, MalformedRowError

Ids = npt.NDArray[np.integer]

_INTEGER = re.compile(r"[+-]?[0-9]+")
NO_VALUE = ("", "NA", "N/A", "#N/A", "NaN", "nan", "NaT", "NULL", "null", "None", "<NA>", r"\N")
"""What programs write where there is no value: R, pandas, spreadsheets and databases."""


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
        return column.cast(pl.String) if column.dtype == pl.Int128 else column
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


def is_integer(text: str, *, low: int, high: int) -> bool:
    """Whether the text is an integer in [low, high]."""
    return len(text) <= 20 and _INTEGER.fullmatch(text) is not None and low <= int(text) <= high


def is_number(text: str) -> bool:
    """Whether the text is a finite number, with no blanks around it."""
    try:
        return math.isfinite(float(text)) and text.strip() == text and "_" not in text
    except ValueError:
        return False
