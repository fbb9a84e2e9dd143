"""Columns of a table by their roles: as they were named, or guessed where the names are usual."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from fedrec.data.columns import guessed, like_opinions, like_ratings, opinions, plain_name, usual
from fedrec.data.values import time_fault, times_of
from fedrec.errors import SettingsError, UnusedColumnsWarning, warn


@dataclass(frozen=True)
class TableColumns:
    """Which column holds what; `rating` None means clicks, `timestamp` None means no times."""

    user: str = "user"
    item: str = "item"
    rating: str | None = None
    timestamp: str | None = None

    def __post_init__(self) -> None:
        """Raises SettingsError where two are one column."""
        names = self.names()
        for role, name in names.items():
            other = next(earlier for earlier, column in names.items() if column == name)
            if other != role:
                raise SettingsError(
                    f"{other} and {role} are both the column {name!r}", "Name two columns."
                )

    def names(self) -> dict[str, str]:
        """Role to column name, for the columns there are."""
        roles = {
            "user": self.user,
            "item": self.item,
            "rating": self.rating,
            "timestamp": self.timestamp,
        }
        return {role: name for role, name in roles.items() if name is not None}


def used_columns(
    named: TableColumns,
    found: Sequence[str],
    *,
    rated: bool,
    name: str,
    first: Callable[[Sequence[str]], Mapping[str, Iterable[object]]],
    rating: str = "rating",
) -> tuple[TableColumns, tuple[str, ...]]:
    """The columns of a table as they were named, and notes on those guessed and not used.

    Where there is no column user, or item, the one that is usually called so is taken. rated:
    whether a scale or a threshold asks for ratings: without a name they are the column `rating`,
    else the one that is called as ratings, thumbs or counts are. name: of the table. first: the
    first values of columns; times are taken from the column that is called so where these are
    times. Warns with `UnusedColumnsWarning` of one that looks like a rating, a
    thumb or a count, by its name or by its values. Raises SettingsError
    where ratings have no scale, or several may be meant."""
    named, guesses = _with_guesses(named, found)
    named, timed = _with_times(named, found, first)
    guesses = (*guesses, *timed)
    taken = named.names().values()
    alike = usual("rating", found) or opinions(found)
    # what grows with dislike is never guessed
    alike = [column for column in alike if column not in taken and plain_name(column) != "dislike"]
    if named.rating is None and rated:
        if rating not in found and len(alike) > 1:
            raise SettingsError(
                f"{name} has several columns that may be ratings: {', '.join(alike)}",
                "Name one: rating=... in Python, data.columns.rating = ... in a scenario.",
            )
        chosen = alike[0] if alike and rating not in found else rating
        named = replace(named, rating=chosen)
        if chosen != rating:
            guesses = (*guesses, f"guessed: ratings in the column {chosen!r}")
    elif named.rating is None and rating in found and rating not in taken:
        raise SettingsError(
            f"{name} has a column {rating!r} but no rating_range",
            "If it holds ratings, give the public scale: data.rating_range = [1, 5], in Python "
            "rating_range=(1, 5), for fedrec train --scale 1 5. To count ratings, thumbs or plays "
            'from a lowest one on as clicks: data.kind = "clicks" and data.click_threshold, in '
            "Python click_threshold=1, for fedrec train --clicks-from 1. Where every row is a "
            "click, leave the column out.",
        )
    unused = [column for column in found if column not in named.names().values()]
    lost = []
    if set(named.names().values()) <= set(found):
        lost = like_opinions(unused) or ([] if named.rating else like_ratings(first(unused)))
    if lost:
        counts = "every row counts as a click" if named.rating is None else "ratings come elsewhere"
        warn(
            UnusedColumnsWarning(
                f"the column {lost[0]!r} is not used, and {counts}: name it as the rating with its "
                f"rating_range or a click_threshold (--rating {lost[0]}, --scale, --clicks-from), "
                "keep the rows that say a person liked an item, or drop it"
            )
        )
    names = ", ".join(name or "''" for name in unused)
    return named, (*guesses, f"columns not used: {names}") if unused else guesses


def _with_guesses(
    named: TableColumns, found: Sequence[str]
) -> tuple[TableColumns, tuple[str, ...]]:
    """Users and items in columns of other names, where nothing was said and one is meant."""
    roles = {role: getattr(named, role) for role in ("user", "item")}
    lost = [role for role, name in roles.items() if name == role and name not in found]
    for role in lost:
        kept = [name for name in roles.values() if name in found]
        roles[role] = guessed(role, found, kept[0] if len(kept) == 1 else "") or role
    guesses = [f"{role}s in the column {roles[role]!r}" for role in lost if roles[role] in found]
    note = (f"guessed: {', '.join(guesses)}",) if guesses else ()
    return (replace(named, **roles) if roles["user"] != roles["item"] else named), note


def _with_times(
    named: TableColumns,
    found: Sequence[str],
    first: Callable[[Sequence[str]], Mapping[str, Iterable[object]]],
) -> tuple[TableColumns, tuple[str, ...]]:
    """Times in the column that is called so, where nothing was said, one is meant, and its first
    values are times of one unit."""
    alike = [name for name in usual("timestamp", found) if name not in named.names().values()]
    if named.timestamp is not None or not alike:
        return named, ()
    if len(alike) > 1 and plain_name(alike[0]) != "timestamp":
        return named, ()
    (values,) = first(alike[:1]).values()
    given = list(values)
    times = times_of(pl.Series(given, strict=False))
    known = times.seconds.is_finite().fill_null(value=False)
    if times.other is not None or known.is_empty() or not known.all():
        _, remedy = time_fault(str(given[0]), "") if given else ("", "")
        return named, (f"no times are read from {alike[0]!r}: {remedy}",) if remedy else ()
    return replace(named, timestamp=alike[0]), (f"guessed: times in the column {alike[0]!r}",)
