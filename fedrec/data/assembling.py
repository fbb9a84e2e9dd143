"""A data set from rows, in one order wherever they come from: rows of one user and item are merged,
then a threshold makes clicks of ratings, thumbs or plays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedrec.arrays import Int32s
from fedrec.data.columns import are_counts
from fedrec.data.delimited import is_integer
from fedrec.data.features import PublicFeatures
from fedrec.data.ids import require_distinct, require_named
from fedrec.data.interactions import (
    CATALOGUE_OF_ROWS,
    Catalogue,
    Dataset,
    FileDigest,
    Interactions,
    Provenance,
    ReadReport,
    added,
    digest_file,
)
from fedrec.data.item_tables import ItemTable
from fedrec.data.kinds import KINDS, Kind
from fedrec.data.numbering import number_ids
from fedrec.data.resolving import Duplicates, Policies, Rows, alike, apart, resolve
from fedrec.data.table_columns import TableColumns
from fedrec.data.table_files import table_files
from fedrec.errors import DataError, SettingsError

Frame = tuple[pl.DataFrame, int, tuple[str, ...]]
"""Columns by role, the line of the first row, and notes."""


@dataclass(frozen=True)
class RowRules:
    """What the rows of a source say, and what becomes of them.

    name: of the source, in errors. click_threshold: the lowest value that is a click, of merged
    rows; None keeps ratings. Values need a scale or a threshold.

    Raises SettingsError where these contradict each other."""

    name: str
    columns: TableColumns
    policies: Policies = field(default_factory=Policies)
    rating_range: tuple[float, float] | None = None
    click_threshold: float | None = None
    items: ItemTable | None = None

    def __post_init__(self) -> None:
        threshold = self.click_threshold
        if threshold is not None and not _is_number(threshold):
            raise SettingsError(f"click_threshold = {threshold!r} is no number", "For example 1.")
        if self.rating_range is not None and not _is_scale(self.rating_range):
            raise SettingsError(
                f"rating_range = {self.rating_range} is no scale",
                "Give its lowest and highest value, as in [1, 5].",
            )
        if self.columns.rating is not None and self.rating_range is None and threshold is None:
            raise SettingsError(
                f"{self.name} has ratings but no rating_range",
                "Give the public scale, as in rating_range = [1, 5] (--scale 1 5), count them as "
                "clicks from a lowest one on (click_threshold, --clicks-from), or name no rating.",
            )
        valued = self.columns.rating is not None
        if self.rating_range is None and self.policies.out_of_range != "refuse":
            raise SettingsError(
                f"out_of_range = {self.policies.out_of_range!r} is of ratings with a scale",
                "Give rating_range, or leave it out.",
            )
        if not valued and self.policies.duplicates in ("mean", "sum"):
            raise SettingsError(
                f"duplicates = {self.policies.duplicates!r} is of ratings or counts",
                'Name their column, or say "last": clicks have no value.',
            )

    @property
    def kind(self) -> Kind:
        """What the data set holds."""
        rated = self.columns.rating is not None and self.click_threshold is None
        return "ratings" if rated else "clicks"

    @property
    def scale(self) -> tuple[float, float]:
        """The public scale of the data set's values."""
        if self.rating_range is None or not KINDS[self.kind].rated:
            return 0.0, 1.0
        return float(self.rating_range[0]), float(self.rating_range[1])

    @property
    def duplicates(self) -> Duplicates:
        """What is done with a second row of a user and item: plays add up."""
        rating = self.columns.rating
        if rating is None or self.click_threshold is None or self.policies.duplicates != "auto":
            return self.policies.of(self.kind)
        return "sum" if self.rating_range is None and are_counts(rating) else "last"

    def read(
        self, rows: Rows, *, num_users: int, num_items: int
    ) -> tuple[Interactions, ReadReport]:
        """Rows as events with the values that were read, each user and item once."""
        valued = self.columns.rating is not None
        low, high = self.rating_range or ((-math.inf, math.inf) if valued else (0.0, 1.0))
        return resolve(
            rows,
            num_users=num_users,
            num_items=num_items,
            value_range=(float(low), float(high)),
            kind="ratings" if valued else "clicks",
            policies=replace(self.policies, duplicates=self.duplicates),
        )

    def counted(self, events: Interactions) -> Interactions:
        """What `read` gave as the data set has it."""
        if self.click_threshold is None or self.columns.rating is None:
            return events
        return events.as_clicks(self.click_threshold)

    def left_out(self, events: Interactions, clicks: Interactions, source: str) -> tuple[str, ...]:
        """A note on what is no click. Raises DataError where nothing is one."""
        left = len(events) - len(clicks)
        least = self.click_threshold or 0.0
        if left and not len(clicks):
            values = events.values
            raise DataError(
                f"no row of {source} has {least:g} or more, so none counts as a click",
                f"Its values are {values.min():g} to {values.max():g}: choose a lower "
                "click_threshold.",
            )
        note = f"{source}: {left:,} of {len(events):,} rows are below {least:g} and no clicks"
        return (note,) if left else ()

    def catalogue(self, item_ids: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """All items: those of the table of items, where there is one, and notes on what it lacks.

        Rows on other items are left out, so that which items there are is public."""
        if self.items is None:
            return item_ids, ()
        return self.items.ids, self.items.notes(item_ids)

    @property
    def titles(self) -> tuple[str, ...] | None:
        """Titles of items, where there is a table of them."""
        return None if self.items is None else self.items.shown

    @property
    def features(self) -> PublicFeatures:
        """Public features of items."""
        return PublicFeatures({}) if self.items is None else self.items.features

    @property
    def not_covered(self) -> tuple[str, ...]:
        """What no guarantee covers, where items were read off the rows."""
        return (CATALOGUE_OF_ROWS,) if self.items is None else ()


def dataset_of(
    source: dict[str, Path],
    format: str,
    rules: RowRules,
    frame_of: Callable[[Path], Frame],
    *,
    digests: Callable[[Mapping[str, Path], ItemTable | None], tuple[FileDigest, ...]] | None = None,
    notes: tuple[str, ...] = (),
) -> Dataset:
    """The data set of up to three sources of rows.

    Args:
        source: The file or folder of each part.
        format: The format's name.
        rules: What the rows say.
        frame_of: Reads one source.
        digests: Digests of everything that was read; None takes those of the files.
        notes: Further ones.

    Raises:
        DataError: A source has no row that counts, or ids of the parts do not meet.
        MalformedRowError: The rules refuse a row.
    """
    path = source["train"]
    table = rules.items
    frames, first_lines, said = zip(*(frame_of(file) for file in source.values()), strict=True)
    kept = [own["row"].to_numpy() if "row" in own.columns else None for own in frames]
    frames = tuple(own.drop("row", strict=False) for own in frames)
    frame = frames[0] if len(frames) == 1 else pl.concat(alike(frames))
    lengths = [len(own) for own in frames]
    del frames
    numbers = {role for role in ("user", "item") if frame[role].dtype.is_integer()}
    if table is not None and not all(
        is_integer(item, low=-(2**63), high=2**63 - 1) and str(int(item)) == item
        for item in table.ids
    ):
        numbers.discard("item")
    items, own_items = numbered_ids(frame["item"])
    notes += tuple(note for some in said for note in some)
    item_ids, more = rules.catalogue(own_items)
    notes += more
    if table is not None:
        place = {item: j for j, item in enumerate(item_ids)}
        items = np.array([place.get(item, -1) for item in own_items], dtype=np.int32)[items]
        known = items >= 0
        if not known.all():
            items, frame = items[known], frame.filter(known)
            there = np.split(known, np.cumsum(lengths)[:-1])
            kept = [
                np.flatnonzero(own) if row is None else row[own]
                for row, own in zip(kept, there, strict=True)
            ]
            lengths = [int(own.sum()) for own in there]
            notes += (other_items(len(known) - len(items), table.path.name),)
    users, user_ids = numbered_ids(frame["user"])
    require_distinct(user_ids, "user", path)
    require_distinct(item_ids, "item", path)
    columns = rules.columns
    values = frame["rating"].to_numpy() if columns.rating else None
    times = frame["timestamp"].to_numpy().astype(np.int64) if columns.timestamp else None
    del frame  # of 100 million rows it is 2 GB, and nobody needs it any more
    parts = dict[str, Interactions]()
    reports = list[ReadReport]()
    start = 0
    for (part, file), length, first_line, row in zip(
        source.items(), lengths, first_lines, kept, strict=True
    ):
        rows = Rows(file, users, items, values, times, first_line)
        if len(source) > 1:  # those of a single file would only be copied
            rows = rows.take(np.arange(start, start + length))
        if row is not None:
            rows = replace(rows, lines=row.astype(np.int64) + first_line)
        parts[part], report = rules.read(rows, num_users=len(user_ids), num_items=len(item_ids))
        if not len(parts[part]):
            low, high = rules.rating_range or (0.0, 1.0)
            raise DataError(
                f"no rating of {file.name} lies in [{low:g}, {high:g}]",
                "Give the scale of these ratings as rating_range.",
            )
        reports = [*reports, report]
        start = start + length
    catalogue = Catalogue(item_ids, rules.titles, user_ids)
    if len(parts) > 1:
        notes += _met(parts, source, catalogue)
        parts, repeated = apart(parts, source, catalogue, rules.duplicates)
        notes += repeated
    for part, file in source.items():
        clicks = rules.counted(parts[part])
        notes += rules.left_out(parts[part], clicks, file.name)
        parts[part] = clicks
    read = digests_of(source, table) if digests is None else digests(source, table)
    provenance = Provenance(format, read, added(reports, notes), rules.not_covered)
    return Dataset(
        parts["train"],
        catalogue,
        rules.features,
        provenance,
        parts.get("test"),
        parts.get("validation"),
        columns.names(),
        frozenset(numbers),
    )


def other_items(rows: int, table: str) -> str:
    """A note on rows that are left out, for whoever holds them."""
    what = "row" if rows == 1 else "rows"
    return f"left out: {rows:,} {what} on items that {table} does not name"


def _met(
    parts: Mapping[str, Interactions], source: Mapping[str, Path], catalogue: Catalogue
) -> tuple[str, ...]:
    """Notes on ids of validation and test rows that training rows lack.

    Raises, and warns, as `require_named`."""

    def there(part: Interactions) -> dict[str, list[str]]:
        users, items = np.flatnonzero(np.diff(part.user_ptr)), np.unique(part.items)
        return {
            "users": [catalogue.user_ids[k] for k in users],
            "items": [catalogue.item_ids[j] for j in items],
        }

    known = there(parts["train"])
    found = [
        require_named(ids, known[what], "training", what=f"{what} of {source[part].name}")
        for part, own in parts.items()
        if part != "train"
        for what, ids in there(own).items()
    ]
    return tuple(filter(None, found))


def _is_number(given: Any) -> bool:
    return isinstance(given, Real) and not isinstance(given, bool) and math.isfinite(given)


def _is_scale(given: Any) -> bool:
    if not isinstance(given, Sequence) or len(given) != 2:
        return False
    return all(map(_is_number, given)) and bool(given[0] < given[1])


def digests_of(source: Mapping[str, Path], table: ItemTable | None) -> tuple[FileDigest, ...]:
    """Digests of every file that was read."""
    files = [digest_file(file) for place in source.values() for file in table_files(place)]
    return (*files, *([] if table is None else [digest_file(table.path, public=True)]))


def numbered_ids(ids: pl.Series) -> tuple[Int32s, tuple[str, ...]]:
    """Numbers 0..k-1 in the order of the ids (as numbers where all of them are numbers), and the
    ids as text."""
    if ids.dtype.is_integer():
        numbers, known = number_ids(ids.to_numpy())
        return numbers, tuple(map(str, known.tolist()))
    distinct = ids.unique()
    names = distinct.cast(pl.String).to_list()
    codes = distinct.to_physical().to_numpy()
    whole = all(
        name.isascii() and name.isdigit() and len(name) < 19 and (name == "0" or name[0] != "0")
        for name in names
    )
    order = sorted(range(len(names)), key=(lambda n: int(names[n])) if whole else names.__getitem__)
    place = np.zeros(int(codes.max()) + 1, dtype=np.int32)
    place[codes[order]] = np.arange(len(order), dtype=np.int32)
    return place[ids.to_physical().to_numpy()], tuple(names[n] for n in order)
