"""`Interactions` of the rows of a file: what is outside the public scale or written twice is
refused, or resolved and counted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float32s, Int32s, Int64s
from fedrec.data.dataset import ReadReport
from fedrec.data.interactions import Interactions
from fedrec.data.kinds import KINDS, Kind
from fedrec.errors import MalformedRowError, SettingsError

Duplicates = Literal["auto", "refuse", "last", "mean"]
OutOfRange = Literal["refuse", "clip", "drop"]
Missing = Literal["refuse", "drop"]


@dataclass(frozen=True)
class Policies:
    """What to do with rows that contradict the public scale or each other. Raises SettingsError on
    an unknown policy.

    duplicates: `auto` refuses a second rating and merges repeated clicks, which every click log
    has; `last` keeps the latest time (the last row where times are equal or missing), `mean` the
    mean value and the latest time. missing: rows that lack a value, where readers know of them.
    """

    duplicates: Duplicates = "auto"
    out_of_range: OutOfRange = "refuse"
    missing: Missing = "refuse"

    def __post_init__(self) -> None:
        for name, value, known in (
            ("duplicates", self.duplicates, get_args(Duplicates)),
            ("out_of_range", self.out_of_range, get_args(OutOfRange)),
            ("missing", self.missing, get_args(Missing)),
        ):
            if value not in known:
                raise SettingsError(
                    f"{name} = {value!r} is not a policy", f"Use one of: {', '.join(known)}."
                )

    def of(self, kind: Kind) -> Duplicates:
        """What `duplicates` means for this kind of events."""
        return KINDS[kind].duplicates if self.duplicates == "auto" else self.duplicates


@dataclass(frozen=True)
class Rows:
    """Columns of one file in the file's order, users and items already numbered.

    users, items: (n,) int32. values: (n,) float32, or None for clicks. times: (n,) int64 seconds,
    or None. Row r stands on line `lines[r]`, or `first_line + r` where `lines` is None.
    """

    path: Path
    users: Int32s
    items: Int32s
    values: Float32s | None
    times: Int64s | None
    first_line: int = 1
    lines: Int32s | Int64s | None = None

    def __len__(self) -> int:
        return len(self.users)

    def line(self, row: int) -> int:
        """The line of the file that a row stands on, from 1."""
        return self.first_line + row if self.lines is None else int(self.lines[row])

    def take(self, index: npt.NDArray[np.integer]) -> Rows:
        """The rows at `index`, in that order."""
        return replace(
            self,
            users=self.users[index],
            items=self.items[index],
            values=None if self.values is None else self.values[index],
            times=None if self.times is None else self.times[index],
            lines=None if self.lines is None else self.lines[index],
        )


def resolve(
    rows: Rows,
    *,
    num_users: int,
    num_items: int,
    value_range: tuple[float, float],
    kind: Kind,
    policies: Policies,
) -> tuple[Interactions, ReadReport]:
    """Rows to events sorted by user and item, each pair once, every value in `value_range`.

    Raises MalformedRowError at the first offending line where the policy is to refuse.
    """
    report = ReadReport(rows_read=len(rows), rows_kept=len(rows))
    rows, report = _in_range(rows, value_range, policies.out_of_range, report)
    order = np.argsort(rows.users.astype(np.int64) * num_items + rows.items, kind="stable")
    again = _repeats(rows, order)
    if again.any():
        if policies.of(kind) == "refuse":
            _refuse_duplicate(rows, order, again)
        rows, order = _merge(rows, order, policies.of(kind))
        report = replace(report, duplicates_resolved=int(again.sum()), rows_kept=len(order))
    rows = rows.take(order)
    user_ptr = np.concatenate(
        [[0], np.cumsum(np.bincount(rows.users, minlength=num_users))]
    ).astype(np.int64)
    values = rows.values if KINDS[kind].rated else None
    if values is None:
        values = np.ones(len(rows), np.float32)
    return Interactions(
        user_ptr, rows.items, values, num_items, value_range, kind, rows.times
    ), report


def _in_range(
    rows: Rows, value_range: tuple[float, float], policy: OutOfRange, report: ReadReport
) -> tuple[Rows, ReadReport]:
    """Apply the policy for values outside the scale."""
    if rows.values is None:
        return rows, report
    low, high = value_range
    outside = ~((rows.values >= low) & (rows.values <= high))
    if not (count := int(outside.sum())):
        return rows, report
    first = int(np.flatnonzero(outside)[0])
    if policy == "refuse" or not np.isfinite(rows.values[outside]).all():
        raise MalformedRowError(
            rows.path,
            rows.line(first),
            f"a rating in [{low:g}, {high:g}]",
            f"{rows.values[first]:g}",
            "Correct the line or the scale, or choose out_of_range = clip or drop.",
        )
    if policy == "clip":
        return replace(rows, values=np.clip(rows.values, low, high).astype(np.float32)), replace(
            report, out_of_range_clipped=count
        )
    kept = np.flatnonzero(~outside)
    if rows.lines is None:
        rows = replace(
            rows, lines=np.arange(rows.first_line, rows.first_line + len(rows), dtype=np.int32)
        )
    return rows.take(kept), replace(report, out_of_range_dropped=count, rows_kept=len(kept))


def _repeats(rows: Rows, order: Int64s) -> npt.NDArray[np.bool_]:
    """Whether a position of `order`, the first left out, has the user and item of the position
    before."""
    users, items = rows.users[order], rows.items[order]
    return np.asarray((users[1:] == users[:-1]) & (items[1:] == items[:-1]))


def _refuse_duplicate(rows: Rows, order: Int64s, again: npt.NDArray[np.bool_]) -> None:
    place = int(np.argmin(np.where(again, order[1:], len(order))))
    second, first = int(order[place + 1]), int(order[place])
    raise MalformedRowError(
        rows.path,
        rows.line(second),
        "one row per user and item",
        f"the pair of line {rows.line(first)} again",
        "Drop the line, or choose duplicates = last or mean.",
    )


def _merge(rows: Rows, order: Int64s, policy: Duplicates) -> tuple[Rows, Int64s]:
    """One row per pair: within a pair the latest row stands for it, with the mean value where the
    policy says so."""
    if rows.times is not None:
        order = np.lexsort((rows.times, rows.items, rows.users)).astype(np.int64)
    starts = np.flatnonzero(np.concatenate([[True], ~_repeats(rows, order)]))
    lasts = order[np.concatenate([starts[1:], [len(order)]]) - 1]
    if policy == "mean" and rows.values is not None:
        sizes = np.diff(np.concatenate([starts, [len(order)]]))
        values = rows.values.copy()
        values[lasts] = np.add.reduceat(rows.values[order].astype(np.float64), starts) / sizes
        rows = replace(rows, values=values)
    return rows, lasts
