"""One person's own history, from a file of theirs: item ids, oldest first, with ratings and times
where there are any.

Either one id a line, or CSV with a header, or Parquet, that names `item` and perhaps `rating` and
`timestamp` (seconds, or ISO dates and instants); with timestamps it may be in any order. A pipe is
read once. Ids are kept as
they stand, blanks too, as in training. Nothing of it is written anywhere else.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

from fedrec.data.columns import USUAL
from fedrec.data.delimited import JSON_LINES, decoded, require_text
from fedrec.data.opening import understood
from fedrec.errors import DataError, MalformedRowError
from fedrec.storage import MOST_TEXT, bounded_bytes

_PARQUET = b"PAR1"
_ITEM, _RATING, _TIME, _USER = (USUAL[role] for role in ("item", "rating", "timestamp", "user"))


@dataclass(frozen=True)
class Click:
    """One event. rating: None where there is none. line: of the file, from 1."""

    item: str
    rating: float | None = None
    line: int = 0


@dataclass(frozen=True)
class Clicks:
    """Private: one person's events, oldest first, and the file they came from.

    Args:
        events: Oldest first.
        path: The file they came from.
    """

    events: tuple[Click, ...]
    path: Path = Path("history")

    @property
    def digest(self) -> str:
        """SHA-256 of all events, ratings included: two histories that differ in anything a model
        could read have two digests."""
        content = [
            [click.item, None if click.rating is None else float(click.rating).hex()]
            for click in self.events
        ]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    @staticmethod
    def of(items: Sequence[str]) -> Clicks:
        """Clicks on plain ids, oldest first.

        Args:
            items: Ids as the catalogue has them.

        Returns:
            The clicks.
        """
        return Clicks(tuple(Click(item, line=line) for line, item in enumerate(items, start=1)))


def read_clicks(path: Path) -> Clicks:
    """Raises DataError where the file is missing or empty, MalformedRowError at the first wrong
    line."""
    try:
        if str(path) == "-":
            path = Path("/dev/stdin")
        content = _piped(path) if path.is_fifo() else bounded_bytes(path)
    except OSError as failure:
        raise DataError(
            f"{path} cannot be read: {failure.strerror or failure}",
            "Check the path: of --history, and of --items, one item id a line.",
        ) from None
    if content.startswith(_PARQUET):
        from fedrec.data.frame_files import parquet_of  # brings Polars

        with understood(path, "Write one item id a row, in a column named item."):
            content = parquet_of(content, path.name).write_csv().encode()
    require_text(path, content[:64])
    raws = enumerate(content.splitlines(keepends=True), start=1)
    text = "".join(decoded(raw, path, line) for line, raw in raws)
    lines = text.splitlines()
    with understood(path, "Write one item id a line, or a table with commas."):
        return _read(path, text, lines)


def _piped(path: Path) -> bytes:
    """What a shell writes into a pipe that it names. Raises OSError."""
    first = b""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        with suppress(BlockingIOError):  # somebody will write
            if not (first := os.read(file.fileno(), 1)):
                raise OSError("nobody writes into this pipe")
        os.set_blocking(file.fileno(), True)
        if len(rest := file.read(MOST_TEXT)) == MOST_TEXT:
            raise OSError(f"it has {MOST_TEXT:,} bytes or more")
    return first + rest


def _read(path: Path, text: str, lines: list[str]) -> Clicks:
    header = [name.strip().lower() for name in next(csv.reader(lines[:1]), [])]
    named = bool(set(header) & set(_ITEM))
    if lines and not named and _is_table(path, lines[0], header):
        # taken for ids, its lines would be paid for and say nothing
        raise MalformedRowError(
            path,
            1,
            "one item id a line, or a header such as item,rating,timestamp with commas",
            lines[0],
            f"Name the column of items {_ITEM[0]}, and separate columns by commas.",
        )
    events = tuple(_table(path, text, header) if named else _plain(lines))
    if not events:
        raise DataError(
            f"{path} holds no item", "One item id a line, or CSV with a column named item."
        )
    return Clicks(events, path)


def _is_table(path: Path, first: str, header: list[str]) -> bool:
    """By the name and the first line: a refusal must not depend on which items there are."""
    split = [[name.strip().lower() for name in first.split(mark)] for mark in ";\t"]
    beside = {fields[1] for fields in (header, *split) if len(fields) > 1}
    return (
        path.suffix.lower() in {".csv", ".tsv", *JSON_LINES}
        or any(_is_number(name) or name in {*_RATING, *_TIME} for name in beside)
        or any(set(fields) & set(_ITEM) for fields in split)
    )


def _plain(lines: list[str]) -> Iterator[Click]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield Click(line, line=number)


def _table(path: Path, text: str, header: list[str]) -> Iterator[Click]:
    item, rating, moment, user = (
        next((header.index(name) for name in names if name in header), None)
        for names in (_ITEM, _RATING, _TIME, _USER)
    )
    if more := sorted({name for name in header if header.count(name) > 1}):
        raise MalformedRowError(path, 1, "a column of each name", more[0])
    found = list[tuple[float, Click]]()
    people = set[str]()
    first = ""
    reader = csv.reader(StringIO(text))
    next(reader)
    for row in reader:
        if not row:
            continue
        line = reader.line_num
        if len(row) != len(header) or item is None or not row[item].strip():
            raise MalformedRowError(
                path, line, f"{len(header)} columns with an item", ",".join(row)
            )
        people |= set() if user is None else {row[user]}
        if len(people) > 1:
            raise MalformedRowError(
                path, line, "the rows of one user", row[user or 0], "Keep the rows of one person."
            )
        value = None if rating is None else _number(path, line, "a rating", row[rating])
        kind, time_s = ("", 0.0) if moment is None else _time(path, line, row[moment])
        first = first or kind
        if kind != first:
            remedy = "Write all times in seconds, or all as ISO instants with a zone, or without."
            raise MalformedRowError(path, line, first, row[moment or 0], remedy)
        found.append((time_s, Click(row[item], value, line)))
    yield from (click for _, click in sorted(found, key=lambda pair: pair[0]))


def _number(path: Path, line: int, what: str, text: str) -> float:
    if not _is_number(text):
        raise MalformedRowError(path, line, what, text)
    return float(text)


def _time(path: Path, line: int, text: str) -> tuple[str, float]:
    """Kind of a time, and its seconds, of a number or of an ISO date or instant; UTC without a
    zone."""
    if _is_number(text):
        return "a time in seconds", float(text)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise MalformedRowError(path, line, "a time (seconds or an ISO date)", text) from None
    if moment.tzinfo:
        return "a time with a zone", moment.timestamp()
    return "a time without a zone", moment.replace(tzinfo=UTC).timestamp()


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
