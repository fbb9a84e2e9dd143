"""A person's history in the containers that Python users have: item ids, or ratings by item id.

A mapping, a pandas Series whose index holds items, and a frame hold ratings; lists, sets, arrays
and generators hold ids. What could be read in two ways is refused by the name of its type.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

import numpy as np
import polars as pl

from fedrec.data.columns import like_opinions, opinions, usual
from fedrec.data.delimited import NO_VALUE
from fedrec.data.frames import polars_frame
from fedrec.data.ids import plain_id
from fedrec.data.values import FLOATED, times_of
from fedrec.errors import DataError, UnknownIdsWarning, UnusedColumnsWarning, warn

History = Mapping[Any, float] | Iterable[Any]
"""Item ids, or ratings by item id; also a pandas Series of ratings, or a frame."""

Entry = tuple[Any, Any]
"""An item and its rating, None where there is none."""

_REMEDY = "Give a list of item ids, ratings by item id (a dict), or a frame with a column of items."


@dataclass(frozen=True)
class Histories:
    """How histories are read. columns: role to the name that the data set's own table has for it.

    >>> from fedrec.api.histories import Histories
    >>> Histories({"item": "film"}).entries({"film": ["a", "b"], "rating": [5, 1]})
    [('a', 5), ('b', 1)]
    """

    columns: Mapping[str, str] = field(default_factory=dict)

    def entries(self, history: Any, what: str = "history") -> list[Entry]:
        """Items and ratings, in the history's order; of a frame with times, oldest first. what:
        words for it.

        Raises DataError on a container that is none, or could mean two things."""
        if isinstance(history, str | bytes):
            raise DataError(f"the {what} {history!r} is one text", _REMEDY)
        if _is_frame(history):
            return self._of_frame(polars_frame(history, what="history"))
        if isinstance(history, Mapping):
            return [(one_id(item), _rating(item, value)) for item, value in history.items()]
        if hasattr(history, "index") and hasattr(history, "to_numpy") and hasattr(history, "name"):
            return self._of_series(history)
        if hasattr(history, "__array__") and not isinstance(history, pl.Series):
            array = np.asanyarray(history)
            if array.ndim != 1:
                raise DataError(
                    f"the history is an array of shape {array.shape}",
                    "Give one dimension of ids, or ratings by item: dict(zip(ids, values)).",
                )
            history = array.tolist()
        if isinstance(history, pl.Series) and opinions([history.name]):
            raise DataError(
                f"the history is a Series of {history.name!r} without items",
                "Give a frame with a column of items beside it, or dict(zip(items, ratings)).",
            )
        if not isinstance(history, Iterable) or hasattr(history, "tocsr"):
            raise DataError(f"the {what} is a {type(history).__name__}", _REMEDY)
        items = [one_id(item) for item in history]
        _require_ids(items)
        return [(item, None) for item in items]

    def by_user(self, histories: Any) -> dict[Any, list[Entry]]:
        """Histories of many people, by their ids: of a mapping, or of a frame with a column of
        users. Raises DataError where it is neither."""
        people = isinstance(histories, Mapping) and not any(
            self._is("item", str(name)) for name in histories
        )
        if _is_frame(histories) and not people:
            frame = polars_frame(histories, what="frame of histories")
            name = self.column("user", frame, "histories")
            if frame[name].null_count():
                raise DataError(f"a row of histories has no {name}", "Fill it, or drop the row.")
            groups = frame.partition_by(name, as_dict=True, maintain_order=True)
            return {user: self._of_frame(own.drop(name)) for (user,), own in groups.items()}
        if hasattr(histories, "index") and hasattr(histories, "to_dict"):
            if not histories.index.is_unique:  # of which a mapping would keep the last alone
                raise DataError(
                    "a user of histories comes twice", "Give each one row, or a frame of rows."
                )
            histories = histories.to_dict()  # a pandas Series of lists, by user
        if not isinstance(histories, Mapping):
            raise DataError(
                f"histories is a {type(histories).__name__}, not a mapping by user id",
                "For example histories={'ann': ['3'], 'bob': []}.",
            )
        names = [str(user) for user in histories]
        if len({*names}) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise DataError(
                f"two users of histories are {twice!r}, one as text", "Give each an id of its own."
            )
        return {user: self.entries(history) for user, history in histories.items()}

    def _of_frame(self, frame: pl.DataFrame) -> list[Entry]:
        item = self.column("item", frame, "history")
        users = self._found("user", frame)
        if users and frame[users[0]].n_unique() > 1:
            raise DataError(
                f"the history holds {frame[users[0]].n_unique():,} users in {users[0]!r}",
                "Give the rows of one, or all of them as histories=frame.",
            )
        if times := self._found("timestamp", frame):
            frame = _oldest_first(frame, times[0])
        ratings = self._found("rating", frame)
        if len(ratings) > 1 and ratings[0] != "rating":
            raise DataError(
                f"the history has several columns of ratings: {', '.join(ratings)}",
                "Leave one of them.",
            )
        if not ratings and (unused := like_opinions(frame.columns)):
            warn(UnusedColumnsWarning(f"the column {unused[0]!r} of the history is not used"))
        items = frame[item].to_list()
        values = frame[ratings[0]].to_list() if ratings else [None] * len(items)
        rated = list(zip(items, values, strict=True))
        return [(one_id(one), _rating(one, value) if ratings else None) for one, value in rated]

    def _of_series(self, series: Any) -> list[Entry]:
        """A pandas Series: ids where it is called as items are, or has rows' numbers for an index;
        otherwise ratings by its index."""
        values = series.tolist()
        index = series.index
        names = [name for name in (series.name, index.name) if isinstance(name, str)]
        called_items = isinstance(series.name, str) and self._is("item", series.name)
        counted = type(index).__name__ == "RangeIndex" and index.name is None and index.step == 1
        numbers = getattr(series.dtype, "kind", "O") in "iufb" or all(
            isinstance(value, Real) for value in values
        )
        if called_items or (counted and index.start == 0) or not numbers:
            if not called_items and any(self._is("rating", name) for name in names):
                raise DataError(
                    f"the history is a Series of {series.name!r} without an index of items",
                    "Give series.set_axis(items), or dict(zip(items, ratings)).",
                )
            return [(one_id(value), None) for value in values]
        return [
            (one_id(item), _rating(item, value))
            for item, value in zip(index.tolist(), values, strict=True)
        ]

    def _is(self, role: str, name: str) -> bool:
        return name == self.columns.get(role) or bool(usual(role, [name]))

    def _found(self, role: str, frame: pl.DataFrame) -> list[str]:
        own = self.columns.get(role)
        return [own] if own in frame.columns else usual(role, frame.columns)

    def column(self, role: str, frame: pl.DataFrame, what: str) -> str:
        """The name of a frame's column of users or items: the data set's own, or a usual one.

        Raises DataError where there is none, or several. what: words for the frame."""
        found = self._found(role, frame)
        if len(found) == 1 or (found and found[0] == role):
            return found[0]
        raise DataError(
            f"the {what} is a frame with {len(found) or 'no'} columns of {role}s: it has "
            f"{', '.join(frame.columns)}",
            f"Call one {self.columns.get(role, role)!r}"
            f"{'; many people have histories=' if what == 'history' else ''}.",
        )


def _oldest_first(frame: pl.DataFrame, name: str) -> pl.DataFrame:
    """Raises DataError where a time is none, or of another unit than the first."""
    times = times_of(frame[name])
    if times.other is not None or times.seconds.null_count() > frame[name].null_count():
        raise DataError(
            f"the column {name!r} of the history does not hold times of one kind",
            "Write all in one unit, or as ISO times, all with a time zone or none.",
        )
    return frame.with_columns(times.seconds.alias(name)).sort(name, maintain_order=True)


def _is_frame(given: Any) -> bool:
    """Whether it is a frame, or a mapping of columns: a list is nobody's rating."""
    if isinstance(given, Mapping):
        columns = [isinstance(own, list | tuple | np.ndarray | pl.Series) for own in given.values()]
        return all(columns) and len({np.shape(own)[:1] for own in given.values()}) == 1
    return isinstance(given, pl.LazyFrame) or hasattr(given, "columns")


def one_id(item: Any) -> Any:
    """An id. Raises DataError on what is a container itself, such as a pair."""
    if isinstance(item, Iterable) and not isinstance(item, str):
        raise DataError(
            f"an id is a {type(item).__name__}: {item!r}",
            "Of rows, give a frame: polars.DataFrame(rows)."
            if isinstance(item, Mapping)
            else "Of pairs of item and rating, give dict(pairs).",
        )
    # 3.0 may be a known 3, which is said where the model's ids are known
    if isinstance(item, float | np.floating) and math.isfinite(item):
        limit = 2.0 ** (24 if isinstance(item, np.float32) else 53)
        # a fraction, or a size from which on floats skip whole numbers, is no id that was written
        if float(item) != math.floor(item) or abs(float(item)) >= limit:
            raise DataError(f"the id {item!r} is a float", FLOATED)
    return item


def id_column(name: str, ids: Sequence[Any]) -> pl.Series:
    """Ids as a column: of numbers where all are, else of texts."""
    if ids and all(isinstance(one, Integral) and not isinstance(one, bool) for one in ids):
        return pl.Series(name, [int(one) for one in ids])
    return pl.Series(name, [str(one) for one in ids], dtype=pl.String)


def _require_ids(items: Sequence[Any]) -> None:
    """Raises DataError where a list is no list of ids: a pair, or marks of all items."""
    text = [item for item in items if isinstance(item, str)]
    if text and (numbers := [one for one in items if isinstance(one, Real) and one == one]):
        raise DataError(
            f"the history holds a text and a number, {text[0]!r} and {numbers[0]!r}",
            "Give ratings by item, as in {'50': 5}, or ids of one type.",
        )
    marks = len(items) > 2 and all(isinstance(item, Real) and item in (0, 1) for item in items)
    if marks or any(isinstance(item, bool) for item in items):
        raise DataError(
            "marks, 0 or 1, stand in the place of ids",
            "Give the ids of those that are 1: [item for item, mark in zip(model.item_ids, marks) "
            "if mark].",
        )


def _rating(item: Any, value: Any) -> Any:
    """What a mapping says of an item. Raises DataError on no number."""
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise DataError(
            f"the rating {value!r} of item {str(item)!r} is no number",
            "Give ratings as numbers, or item ids alone; many people have histories=.",
        )
    return value


def warn_of_unknown(
    given: Sequence[Sequence[Any]], known: Container[str], example: str, *, what: str = "history"
) -> None:
    """Compare ids with those of a model. example: one that it has.

    Warns with `UnknownIdsWarning` where some are unknown, and raises DataError where all are, or
    where one is a known id but for its type or blanks."""
    lacking = [[item for item in items if str(item) not in known] for items in given]
    for items in lacking:
        for item in items:
            require_no_misspelling(item, known)
    count = sum(map(len, lacking))
    total = sum(map(len, given))
    if not count:
        return
    first = next(item for items in lacking for item in items)
    said = (
        f"{count:,} of the {total:,} ids of the {what} are not in the model: it has no "
        f"{first!r}, and ids such as {example!r}"
    )
    if count == total:
        raise DataError(said, "Give ids as the training data has them; they are in model.item_ids.")
    nothing = sum(
        bool(items) and len(items) == len(own) for items, own in zip(lacking, given, strict=True)
    )
    people = f"; of {nothing:,} of {len(given):,} users nothing is known" if nothing else ""
    warn(UnknownIdsWarning(f"{said}{people}; they are left out"))


def require_no_misspelling(
    item: Any, known: Container[str], what: str = "the model has no item"
) -> None:
    """Raises DataError on an unknown id that is a known one but for its type or blanks: a column of
    numbers with a gap becomes one of floats, and 3 becomes 3.0."""
    if item is None or str(item) in NO_VALUE:
        raise DataError(f"found {item!r} in the place of an id", "Drop it.")
    meant = plain_id(str(item))
    if meant in known:
        raise DataError(
            f"{what} {item!r}, but it has {meant!r}",
            "Give ids as the training data has them, for example as texts.",
        )
