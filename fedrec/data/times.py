"""Times of events as a file has them, in seconds since 1970: numbers, or ISO 8601 dates and
instants; without a zone they are UTC."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from fedrec.data.delimited import is_number

_INSTANT = pl.Datetime("us")
_DATE = "%Y-%m-%d"
_FORMATS = ("%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M:%S%.f")
_ZONED = ("%Y-%m-%d %H:%M%:z", "%Y-%m-%d %H:%M:%S%:z", "%Y-%m-%d %H:%M:%S%.f%:z")
_UNITS = {"seconds": 1.0, "milliseconds": 1e3, "microseconds": 1e6, "nanoseconds": 1e9}
_LATEST = 1e11
"""Seconds of the year 5138: larger times are in milliseconds, a thousand times larger ones in
microseconds, and a million times larger ones in nanoseconds."""


@dataclass(frozen=True)
class Times:
    """Times of a column.

    seconds: (n,) float64, null where a value is no time. unit: of the numbers, by their size; empty
    for dates and where all are zero. other: the first row whose number is of another unit: which
    unit the rest has must not depend on how many rows one person has."""

    seconds: pl.Series
    unit: str = ""
    other: int | None = None

    @property
    def guessed(self) -> str:
        """What was guessed, in words; empty where it is what everybody expects."""
        if self.unit in {"", "seconds"}:
            return ""
        return f"times are in {self.unit}, guessed from their size"


def times_of(column: pl.Series) -> Times:
    """Times of a column of numbers, dates or texts."""
    if column.dtype.is_temporal():
        return Times(column.cast(_INSTANT).dt.timestamp("us").cast(pl.Float64) / 1e6)
    if not column.dtype.is_numeric():
        numbers = column.cast(pl.Float64, strict=False)
        if numbers.null_count() > column.null_count():
            return Times(_iso(column))
        column = numbers
    written = column.cast(pl.Float64)
    # 0 is the same instant in every unit, and what is not finite is refused elsewhere
    size = written.abs().fill_null(0.0)
    telling = ((size > 0) & size.is_finite()).arg_true()
    if not len(telling):
        return Times(written)
    borders = [each * _LATEST for each in list(_UNITS.values())[:-1]]
    ranks = np.searchsorted(borders, size.gather(telling).to_numpy(), side="left")
    unit = list(_UNITS)[int(ranks[0])]
    others = np.flatnonzero(ranks != ranks[0])
    other = int(telling[int(others[0])]) if len(others) else None
    return Times(written / _UNITS[unit], unit, other)


def time_expected(text: str, first: str) -> str:
    """What was expected in place of a text, by the first time of its column; empty where the text
    is such a time."""
    if not is_number(text) and _iso(pl.Series([text])).null_count():
        return "a time (seconds or an ISO date)"
    if is_number(text) == is_number(first):
        return ""
    return f"times of one kind (the first is {'a number' if is_number(first) else 'a date'})"


def _iso(column: pl.Series) -> pl.Series:
    texts = (
        column.cast(pl.String).str.replace("T", " ", literal=True).str.replace(r"\s?(Z|UTC)$", "")
    )
    found = texts.str.to_date(_DATE, strict=False).cast(_INSTANT)
    for form in _FORMATS:
        found = found.fill_null(texts.str.to_datetime(form, strict=False).cast(_INSTANT))
    if found.null_count():
        for form in _ZONED:
            zoned = texts.str.to_datetime(form, strict=False, time_zone="UTC")
            found = found.fill_null(zoned.dt.replace_time_zone(None).cast(_INSTANT))
    return found.dt.timestamp("us").cast(pl.Float64) / 1e6
