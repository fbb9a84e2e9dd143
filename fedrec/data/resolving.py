"""`Interactions` of the rows of a file: what is outside the public scale or written twice is
refused, or resolved and counted. Where training, validation and test rows have files of their own,
no part has what an earlier one has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import polars as pl

from fedrec.arrays import Float32s, Int32s, Int64s
from fedrec.data.interactions import Catalogue, Interactions, ReadReport
from fedrec.data.item_tables import PARQUET
from fedrec.data.kinds import KINDS, Kind
from fedrec.errors import DataError, LeakageError, MalformedRowError, SettingsError

Duplicates = Literal["auto", "refuse", "last", "mean", "sum"]
OutOfRange = Literal["refuse", "clip", "drop"]
Missing = Literal["refuse", "drop"]
PARTS = ("train", "validation", "test")
"""Names, before the suffix, of the files of a folder that is divided already."""


@dataclass(frozen=True)
class Policies:
    """What to do with rows that contradict the public scale or each other. Raises SettingsError on
    an unknown policy.

    duplicates: `auto` refuses a second rating and merges repeated clicks, which every click log
    has; `last` keeps the latest time (the last row where times are equal or missing), `mean` the
    mean value and the latest time, `sum` the sum of plays. missing: rows that lack a
    value, where readers know of them.
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
            "Correct the line or the scale, or choose out_of_range = clip or drop (--set "
            "data.out_of_range=drop).",
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
    users = rows.users[order]
    items = rows.items[order]
    return np.asarray((users[1:] == users[:-1]) & (items[1:] == items[:-1]))


def _refuse_duplicate(rows: Rows, order: Int64s, again: npt.NDArray[np.bool_]) -> None:
    place = int(np.argmin(np.where(again, order[1:], len(order))))
    second = int(order[place + 1])
    first = int(order[place])
    raise MalformedRowError(
        rows.path,
        rows.line(second),
        "one row per user and item",
        f"the pair of line {rows.line(first)} again",
        "Drop the line, or choose duplicates = last, mean or sum (--set data.duplicates=last).",
    )


def _merge(rows: Rows, order: Int64s, policy: Duplicates) -> tuple[Rows, Int64s]:
    """One row per pair: within a pair the latest row stands for it, with the mean value where the
    policy says so."""
    if rows.times is not None:
        order = np.lexsort((rows.times, rows.items, rows.users)).astype(np.int64)
    starts = np.flatnonzero(np.concatenate([[True], ~_repeats(rows, order)]))
    lasts = order[np.concatenate([starts[1:], [len(order)]]) - 1]
    if policy in ("mean", "sum") and rows.values is not None:
        sizes = np.diff(np.concatenate([starts, [len(order)]])) if policy == "mean" else 1
        values = rows.values.copy()
        values[lasts] = np.add.reduceat(rows.values[order].astype(np.float64), starts) / sizes
        rows = replace(rows, values=values)
    return rows, lasts


def is_divided(folder: Path) -> bool:
    """Whether a folder holds tables of training and of test rows."""
    return _part(folder, "train") is not None and _part(folder, "test") is not None


def sources(path: Path, validation: str, test: str) -> dict[str, Path]:
    """The file, or folder of Parquet parts, of each of PARTS that there is."""
    if validation and not test:
        raise SettingsError("data.validation needs data.test beside it", "Name the test rows too.")
    if path.is_dir() and is_divided(path):
        if test:
            raise SettingsError(
                f"{path} has test rows of its own, and data.test names others",
                "Name the file of training rows as data.path.",
            )
        return {name: file for name in PARTS if (file := _part(path, name)) is not None}
    return {"train": path} | {
        name: Path(file) for name, file in (("validation", validation), ("test", test)) if file
    }


def _part(folder: Path, name: str) -> Path | None:
    """`train.csv`, `train.csv.gz`, `train.parquet`, ...: the only one there is.

    Raises DataError where there are two."""
    known = (".csv", ".tsv", ".tab", ".jsonl", *PARQUET)
    found = sorted(
        file
        for file in folder.glob(f"{name}.*")
        if file.name.lower().removesuffix(".gz") in {f"{name}{end}" for end in known}
    )
    if len(found) > 1:
        raise DataError(
            f"{folder} holds {found[0].name} and {found[1].name}",
            "Leave one of them there, or name the files you mean.",
        )
    return found[0] if found else None


def alike(frames: Sequence[pl.DataFrame]) -> list[pl.DataFrame]:
    """Frames of one schema: ids that are numbers in one file and text in another are text."""
    for role in ("user", "item"):
        whole = all(frame[role].dtype.is_integer() for frame in frames)
        frames = [
            frame.with_columns(
                pl.col(role).cast(pl.Int64)
                if whole
                else pl.col(role).cast(pl.String).cast(pl.Categorical)
            )
            for frame in frames
        ]
    return list(frames)


def apart(
    parts: dict[str, Interactions],
    source: dict[str, Path],
    catalogue: Catalogue,
    duplicates: Duplicates,
) -> tuple[dict[str, Interactions], tuple[str, ...]]:
    """Parts that share no pair of user and item: what an earlier part has is left out of a later
    one, or refused as repeated rows are."""
    seen = np.zeros(0, np.int64)
    apart = dict[str, Interactions]()
    notes = list[str]()
    for name, events in parts.items():
        keys = events.users.astype(np.int64) * events.num_items + events.items
        again = np.isin(keys, seen)
        if again.any():
            k, j = divmod(int(keys[again][0]), events.num_items)
            found = (
                f"{int(again.sum())} rows of {source[name].name} repeat a user and item of an "
                "earlier part"
            )
            if duplicates == "refuse":
                first = f"the first: user {catalogue.user_ids[k]!r}, item {catalogue.item_ids[j]!r}"
                raise LeakageError(
                    f"{found}, {first}",
                    (
                        'Drop them from one file, or set data.duplicates = "last", which leaves '
                        "them out."
                    ),
                )
            if again.all():
                raise DataError(f"{found}, and none is left", "Give rows that others lack.")
            notes.append(f"{found} and were left out of it")
        apart[name] = events.select(~again)
        seen = np.concatenate([seen, keys[~again]])
    return apart, tuple(notes)
