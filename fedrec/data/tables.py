"""Any table with a row for each event: CSV and its kin, Parquet (a file or a folder of parts),
RecBole's typed `.inter` and `.item`.

Training, validation and test rows may be tables of their own: files that are named, or a folder of
`train.csv`, `validation.csv` and `test.csv` (or another suffix), as `fedrec data split` writes
them. They share one catalogue.

Ids may be numbers or text. A table of ratings needs its public scale (`rating_range`): a scale read
off the data would be a private fact printed as a public one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedrec.arrays import Int32s
from fedrec.data.columns import (
    guessed,
    like_opinions,
    like_ratings,
    opinions,
    plain_name,
    require_distinct,
    usual,
)
from fedrec.data.delimited import decoded, is_integer, number_ids, require_file
from fedrec.data.features import PublicFeatures
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
from fedrec.data.item_tables import PARQUET, ItemTable, read_item_table
from fedrec.data.kinds import KINDS, Kind
from fedrec.data.resolving import (
    Duplicates,
    Missing,
    OutOfRange,
    Policies,
    Rows,
    alike,
    apart,
    resolve,
    sources,
)
from fedrec.data.table_files import (
    JSON_LINES,
    clicks_from,
    column_names,
    first_values,
    is_json_lines,
    is_parquet,
    read_frame,
    table_files,
)
from fedrec.data.text_tables import (
    SEPARATORS,
    Header,
    Layout,
    layout_of,
    suffix_of,
)
from fedrec.errors import (
    DataError,
    MalformedRowError,
    SettingsError,
    UnusedColumnsWarning,
    warn,
)


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


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """What may be said of a table; see `read_table`."""

    user: str = "user"
    item: str = "item"
    rating: str | None = None
    timestamp: str | None = None
    rating_range: tuple[float, float] | None = None
    click_threshold: float | None = None
    separator: str = ""
    header: Header = "auto"
    validation: str = ""
    test: str = ""
    item_features: str | None = None
    item_separator: str = "|"
    min_items: int = 1
    duplicates: Duplicates = "auto"
    out_of_range: OutOfRange = "refuse"
    missing: Missing = "refuse"


def read_table(path: Path, options: TableOptions) -> Dataset:
    """A data set from tables: ratings from the column `rating` (see `used_columns` where a
    `rating_range` comes without a name), or clicks, one a row, where neither is given. Times are
    seconds or ISO dates. Without a header columns are called 1, 2, 3, ...: users are then in 1,
    items in 2 and, with a `rating_range`, ratings in 3, unless said otherwise.

    click_threshold: makes clicks of the rows whose column `rating` has so much or more, such as
    thumbs or counts of plays, which need no scale; the others count as nothing.

    separator, header: of text, see `text_tables.layout_of`. validation, test: tables of the same
    columns, `given_validation` and `given_test`; a folder of PARTS has them as they are named.

    item_features: a table of items whose column `item` is the id, `title` (if any) the title, every
    other column a feature bag with values separated by `item_separator`. Its items come first in
    the catalogue; items only the interactions know follow. Raises SettingsError when ratings, or a
    column "rating" that nobody named, come without `rating_range`; else as every reader.
    """
    asked = asked_table(path, options)
    liking = asked.click_threshold is not None
    return dataset_of(
        asked.source,
        "table",
        replace(asked.columns, rating=None) if liking else asked.columns,
        asked.frame_of,
        asked.rating_range,
        asked.items,
        asked.policies,
        digests=digests_of,
        notes=asked.notes,
    )


@dataclass(frozen=True)
class AskedTable:
    """What options say of a table, and how the rows of one of its files are read.

    source: the file or folder of each part. columns: by role. layout: of the training rows, None
    for Parquet.
    """

    source: dict[str, Path]
    columns: TableColumns
    layout: Layout | None
    rating_range: tuple[float, float] | None
    items: ItemTable | None
    policies: Policies
    frame_of: Callable[[Path], tuple[pl.DataFrame, int, tuple[str, ...]]]
    notes: tuple[str, ...] = ()
    click_threshold: float | None = None


def asked_table(path: Path, told: TableOptions) -> AskedTable:
    """The options of `read_table`, checked against the first lines of the file.

    Raises what `read_table` says of options."""
    source = sources(path, told.validation, told.test)
    user = told.user
    item = told.item
    scale = told.rating_range
    layout = _layout(
        source["train"], told.separator, told.header, {user, item, told.rating or "rating"}
    )
    numbered = layout is not None and not layout.header
    if numbered:
        user = "1" if user == "user" else user
        item = "2" if item == "item" else item
    third = "3" if numbered else "rating"
    found = column_names(source["train"], layout)
    columns, notes = used_columns(
        TableColumns(user, item, told.rating, told.timestamp),
        found,
        rated=scale is not None or told.click_threshold is not None,
        name=source["train"].name,
        first=partial(first_values, source["train"], layout),
        rating=third,
    )
    table = (
        None
        if told.item_features is None
        else read_item_table(
            Path(told.item_features),
            id_column=columns.item,
            separator=told.item_separator,
            min_items=told.min_items,
        )
    )

    def frame_of(file: Path) -> tuple[pl.DataFrame, int, tuple[str, ...]]:
        own = (
            layout
            if file == source["train"]
            else _layout(file, told.separator, told.header, set(columns.names().values()))
        )
        if file != source["train"] and "target" in column_names(file, own):
            raise DataError(
                (
                    f"{file.name} has a column target: its users are held out, and it shows some "
                    "of their rows beforehand"
                ),
                (
                    "Divide the data by split.kind = held-out-users itself, or give files of one "
                    "split of rows."
                ),
            )
        frame, line, notes = read_frame(file, columns.names(), own, told.missing)
        if told.click_threshold is None:
            return frame, line, notes
        frame, more = clicks_from(frame, file, told.click_threshold)
        return frame, line, notes + more

    return AskedTable(
        source,
        columns,
        layout,
        scale,
        table,
        Policies(told.duplicates, told.out_of_range, told.missing),
        frame_of,
        notes,
        told.click_threshold,
    )


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
    first values of columns. Warns with `UnusedColumnsWarning` of one that looks like a rating, a
    thumb or a count, by its name or by its values. Raises SettingsError
    where ratings have no scale, or several may be meant."""
    named, guesses = _with_guesses(named, found)
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


def _layout(path: Path, separator: str, header: Header, wanted: set[str]) -> Layout | None:
    """None for Parquet and JSON lines, which say themselves what they hold.

    Raises DataError where the suffix is none of a table."""
    if is_parquet(path) or is_json_lines(path):
        return None
    if suffix_of(path) not in SEPARATORS:
        raise DataError(
            f"{path.name} has no suffix of a table",
            f"Use one of {', '.join([*SEPARATORS, *JSON_LINES, *PARQUET])}; text may end in .gz.",
        )
    return layout_of(path, separator=separator, header=header, wanted=wanted)


def read_recbole(
    path: Path,
    *,
    kind: Kind | None = None,
    rating_range: tuple[float, float] | None = None,
    user: str = "user_id",
    item: str = "item_id",
    rating: str = "rating",
    timestamp: str = "timestamp",
    min_items: int = 1,
    duplicates: Duplicates = "auto",
    out_of_range: OutOfRange = "refuse",
    missing: Missing = "refuse",
) -> Dataset:
    """A RecBole atomic data set: `NAME.inter` (or the folder that holds it) with the `NAME.item`
    beside it, if there is one.

    Headers are typed (`user_id:token`, `rating:float`, `genre:token_seq`). kind: "clicks" ignores a
    rating column; None means ratings where there is one. Raises SettingsError when ratings come
    without `rating_range`, DataError and MalformedRowError as every reader.
    """
    inter = _only_inter(path)
    typed = recbole_header(inter)
    chosen = None if kind is None else KINDS[kind]
    wanted = {timestamp: True, rating: chosen is None or chosen.rated}
    optional = {name: name in typed and asked for name, asked in wanted.items()}
    if chosen is not None and chosen.rated and not optional[rating]:
        raise DataError(
            f"{inter} has no column {rating!r}",
            f"Its columns are {', '.join(typed)}: name the one with ratings.",
        )
    columns = TableColumns(
        user, item, rating if optional[rating] else None, timestamp if optional[timestamp] else None
    )
    seen = [name for name in typed if name != rating or chosen is None]
    layout = layout_of(inter, separator="tab", header="yes", wanted=())
    columns, notes = used_columns(
        columns,
        seen,
        rated=False,
        name=inter.name,
        first=lambda names: first_values(inter, layout, [typed[name] for name in names]),
    )
    items = inter.with_suffix(".item")
    table = (
        read_item_table(items, id_column=item, separator=" ", min_items=min_items)
        if items.exists()
        else None
    )
    names = {role: typed.get(column, column) for role, column in columns.names().items()}

    def frame_of(file: Path) -> tuple[pl.DataFrame, int, tuple[str, ...]]:
        layout = layout_of(file, separator="tab", header="yes", wanted=())
        return read_frame(file, names, layout, missing)

    policies = Policies(duplicates, out_of_range, missing)
    source = {"train": inter}
    return dataset_of(
        source,
        "recbole",
        columns,
        frame_of,
        rating_range,
        table,
        policies,
        digests=digests_of,
        notes=notes,
    )


def recbole_header(path: Path) -> dict[str, str]:
    """Field name to the header as written, `{"user_id": "user_id:token"}`.

    Raises MalformedRowError where a field has no type."""
    with require_file(path).open("rb") as file:
        header = decoded(file.readline(), path, 1).rstrip("\r\n").split("\t")
    for field in header:
        if field.rpartition(":")[2] not in ("token", "token_seq", "float", "float_seq"):
            raise MalformedRowError(path, 1, "typed fields such as user_id:token", field)
    return {field.rpartition(":")[0]: field for field in header}


def _only_inter(path: Path) -> Path:
    if not path.is_dir():
        return path
    found = sorted(path.glob("*.inter"))
    if len(found) != 1:
        raise DataError(
            f"{path} holds {len(found)} .inter files", "Give the path of one .inter file."
        )
    return found[0]


def digests_of(source: Mapping[str, Path], table: ItemTable | None) -> tuple[FileDigest, ...]:
    """Digests of every file that was read."""
    files = [digest_file(file) for place in source.values() for file in table_files(place)]
    return (*files, *([] if table is None else [digest_file(table.path, public=True)]))


def dataset_of(
    source: dict[str, Path],
    name: str,
    columns: TableColumns,
    frame_of: Callable[[Path], tuple[pl.DataFrame, int, tuple[str, ...]]],
    rating_range: tuple[float, float] | None,
    table: ItemTable | None,
    policies: Policies,
    *,
    digests: Callable[[Mapping[str, Path], ItemTable | None], tuple[FileDigest, ...]],
    notes: tuple[str, ...] = (),
) -> Dataset:
    """The data set of up to three sources of rows. frame_of: the columns of a source by role, the
    line of its first row, and notes; notes: further ones.

    Raises SettingsError where ratings have no scale, MalformedRowError where the policies refuse a
    row.
    """
    path = source["train"]
    if columns.rating is not None and rating_range is None:
        raise SettingsError(
            f"{path.name} has ratings but no rating_range",
            "Give the public scale, as in rating_range = [1, 5] (--scale 1 5), or read clicks.",
        )
    if rating_range is not None and not _is_scale(rating_range):
        raise SettingsError(
            f"rating_range = {rating_range} is no scale",
            "Give its lowest and highest value, as in [1, 5].",
        )
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
    users, user_ids = numbered_ids(frame["user"])
    items, item_ids = numbered_ids(frame["item"])
    notes += tuple(note for some in said for note in some)
    if table is not None:
        items, item_ids, more = _in_table(items, item_ids, table)
        notes += more
    require_distinct(user_ids, "user", path)
    require_distinct(item_ids, "item", path)
    values = frame["rating"].to_numpy() if columns.rating else None
    times = frame["timestamp"].to_numpy().astype(np.int64) if columns.timestamp else None
    scale: tuple[float, float] = (
        (0.0, 1.0) if rating_range is None else (float(rating_range[0]), float(rating_range[1]))
    )
    kind: Kind = "ratings" if columns.rating else "clicks"
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
        parts[part], report = resolve(
            rows,
            num_users=len(user_ids),
            num_items=len(item_ids),
            value_range=scale,
            kind=kind,
            policies=policies,
        )
        if not len(parts[part]):
            raise DataError(
                f"no rating of {file.name} lies in [{scale[0]:g}, {scale[1]:g}]",
                "Give the scale of these ratings as rating_range.",
            )
        reports = [*reports, report]
        start = start + length
    catalogue = Catalogue(item_ids, None if table is None else table.titles_of(item_ids), user_ids)
    parts, repeated = (
        apart(parts, source, catalogue, policies.of(kind)) if len(parts) > 1 else (parts, ())
    )
    features = PublicFeatures({}) if table is None else table.features_of(item_ids)
    untold = () if table is not None and len(table.ids) == len(item_ids) else (untold_items(table),)
    provenance = Provenance(
        name, digests(source, table), added(reports, (*notes, *repeated)), untold
    )
    return Dataset(
        parts["train"],
        catalogue,
        features,
        provenance,
        parts.get("test"),
        parts.get("validation"),
        columns.names(),
        frozenset(numbers),
    )


def _is_scale(given: Any) -> bool:
    if not isinstance(given, Sequence) or len(given) != 2:
        return False
    numbers = all(isinstance(end, Real) and math.isfinite(end) for end in given)
    return numbers and bool(given[0] < given[1])


def untold_items(table: ItemTable | None) -> str:
    """What no guarantee covers where items were read off the rows."""
    return (
        CATALOGUE_OF_ROWS
        if table is None
        else f"the items that {table.path.name} does not name: they are read off everybody's rows"
    )


def _in_table(
    items: Int32s, item_ids: tuple[str, ...], table: ItemTable
) -> tuple[Int32s, tuple[str, ...], tuple[str, ...]]:
    """Renumber by the table's order; items it does not know follow, and are counted in a note."""
    more, notes = table.unnamed(item_ids)
    place = {item: j for j, item in enumerate((*table.ids, *more))}
    numbers = np.array([place[item] for item in item_ids], dtype=np.int32)
    return numbers[items], (*table.ids, *more), notes


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
