"""Any table with a row for each event: CSV and its kin, Parquet (a file or a
folder of parts).

Training, validation and test rows may be tables of their own: files that are named, or a folder of
`train.csv`, `validation.csv` and `test.csv` (or another suffix), as `fedrec data split` writes
them. They share one catalogue.

Ids may be numbers or text. A table of ratings needs its public scale (`rating_range`): a scale read
off the data would be a private fact printed as a public one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedrec.data.assembling import Frame, RowRules, dataset_of
from fedrec.data.delimited import JSON_LINES
from fedrec.data.interactions import Dataset
from fedrec.data.item_tables import PARQUET, read_item_table
from fedrec.data.opening import require_file
from fedrec.data.resolving import Duplicates, Missing, OutOfRange, Policies, sources
from fedrec.data.table_columns import TableColumns, used_columns
from fedrec.data.table_files import (
    Written,
    column_names,
    first_values,
    is_json_lines,
    is_parquet,
    read_frame,
)
from fedrec.data.text_tables import SEPARATORS, Header, Layout, layout_of, suffix_of
from fedrec.errors import DataError, SettingsError


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
    decimal: str = "."
    time_format: str = ""


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
    return dataset_of(asked.source, "table", asked.rules, asked.frame_of, notes=asked.notes)


@dataclass(frozen=True)
class AskedTable:
    """What options say of a table, and how the rows of one of its files are read.

    source: the file or folder of each part. layout: of the training rows, None for Parquet.
    """

    source: dict[str, Path]
    rules: RowRules
    layout: Layout | None
    written: Written
    frame_of: Callable[[Path], Frame]
    notes: tuple[str, ...] = ()


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

    written = Written(told.missing, told.decimal, told.time_format)

    def frame_of(file: Path) -> Frame:
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
        return read_frame(file, columns.names(), own, written)

    policies = Policies(told.duplicates, told.out_of_range, told.missing)
    rules = RowRules(source["train"].name, columns, policies, scale, told.click_threshold, table)
    return AskedTable(source, rules, layout, written, frame_of, notes)


def _layout(path: Path, separator: str, header: Header, wanted: set[str]) -> Layout | None:
    """None for Parquet and JSON lines, which say themselves what they hold.

    Raises DataError where the suffix is none of a table."""
    if is_parquet(path) or is_json_lines(path):
        if said := "separator" if separator else "header" if header != "auto" else "":
            raise SettingsError(f"data.{said} is of text, and {path.name} is none", "Leave it out.")
        return None
    if suffix_of(path) not in SEPARATORS:
        require_file(path)
        raise DataError(
            f"{path.name} has no suffix of a table",
            f"Use one of {', '.join([*SEPARATORS, *JSON_LINES, *PARQUET])}; text may end in .gz.",
        )
    return layout_of(path, separator=separator, header=header, wanted=wanted)
