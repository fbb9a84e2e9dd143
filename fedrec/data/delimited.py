"""Fields of text files: lines in UTF-8, integers, numbers, and ids as they are written."""

from __future__ import annotations

import math
import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import polars as pl

from fedrec.data.opening import lines_of, open_bytes, understood
from fedrec.errors import MalformedRowError
from fedrec.storage import parsed_json

AN_ID = "an id as text or as an integer"
FLOATED = (
    "It went through a floating-point number, which makes one id of several: write ids as they "
    "were, as text or integers (pandas: dtype=str; a spreadsheet: format the column as text)."
)
_FLOATED = r"^[+-]?[0-9]+(\.0*|(\.[0-9]+)?[eE]\+[0-9]+|\.[0-9]+[eE]-?[0-9]+)$"
_QUOTED = r'^="([^"]*)"$'
_UNDEFINED = {0x81, 0x8D, 0x8F, 0x90, 0x9D}
_INTEGER = re.compile(r"[+-]?[0-9]+")
_OBJECT = (
    "Write one JSON object a line: each name once, names and texts in double quotes, null for NaN, "
    "and no comma between lines."
)
NO_VALUE = ("", "NA", "N/A", "#N/A", "NaN", "nan", "NaT", "NULL", "null", "None", "<NA>", r"\N")
"""What programs write where there is no value: R, pandas, spreadsheets and databases."""


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
            f"by iconv -f WINDOWS-1252 -t UTF-8 {path.name} > new{path.suffix}.",
        ) from None


def json_object(path: Path, line: int, text: str) -> dict[str, Any]:
    """The object that a line is. Raises MalformedRowError where it is none, or has a key twice."""
    why = ""
    try:
        if isinstance(found := parsed_json(text), dict):
            return found
    except ValueError as failure:
        why = f" ({failure})"
    raise MalformedRowError(path, line, f"one JSON object{why}", text.strip()[:80], _OBJECT)


def title_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number and text of each line of a public file of titles: UTF-8, and what is none is
    Windows-1252, of which Latin-1 is the part that such files use."""
    with understood(path), open_bytes(path) as file:
        for line, raw in enumerate(lines_of(file), start=1):
            raw = raw.removeprefix(BOM_UTF8 if line == 1 else b"")
            try:
                yield line, raw.decode("utf-8")
            except UnicodeDecodeError:
                # of 256 bytes five are no Windows-1252, and control characters in Latin-1
                yield line, raw.decode("cp1252" if not {*raw} & _UNDEFINED else "latin-1")


def plain_ids(column: pl.Series, where: Path | str, *, first: int = 1) -> pl.Series:
    """Ids as integers, or as text, without the form `="0012"` in which spreadsheets keep zeros.

    Floats, which pandas makes of integers where one is missing, are integers again where none was
    rounded; what is no number among them is null. first: the line of the first row.

    Raises MalformedRowError, which names `where`, at the first id that went through a float: two
    people would be one."""
    if column.dtype.is_float():
        return _whole(column, Path(where), first)
    if column.dtype.is_integer():
        return column.cast(pl.String) if column.dtype == pl.Int128 else column
    texts = column if column.dtype == pl.String else column.cast(pl.String)
    distinct = texts.unique().drop_nulls()
    if distinct.str.contains(_QUOTED).any():
        texts = texts.str.replace(_QUOTED, "$1")
        column = texts
        distinct = texts.unique().drop_nulls()
    if bad := floated(distinct):
        row = int(texts.is_in(bad).arg_true()[0])
        raise MalformedRowError(Path(where), row + first, AN_ID, texts[row], FLOATED)
    return column if column.dtype == pl.Categorical else texts


def floated(texts: Iterable[str]) -> list[str]:
    """Ids that were written as a float: 7.0, 7.65E+16, and 7.5 among integers."""
    ids = texts if isinstance(texts, pl.Series) else pl.Series(list(texts), dtype=pl.String)
    wrong = ids.str.contains(_FLOATED)
    # decimals alone may be names, as 2301.00010 is
    if wrong.any() or ids.str.contains(r"^[0-9]+$").any():
        wrong = wrong | ids.str.contains(r"^[+-]?[0-9]+\.[0-9]+$")
    return ids.filter(wrong).to_list()


def _whole(column: pl.Series, where: Path, first: int) -> pl.Series:
    limit = 2.0 ** (24 if column.dtype == pl.Float32 else 53)  # from here on floats skip integers
    frame = pl.DataFrame({"id": column.cast(pl.Float64)})
    given = frame.select(pl.when(pl.col("id").is_finite()).then(pl.col("id"))).to_series()
    # a fraction, or a float too large to tell neighbouring ids apart
    wrong = (given.is_not_null() & ((given != given.floor()) | (given.abs() >= limit))).arg_true()
    if len(wrong):
        row = int(wrong[0])
        raise MalformedRowError(where, row + first, AN_ID, repr(given[row]), FLOATED)
    return given.cast(pl.Int64).alias(column.name)


def is_integer(text: str, *, low: int, high: int) -> bool:
    """Whether the text is an integer in [low, high]."""
    return len(text) <= 20 and _INTEGER.fullmatch(text) is not None and low <= int(text) <= high


def is_number(text: str) -> bool:
    """Whether the text is a finite number in ASCII, with no blanks around it."""
    try:
        # Python reads digits of all scripts, and 1_0 as 10; other readers of tables do not
        plain = text.isascii() and text.strip() == text and "_" not in text
        return plain and math.isfinite(float(text))
    except ValueError:
        return False
