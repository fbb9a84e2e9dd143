"""Values as they are written: ids, numbers with a point or a comma, and times in seconds since 1970
from numbers, ISO 8601 dates and instants (UTC where they name no zone), or a format that was said.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

import numpy as np
import polars as pl

from fedrec.data.delimited import NO_VALUE, is_number
from fedrec.errors import MalformedRowError, SettingsError

AN_ID = "an id as text or as an integer"
FLOATED = (
    "It went through a floating-point number, which makes one id of several: write ids as they "
    "were, as text or integers (pandas: dtype=str; a spreadsheet: format the column as text)."
)
_FLOATED = r"^[+-]?[0-9]+(\.0*|(\.[0-9]+)?[eE]\+[0-9]+|\.[0-9]+[eE]-?[0-9]+)$"
_QUOTED = r'^="([^"]*)"$'
_INSTANT = pl.Datetime("us")
_DATE = "%Y-%m-%d"
_FORMATS = ("%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M:%S%.f")
_OFFSETS = ("%Y-%m-%d %H:%M%:z", "%Y-%m-%d %H:%M:%S%:z", "%Y-%m-%d %H:%M:%S%.f%:z")
_ZONE = r"(Z|UTC|:\d\d(\.\d+)?\s?[+-]\d\d:?\d\d)$"
ZONED = "a time zone"
UNZONED = "no time zone"
_UNITS = {"seconds": 1.0, "milliseconds": 1e3, "microseconds": 1e6, "nanoseconds": 1e9}
_OLD = 631_152_000.0  # 1990: years, and days written as 20200131, are no seconds
_FIRST_DAY, _LAST_DAY = 19_000_101, 21_001_231
_LATEST = 1e11
"""Seconds of the year 5138: larger times are in milliseconds, a thousand times larger ones in
microseconds, and a million times larger ones in nanoseconds."""
_NO_TIMES = (pl.Boolean, pl.Time, pl.Duration, pl.Binary, pl.Object)
_COMMA = r"^[+-]?([0-9]+|[0-9]{1,3}(\.[0-9]{3})+)(,[0-9]+)?$"
_DAYS = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%y")
_CLOCKS = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
_CORRECT = "Correct the line, or drop it."
_PLAIN = (
    "Correct the line, or drop it. If the whole column is so, write plain numbers in it, 4 for 4/5 "
    "or ★★★★, or name another."
)


def numbers_of(column: pl.Series, decimal: str) -> pl.Series:
    """Texts as float32, null where one is no number. decimal: the mark before decimals; with a
    comma, points stand between thousands."""
    if decimal == ",":
        column = column.str.strip_chars()
        plain = column.str.replace_all(".", "", literal=True).str.replace(",", ".", literal=True)
        column = pl.select(pl.when(column.str.contains(_COMMA)).then(plain)).to_series()
    return column.cast(pl.Float32, strict=False).alias("rating")


def require_time_format(form: str) -> None:
    """Raises SettingsError where a format of times gives no day."""
    if form and _by_format(pl.Series(["x"]), form, datetime(2001, 2, 3)) is None:
        raise SettingsError(
            f"data.time_format = {form!r} is no format of times",
            "Use strftime's directives for day, month and year, for example %d.%m.%Y %H:%M.",
        )


def _by_format(column: pl.Series, form: str, probe: datetime | None = None) -> pl.Series | None:
    """Instants of texts; None where the format does not give back `probe`."""
    try:
        if probe is not None and pl.Series([probe.strftime(form)]).str.to_datetime(
            form, strict=False, time_unit="us"
        ).to_list() != [probe]:
            return None
        return column.str.strip_chars().str.to_datetime(form, strict=False, time_unit="us")
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, ValueError):
        return None


def first_fault(
    texts: Mapping[str, str],
    columns: Mapping[str, str],
    first_time: str,
    decimal: str,
    time_format: str,
) -> tuple[str, str, str] | None:
    """What was expected of the first value of a row that is none, what was found, and what to do
    about all of its values. texts, columns: by role. first_time: of the file."""
    faults = list[tuple[str, str, str]]()
    remedies = list[str]()
    for role, name in columns.items():
        text = texts[role]
        if role == "timestamp":
            words, remedy = time_fault(text, first_time, time_format)
        elif role == "rating":
            words, remedy = _number_fault(text, decimal)
        else:
            words, remedy = "" if text.strip() not in NO_VALUE else "an id", ""
        if words:
            faults.append((f"{words} as {name}", text[:80], ""))
            remedies += [remedy] if remedy else []
    if not faults:
        return None
    return (*faults[0][:2], " ".join(remedies) or _CORRECT)


def _number_fault(text: str, decimal: str) -> tuple[str, str]:
    if decimal == ",":
        right = bool(re.search(_COMMA, text.strip()))
        return ("" if right else "a number with a decimal comma"), ""
    if is_number(text):
        return "", ""
    if is_number(text.strip()):
        return "a number without blanks around it", "Remove the blanks of the column."
    if re.search(_COMMA, text.strip()):
        return "a number with a point before its decimals", (
            "Write numbers without separators of thousands; if a comma stands before decimals, say "
            "so: --decimal , (data.decimal in a scenario, decimal=',' in Python)."
        )
    if text.lower() in ("true", "false", "yes", "no"):
        return "a finite number", "Write 1 for what is true and 0 for what is not."
    return "a finite number", _PLAIN


def time_fault(text: str, first: str, form: str = "") -> tuple[str, str]:
    """What was expected in place of a text, by the first time of its column and the format that was
    said, and what to do; empty where the text is such a time."""
    if form:
        told = _by_format(pl.Series([text]), form)
        return ("" if told is not None and told.null_count() == 0 else f"a time as {form}"), ""
    if not is_number(text) and _iso(pl.Series([text])).null_count():
        fitting = [
            day + clock
            for day, clock in product(_DAYS, _CLOCKS)
            if (told := _by_format(pl.Series([text]), day + clock)) is not None
            and told.null_count() == 0
        ]
        # %Y takes two digits for the year 20, which nobody means
        fitting = [
            one for one in fitting if ("%y" in one) == bool(re.search(r"\D\d\d$", text))
        ] or (fitting[:1])
        said = " or ".join(f"--time-format '{one}'" for one in fitting[:2])
        remedy = f"Say how times are written: {said} (data.time_format, time_format=)."
        return "a time (seconds or an ISO date)", remedy if fitting else ""
    if is_number(text) == is_number(first):
        return "", ""
    return f"times of one kind (the first is {'a number' if is_number(first) else 'a date'})", ""


@dataclass(frozen=True)
class Times:
    """Times of a column.

    seconds: (n,) float64, null where a value is no time. unit: of the numbers, by their size, or
    whether dates and instants name a zone; empty where all are zero. other: the first row of
    another unit: which unit the rest has must not depend on how many rows one person has."""

    seconds: pl.Series
    unit: str = ""
    other: int | None = None

    @property
    def guessed(self) -> str:
        """What was guessed, in words; empty where it is what everybody expects."""
        if self.unit == "seconds" and (latest := self.seconds.max()) < _OLD:  # type: ignore[operator]
            day = datetime.fromtimestamp(float(latest), UTC).date()  # type: ignore[arg-type]
            form = "; 20200131 for a day needs --time-format %Y%m%d (time_format=)"
            hint = form if _FIRST_DAY <= latest <= _LAST_DAY else ""  # type: ignore[operator]
            return f"times are seconds since 1970, guessed: the last is on {day}{hint}"
        if self.unit in {"", "seconds", ZONED}:
            return ""
        if self.unit == UNZONED:
            return "times name no time zone and count as UTC"
        return f"times are in {self.unit}, guessed from their size"


def times_of(column: pl.Series, form: str = "") -> Times:
    """Times of a column of numbers, dates or texts. form: of texts, as `require_time_format`
    knows it; empty takes ISO dates."""
    if form:
        told = _by_format(column.cast(pl.String), form)
        assert told is not None  # the format was checked
        instants = any(mark in form for mark in ("%H", "%I"))
        return Times(told.dt.timestamp("us").cast(pl.Float64) / 1e6, UNZONED if instants else "")
    if column.dtype.is_nested() or column.dtype in _NO_TIMES:
        return Times(pl.Series(column.name, [None] * len(column), pl.Float64))
    if column.dtype.is_temporal():
        seconds = column.cast(_INSTANT).dt.timestamp("us").cast(pl.Float64) / 1e6
        instants = column.dtype == pl.Datetime  # a date is the day that it says everywhere
        zoned = getattr(column.dtype, "time_zone", None) is not None
        return Times(seconds, ZONED if zoned else UNZONED if instants else "")
    if not column.dtype.is_numeric():
        numbers = column.cast(pl.Float64, strict=False)
        # the first says what all are, so that the row that differs is the one that is refused
        if numbers.drop_nulls().is_empty() or numbers[column.is_not_null().arg_max() or 0] is None:
            return _dates(column)
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


def in_unit(unit: str) -> str:
    """What times of a unit are, or have."""
    return f"have {unit}" if unit in {ZONED, UNZONED} else f"are in {unit}"


def _dates(column: pl.Series) -> Times:
    """Dates and instants as text; what is neither has no zone to be compared."""
    seconds = _iso(column)
    told = seconds.is_not_null()
    zones = column.cast(pl.String).str.contains(_ZONE)
    if not (told & zones).any():
        instants = (told & column.cast(pl.String).str.contains(":")).any()
        return Times(seconds, UNZONED if instants else "")
    first = bool(zones.filter(told)[0])
    others = (told & (zones != first)).arg_true()
    other = int(others[0]) if len(others) else None
    return Times(seconds, ZONED if first else UNZONED, other)


def _iso(column: pl.Series) -> pl.Series:
    texts = column.cast(pl.String).str.replace(r"\s?(Z|UTC)$", "")
    texts = texts.str.replace("T", " ", literal=True)
    found = texts.str.to_date(_DATE, strict=False).cast(_INSTANT)
    for form in _FORMATS:
        found = found.fill_null(texts.str.to_datetime(form, strict=False).cast(_INSTANT))
    if found.null_count():
        for form in _OFFSETS:
            zoned = texts.str.to_datetime(form, strict=False, time_zone="UTC")
            found = found.fill_null(zoned.dt.replace_time_zone(None).cast(_INSTANT))
    return found.dt.timestamp("us").cast(pl.Float64) / 1e6


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
