"""Times of events as a file has them, in seconds since 1970: numbers, or ISO 8601 dates and
instants; without a zone they are UTC."""

from __future__ import annotations

import polars as pl

from fedrec.data.delimited import is_number

_INSTANT, _DATE = pl.Datetime("us"), "%Y-%m-%d"
_FORMATS = ("%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M:%S%.f")
_ZONED = ("%Y-%m-%d %H:%M%:z", "%Y-%m-%d %H:%M:%S%:z", "%Y-%m-%d %H:%M:%S%.f%:z")
_LATEST = 1e11
"""Seconds of the year 5138: larger times are in milliseconds, a thousand times larger ones in
microseconds, and a million times larger ones in nanoseconds."""
_UNITS = {"nanoseconds": 1e9, "microseconds": 1e6, "milliseconds": 1e3}


def seconds_of(column: pl.Series) -> tuple[pl.Series, str]:
    """(n,) float64, null where a value is no time; and what was guessed of the unit, in words, or
    nothing."""
    if column.dtype.is_temporal():
        return column.cast(_INSTANT).dt.timestamp("us").cast(pl.Float64) / 1e6, ""
    if not column.dtype.is_numeric():
        numbers = column.cast(pl.Float64, strict=False)
        if numbers.null_count() > column.null_count():
            return _iso(column), ""
        column = numbers
    seconds = column.cast(pl.Float64)
    usual = seconds.gather_every(max(len(seconds) // 10_000, 1)).abs().median()
    if not isinstance(usual, float) or not _LATEST < usual < float("inf"):
        return seconds, ""
    unit = next(name for name, each in _UNITS.items() if usual > each / 1e3 * _LATEST)
    return seconds / _UNITS[unit], f"times are in {unit}, guessed from their size"


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
