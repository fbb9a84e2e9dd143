"""Fields of text files: lines in UTF-8, integers, numbers, and ids as they are written."""

from __future__ import annotations

import math
import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedrec.data.opening import lines_of, open_bytes, understood
from fedrec.errors import DataError, MalformedRowError
from fedrec.storage import parsed_json

_UNDEFINED = {0x81, 0x8D, 0x8F, 0x90, 0x9D}
_INTEGER = re.compile(r"[+-]?[0-9]+")
_OBJECT = (
    "Write one JSON object a line: each name once, names and texts in double quotes, null for NaN, "
    "and no comma between lines."
)
JSON_LINES = (".jsonl", ".ndjson", ".json")
_OTHERS = (
    (
        (b"\xff\xfe", b"\xfe\xff", b"{\0"),
        "UTF-16 or UTF-32",
        "Save it as UTF-8, for example by iconv -f UTF-16 -t UTF-8 {name} > new.csv.",
    ),
    ((b"\x1f\x8b",), "compressed by gzip", "Call it {name}.gz."),
    ((b"BZh", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ"), "compressed", "Unpack it; of gzip, .gz is read."),
    ((b"PK\x03\x04",), "a ZIP archive or a spreadsheet", "Unpack it, or save the sheet as CSV."),
    ((b"PAR1",), "a Parquet file", "Call it {stem}.parquet."),
    ((b"<!doctype", b"<html", b"<!DOCTYPE"), "a web page", "Download the table itself."),
    ((b"version https://git-lfs",), "a pointer of Git LFS", "Fetch the file: git lfs pull."),
)
"""First bytes of what is no text, what it is, and what to do."""
NO_VALUE = ("", "NA", "N/A", "#N/A", "NaN", "nan", "NaT", "NULL", "null", "None", "<NA>", r"\N")
"""What programs write where there is no value: R, pandas, spreadsheets and databases."""


def require_text(path: Path, start: bytes) -> None:
    """Raises DataError where the first bytes are those of no text, with what they may be."""
    for marks, what, remedy in _OTHERS:
        if start.startswith(marks):
            raise DataError(f"{path} is {what}", remedy.format(name=path.name, stem=path.stem))
    if b"\0" in start:
        raise DataError(f"{path} is no text: it holds zero bytes", "Save it as CSV in UTF-8.")
    if b"\r" in start and b"\n" not in start:
        raise DataError(
            f"the lines of {path} end with CR alone", "Save it with line ends LF or CRLF."
        )


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
