"""Columns of a table: usual names, by which a column that was not named is found or suggested; ids
without what nobody sees (blanks around them, marks of no width, the Unicode form in which an accent
is written); and times in seconds since 1970, from numbers or ISO 8601 dates and instants, which are
UTC where they name no zone.

Fields of text files: lines in UTF-8, integers, numbers, and ids as they are written and
numbered.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from fedrec.arrays import Int32s
from fedrec.errors import DataError, MalformedRowError

Ids = npt.NDArray[np.integer]

_INTEGER = re.compile(r"[+-]?[0-9]+")


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


_UNSEEN = "\u200b\u200c\u200d\u2060\ufeff"


def plain_id(text: str) -> str:
    """An id as it looks; 7.0 is 7, which a column of numbers with a gap was written as.

    >>> from fedrec.data.columns import plain_id
    >>> plain_id(" ann\\ufeff")
    'ann'
    """
    if text.isascii():
        plain = text.strip()
        return plain[:-2] if plain.endswith(".0") and plain[:-2].isdigit() else plain
    return unicodedata.normalize("NFC", text).strip().strip(_UNSEEN).strip()


def require_distinct(ids: Iterable[str], what: str, where: Path | str) -> None:
    """Raises DataError where ids look the same: each would be a person, or an item, of its own."""
    known = set(ids)
    changed = [(given, plain) for given in sorted(known) if (plain := plain_id(given)) != given]
    first = dict[str, str]()
    twins = [
        (first.setdefault(plain, plain if plain in known else given), given)
        for given, plain in changed
    ]
    if same := [(one, other) for one, other in twins if one != other]:
        one, other = same[0]
        raise DataError(
            f"{len(same):,} {what} ids of {where} are another's but for blanks, '.0' or the "
            f"Unicode form, such as {one!r} and {other!r}: each would be {what} of its own",
            "Strip the blanks and write one form (NFC; 7, not 7.0) of each id.",
        )


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


USUAL: dict[str, tuple[str, ...]] = {
    "user": (
        *("user", "user_id", "userid", "uid", "visitorid", "customer", "customer_id", "customerid"),
        *("reader", "reader_id", "reviewerid", "member", "member_id", "person", "account_id"),
        *("username", "user_name"),
    ),
    "item": (
        *("item", "item_id", "itemid", "iid", "movieid", "movie_id", "product_id", "productid"),
        *("news_id", "newsid", "article_id", "isbn", "asin", "parent_asin", "business_id", "book"),
        *("book_id", "movie", "film", "product", "article", "track", "track_id", "song", "song_id"),
        *("artist", "artist_id", "artistid"),
    ),
    "rating": (
        *("rating", "ratings", "stars", "star", "star_rating", "score", "scores", "rate", "grade"),
        *("overall", "user_rating", "book-rating", "preference"),
    ),
    "timestamp": ("timestamp", "time", "date", "datetime", "unixreviewtime"),
}
_OTHER_OPINIONS = (
    *("thumb", "thumbs", "thumb_up", "thumbs_up", "vote", "votes", "like", "liked", "likes"),
    *("dislike", "feedback", "label", "clicked", "click", "plays", "playcount", "play_count"),
    *("count", "counts", "listens", "views", "weight", "quantity", "qty", "watch_time"),
    *("watch_ratio", "playtime", "hours", "reaction", "event", "event_type", "action"),
    *("behavior", "behavior_type"),
)
"""Thumbs, counts and kinds of events: what says how much somebody liked an item without being a
rating."""


def plain_name(column: str) -> str:
    """A column's name without case, type (`rating:float`) and blanks."""
    return column.partition(":")[0].strip().lower().replace(" ", "_")


def usual(role: str, found: Iterable[str]) -> list[str]:
    """The columns that usually hold this role, the usual name first."""
    known = USUAL.get(role, ())
    return sorted(
        (name for name in found if plain_name(name) in known),
        key=lambda name: known.index(plain_name(name)),
    )


def guessed(role: str, found: Sequence[str], taken: str) -> str:
    """The column of users or items where none was named: the one that is called so, or of two
    columns the one that is not `taken` and not called as another role is; empty where there
    is none, or more than one."""
    alike = usual(role, found)
    elsewhere = {name for other in USUAL if other != role for name in usual(other, found)}
    others = [name for name in found if name not in {taken, *elsewhere, *opinions(found)}]
    if not alike and len(found) == 2 and len(others) == 1:
        return others[0]
    return alike[0] if len(alike) == 1 or (alike and plain_name(alike[0]) == role) else ""


def opinions(found: Iterable[str]) -> list[str]:
    """The columns that look like a rating, a thumb or a count."""
    return [name for name in found if plain_name(name) in (*USUAL["rating"], *_OTHER_OPINIONS)]


def meant(role: str, name: str, found: Collection[str]) -> str:
    """A question to whoever named a column that is not there; empty where none is like it."""
    near: Sequence[str] = usual(role, found) or get_close_matches(name, found, n=1)
    return f"Did you mean {near[0]!r}? " if near else ""
