"""Data frames as data sets: polars, pandas and Arrow tables, or a mapping of columns, with a row
for each rating or click.

The rows go the way of a Parquet file (`fedrec.data.tables`), so a frame and the file that it was
read from are the same data set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedrec.data.assembling import Frame, RowRules, dataset_of
from fedrec.data.columns import meant
from fedrec.data.interactions import Dataset, FileDigest
from fedrec.data.item_tables import ItemTable, item_table, rows_of_frame
from fedrec.data.resolving import Duplicates, Missing, OutOfRange, Policies
from fedrec.data.table_columns import TableColumns, used_columns
from fedrec.data.table_files import FIRST, Written, complete, typed
from fedrec.data.values import FLOATED
from fedrec.errors import DataError, MalformedRowError

_ROWS = Path("frame")
_ITEMS = Path("items")
_ONE_ROW = "Give every item one row."
_FILL = "Fill the value, or drop the row."
_CHUNK = 1 << 20
"""Rows hashed at once, so that a long frame is not written to memory twice."""


def polars_frame(frame: Any, *, what: str = "frame") -> pl.DataFrame:
    """The rows as a polars frame, from polars, pandas, anything with the Arrow C stream (pyarrow),
    or a mapping of columns.

    Raises DataError where it is none of them.
    """
    if isinstance(frame, pl.DataFrame):
        return frame
    try:
        if isinstance(frame, pl.LazyFrame):
            return frame.collect()
        if isinstance(frame, Mapping):
            _require_zones(frame, what)
            return pl.DataFrame(
                {
                    str(name): _series(str(name), column) if _of_pandas(column) else column
                    for name, column in frame.items()
                }
            )
        # column by column: `pl.from_pandas` would need pyarrow
        if _of_pandas(frame) and hasattr(frame, "columns"):
            _require_zones(frame, what)
            return _columns(frame, what)
        # a series of either has it too
        if hasattr(frame, "__arrow_c_stream__") and type(frame).__name__ != "Series":
            return pl.DataFrame(frame)
    except (pl.exceptions.PolarsError, TypeError, ValueError, OSError) as failure:
        _refuse_mixed(frame, what)
        raise DataError(
            f"the {what} cannot be read: {str(failure).splitlines()[0]}",
            "Give each column one type.",
        ) from None
    raise DataError(
        f"a {type(frame).__name__} is no {what}",
        "Give a polars or pandas data frame, an Arrow table, or a dict of columns.",
    )


def _require_zones(frame: Any, what: str) -> None:
    """Raises DataError where instants of one column have a time zone and lack one: polars would
    take those without for UTC."""
    for name in frame:
        column = frame[name]
        if not isinstance(column, list | tuple) and str(getattr(column, "dtype", "")) != "object":
            continue
        zones = {value.tzinfo is None for value in column if isinstance(value, datetime)}
        if len(zones) == 2:
            raise DataError(
                f"times in column {name!r} of the {what} have a time zone, and some have none",
                "Give all of them a zone, or none: without one they count as UTC.",
            )


def _refuse_mixed(frame: Any, what: str) -> None:
    """Raises DataError at the first column whose values are of several types, and names two."""
    if isinstance(frame, pl.LazyFrame):
        return
    for name in frame if isinstance(frame, Mapping) else getattr(frame, "columns", ()):
        column = frame[name]
        single = isinstance(column, str) or getattr(column, "ndim", 1) == 0
        if single or not isinstance(column, Iterable):
            continue
        first: dict[type, Any] = {}
        for value in column:
            if value is not None and value == value:  # NaN is a missing value of any column
                first.setdefault(type(value), value)
        if len(first) > 1 and set(first) - {int, float, bool}:
            shown = " and ".join(repr(value) for value in list(first.values())[:2])
            raise DataError(
                f"column {name!r} of the {what} holds values of several types, {shown}",
                f"Give it one type: frame[{name!r}] = [str(value) for value in frame[{name!r}]].",
            )


def _of_pandas(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "pandas"


def _columns(frame: Any, what: str) -> pl.DataFrame:
    """Columns, and before them the levels of the index that have a name of their own."""
    names = [str(name) for name in frame.columns]
    if twice := [name for name in names if names.count(name) > 1]:
        raise DataError(f"the {what} has several columns {twice[0]!r}", "Keep one of them.")
    index = frame.index
    levels = [
        _series(str(name), index.get_level_values(level))
        for level, name in enumerate(index.names)
        if name is not None and str(name) not in names
    ]
    return pl.DataFrame([*levels, *(_series(str(name), frame[name]) for name in frame.columns)])


def _series(name: str, column: Any) -> pl.Series:
    """One column of pandas; what pandas calls missing is null."""
    values = column.to_numpy()
    if values.dtype.kind in "OUST":
        missing = np.asarray(column.isna())
        return pl.Series(
            name,
            [None if gone else value for value, gone in zip(values.tolist(), missing, strict=True)],
        )
    return pl.Series(name, values)


def read_frame(
    frame: Any,
    *,
    user: str = "user",
    item: str = "item",
    rating: str | None = None,
    time: str | None = None,
    rating_range: tuple[float, float] | None = None,
    click_threshold: float | None = None,
    items: Any = None,
    item_separator: str = "|",
    validation: Any = None,
    test: Any = None,
    duplicates: Duplicates = "auto",
    out_of_range: OutOfRange = "refuse",
    missing: Missing = "refuse",
    decimal: str = ".",
    time_format: str = "",
) -> Dataset:
    """Ratings where `rating` names a column or `rating_range` is given (`tables.used_columns`);
    otherwise clicks, one a row. click_threshold: as in `tables.read_table`.

    items: a frame of items: the column `item` is the id, `title` the title, every other column a
    public feature. validation, test: frames of the same columns. Raises DataError where a column is
    missing or a row cannot be used, SettingsError as `tables.read_table`.
    """
    train = polars_frame(frame)
    columns, notes = used_columns(
        TableColumns(
            str(user),
            str(item),
            None if rating is None else str(rating),
            None if time is None else str(time),
        ),
        train.columns,
        rated=rating_range is not None or click_threshold is not None,
        name="the frame",
        first=lambda names: train.head(FIRST).select(names).to_dict(as_series=False),
    )
    given = {"train": train} | {
        part: polars_frame(rows, what=f"frame of {part} rows")
        for part, rows in {"validation": validation, "test": test}.items()
        if rows is not None
    }
    for rows in given.values():
        _require_columns(rows, columns)
    table = (
        None
        if items is None
        else items_of_frame(
            polars_frame(items, what="frame of items"), columns.item, item_separator
        )
    )
    source = {part: _ROWS / part if len(given) > 1 else _ROWS for part in given}

    def frame_of(path: Path) -> Frame:
        part = next(name for name, place in source.items() if place == path)
        return _read(given[part], path, columns, written)

    policies = Policies(duplicates, out_of_range, missing)
    written = Written(missing, decimal, time_format)
    try:
        rules = RowRules("the frame", columns, policies, rating_range, click_threshold, table)
        digests = partial(_digests, given, columns, written)
        return dataset_of(source, "frame", rules, frame_of, digests=digests, notes=notes)
    except MalformedRowError as failure:
        where = f"{failure.path}, row {failure.line} (the first is 0)"
        raise DataError(
            f"{where}: expected {failure.expected}, found {failure.found!r}", failure.remedy
        ) from None


def _read(frame: pl.DataFrame, path: Path, columns: TableColumns, written: Written) -> Frame:
    """By role; rows are counted from 0, as frames are."""
    if not len(frame):
        raise DataError(f"the {path} holds no rows", "Give a frame with a row for each event.")
    names = columns.names()
    try:
        chosen, notes, _ = complete(typed(frame, names, path, written), path, names, written)
    except pl.exceptions.PolarsError as failure:
        cause = f"the {path} cannot be read: {str(failure).splitlines()[0]}"
        raise DataError(
            cause, "Ratings must be numbers; times numbers, dates or ISO text."
        ) from None
    except MalformedRowError as failure:
        raise MalformedRowError(
            path,
            failure.line - 1,
            failure.expected,
            failure.found,
            failure.remedy.replace("Correct the line, or drop it.", _FILL),
        ) from None
    return chosen, 0, notes


def _require_columns(frame: pl.DataFrame, columns: TableColumns) -> None:
    found = frame.columns
    for role, name in columns.names().items():
        if name in found:
            continue
        asked = meant(role, name, found)
        keyword = "time" if role == "timestamp" else role
        raise DataError(
            f"the frame has no column {name!r}",
            f"{asked}Name it by {keyword}=...; its columns are {', '.join(found)}.",
        )


def items_of_frame(frame: pl.DataFrame, id_column: str, separator: str = "|") -> ItemTable:
    """The items of a frame. Raises DataError where one has two rows or no id."""
    try:
        return item_table(
            _ITEMS, rows_of_frame(frame, id_column), id_column=id_column, separator=separator
        )
    except MalformedRowError as failure:
        cause = (
            f"items, row {failure.line - 2} (the first is 0): expected {failure.expected}, found "
            f"{failure.found!r}"
        )
        raise DataError(cause, FLOATED if failure.remedy == FLOATED else _ONE_ROW) from None


def _digests(
    given: Mapping[str, pl.DataFrame], columns: TableColumns, written: Written, *_: object
) -> tuple[FileDigest, ...]:
    """Digests of the named columns, as CSV, and of users and items alone in a fixed order, by which
    the budget of a data set finds its people again."""
    found = list[FileDigest]()
    for part, frame in given.items():
        ids = _read(frame, Path(part), columns, written)[0].select(
            pl.col("user", "item").cast(pl.String)
        )
        digest, size = _digest(frame.select(columns.names().values()))
        rows = _digest(ids.unique().sort("user", "item"))[0]
        name = "frame" if len(given) == 1 else part
        found.append(FileDigest(name, size, digest, rows=rows))
    return tuple(found)


def _digest(frame: pl.DataFrame) -> tuple[str, int]:
    digest = hashlib.sha256()
    size = 0
    for text in _texts(frame):
        digest.update(text)
        size += len(text)
    return digest.hexdigest(), size


def _texts(frame: pl.DataFrame) -> Iterable[bytes]:
    for part in frame.iter_slices(_CHUNK):
        yield part.write_csv(include_header=False).encode()
