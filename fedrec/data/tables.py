"""Any table with named columns: CSV, TSV, Parquet (a file or a folder of parts), and RecBole's typed `.inter` and `.item`.

Ids may be numbers or text. A table of ratings needs its public scale (`rating_range`): a scale read off the data would be a private
fact printed as a public one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

import numpy as np
import polars as pl

from fedrec.data.dataset import CATALOGUE_OF_ROWS, Catalogue, Dataset, Provenance, added, digest_file
from fedrec.data.delimited import count_bytes, is_number, number_ids, require_file
from fedrec.data.features import PublicFeatures
from fedrec.data.interactions import Int32s, Kind
from fedrec.data.item_tables import PARQUET, ItemTable, read_item_table, table_lines
from fedrec.data.resolving import Duplicates, OutOfRange, Policies, Rows, resolve
from fedrec.errors import DataError, MalformedRowError, SettingsError

_SEPARATORS = {".csv": ",", ".tsv": "\t", ".tab": "\t", ".inter": "\t"}


@dataclass(frozen=True)
class TableColumns:
    """Which column holds what; `rating` None means clicks, `timestamp` None means no times."""

    user: str = "user"
    item: str = "item"
    rating: str | None = None
    timestamp: str | None = None

    def names(self) -> dict[str, str]:
        """Role to column name, for the columns there are."""
        roles = {"user": self.user, "item": self.item, "rating": self.rating, "timestamp": self.timestamp}
        return {role: name for role, name in roles.items() if name is not None}


def read_table(
    path: Path,
    *,
    user: str = "user",
    item: str = "item",
    rating: str | None = None,
    timestamp: str | None = None,
    rating_range: tuple[float, float] | None = None,
    item_features: str | None = None,
    item_separator: str = "|",
    min_items: int = 1,
    duplicates: Duplicates = "refuse",
    out_of_range: OutOfRange = "refuse",
) -> Dataset:
    """A data set from one table: ratings from the column `rating` (named "rating" where a `rating_range` comes without a name), or
    clicks, one a row, where neither is given. Times are numbers of seconds.

    item_features: a table of items whose column `item` is the id, `title` (if any) the title, every other column a feature bag with
    values separated by `item_separator`. Its items come first in the catalogue; items only the interactions know follow.
    Raises SettingsError when ratings, or a column "rating" that nobody named, come without `rating_range`; else as every reader.
    """
    if rating is None and rating_range is None and "rating" in _column_names(path):
        raise SettingsError(
            f"{path.name} has a column 'rating' but no rating_range",
            'Give the public scale, as in rating_range = [1, 5]; with kind = "clicks" its rows then count as clicks.',
        )
    table = (
        None
        if item_features is None
        else read_item_table(Path(item_features), id_column=item, separator=item_separator, min_items=min_items)
    )
    columns = TableColumns(user, item, rating or (None if rating_range is None else "rating"), timestamp)
    return _dataset(path, "table", columns, {}, rating_range, table, Policies(duplicates, out_of_range))


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
    duplicates: Duplicates = "refuse",
    out_of_range: OutOfRange = "refuse",
) -> Dataset:
    """A RecBole atomic data set: `NAME.inter` (or the folder that holds it) with the `NAME.item` beside it, if there is one.

    Headers are typed (`user_id:token`, `rating:float`, `genre:token_seq`). kind: "clicks" ignores a rating column; None means ratings where
    there is one. Raises SettingsError when ratings come without `rating_range`, DataError and MalformedRowError as every reader.
    """
    inter = _only_inter(path)
    typed = recbole_header(inter)
    optional = {name: name in typed and (name != rating or kind != "clicks") for name in (rating, timestamp)}
    if kind == "ratings" and not optional[rating]:
        raise DataError(f"{inter} has no column {rating!r}", f"Its columns are {', '.join(typed)}: name the one with ratings.")
    columns = TableColumns(user, item, rating if optional[rating] else None, timestamp if optional[timestamp] else None)
    items = inter.with_suffix(".item")
    table = read_item_table(items, id_column=item, separator=" ", min_items=min_items) if items.exists() else None
    return _dataset(inter, "recbole", columns, typed, rating_range, table, Policies(duplicates, out_of_range))


def recbole_header(path: Path) -> dict[str, str]:
    """Field name to the header as written, `{"user_id": "user_id:token"}`. Raises MalformedRowError where a field has no type."""
    with require_file(path).open(encoding="utf-8", errors="replace") as file:
        header = file.readline().removeprefix("\ufeff").rstrip("\r\n").split("\t")
    for field in header:
        if field.rpartition(":")[2] not in ("token", "token_seq", "float", "float_seq"):
            raise MalformedRowError(path, 1, "typed fields such as user_id:token", field)
    return {field.rpartition(":")[0]: field for field in header}


def _only_inter(path: Path) -> Path:
    if not path.is_dir():
        return path
    found = sorted(path.glob("*.inter"))
    if len(found) != 1:
        raise DataError(f"{path} holds {len(found)} .inter files", "Give the path of one .inter file.")
    return found[0]


def _dataset(
    path: Path,
    name: str,
    columns: TableColumns,
    written: dict[str, str],
    rating_range: tuple[float, float] | None,
    table: ItemTable | None,
    policies: Policies,
) -> Dataset:
    if columns.rating is not None and rating_range is None:
        raise SettingsError(
            f"{path.name} has ratings but no rating_range", "Give the public scale, as in rating_range = [1, 5], or read clicks."
        )
    if rating_range is not None and not (len(rating_range) == 2 and rating_range[0] < rating_range[1]):
        raise SettingsError(f"rating_range = {rating_range} is no scale", "Give its lowest and highest value, as in [1, 5].")
    frame = _read_frame(path, {role: written.get(column, column) for role, column in columns.names().items()})
    users, user_ids = _numbered(frame["user"])
    items, item_ids = _numbered(frame["item"])
    notes: tuple[str, ...] = ()
    if table is not None:
        items, item_ids, notes = _in_table(items, item_ids, table)
    values = frame["rating"].to_numpy() if columns.rating else None
    times = frame["timestamp"].to_numpy().astype(np.int64) if columns.timestamp else None
    rows = Rows(path, users, items, values, times, 1 if _is_parquet(path) else 2)
    scale: tuple[float, float] = (0.0, 1.0) if rating_range is None else (float(rating_range[0]), float(rating_range[1]))
    kind: Kind = "ratings" if columns.rating else "clicks"
    events, report = resolve(rows, num_users=len(user_ids), num_items=len(item_ids), value_range=scale, kind=kind, policies=policies)
    features = PublicFeatures({}) if table is None else table.features_of(item_ids)
    titles = None if table is None else table.titles_of(item_ids)
    files = tuple(digest_file(file) for file in (*_files(path), *(() if table is None else (table.path,))))
    report = added([report], notes)
    untold = () if table is not None and len(table.ids) == len(item_ids) else (_untold(table),)
    return Dataset(events, Catalogue(item_ids, titles, user_ids), features, Provenance(name, files, report, untold))


def _untold(table: ItemTable | None) -> str:
    return CATALOGUE_OF_ROWS if table is None else f"the items that {table.path.name} does not name: they are read off everybody's rows"


def _in_table(items: Int32s, item_ids: tuple[str, ...], table: ItemTable) -> tuple[Int32s, tuple[str, ...], tuple[str, ...]]:
    """Renumber by the table's order; items it does not know follow, and are counted in a note."""
    known = set(table.ids)
    more = tuple(item for item in item_ids if item not in known)
    place = {item: j for j, item in enumerate((*table.ids, *more))}
    numbers = np.array([place[item] for item in item_ids], dtype=np.int32)
    notes = (f"{len(more)} of {len(item_ids)} items with events are not in {table.path.name}",) if more else ()
    return numbers[items], (*table.ids, *more), notes


def _numbered(ids: pl.Series) -> tuple[Int32s, tuple[str, ...]]:
    """Numbers 0..k-1 in the order of the ids (as numbers where all of them are numbers), and the ids as text."""
    if ids.dtype.is_integer():
        numbers, known = number_ids(ids.to_numpy())
        return numbers, tuple(map(str, known.tolist()))
    distinct = ids.unique()
    names, codes = distinct.cast(pl.String).to_list(), distinct.to_physical().to_numpy()
    whole = all(name.isascii() and name.isdigit() and len(name) < 19 and (name == "0" or name[0] != "0") for name in names)
    order = sorted(range(len(names)), key=(lambda n: int(names[n])) if whole else names.__getitem__)
    place = np.zeros(int(codes.max()) + 1, dtype=np.int32)
    place[codes[order]] = np.arange(len(order), dtype=np.int32)
    return place[ids.to_physical().to_numpy()], tuple(names[n] for n in order)


def _is_parquet(path: Path) -> bool:
    return path.is_dir() or path.suffix in PARQUET


def _files(path: Path) -> list[Path]:
    """The file, or the Parquet parts of a folder in the order of their names."""
    if not path.is_dir():
        return [require_file(path)]
    parts = sorted(file for file in path.iterdir() if file.suffix in PARQUET)
    if not parts:
        raise DataError(
            f"{path} holds no Parquet files", f"Give a file ({', '.join([*_SEPARATORS, *PARQUET])}) or a folder of Parquet parts."
        )
    return parts


def _read_frame(path: Path, columns: dict[str, str]) -> pl.DataFrame:
    """The wanted columns named by role, complete and finite: ids as integers or categories, ratings float32, times float64."""
    frame = _read_parquet(path, columns) if _is_parquet(path) else _read_text(path, columns)
    if not len(frame):
        raise DataError(f"{path} holds no rows", "Check that the file is whole.")
    bad = pl.any_horizontal(*(pl.col(role).is_null() | ~_finite(role) for role in columns))
    if (rows := frame.select(bad.alias("bad"))["bad"].arg_true()).len():
        row = int(rows[0])
        if not _is_parquet(path):
            _refuse_first_malformed(path, columns, "a row is incomplete")
        raise MalformedRowError(path, row + 1, f"a value in each of {', '.join(columns.values())}", str(frame.row(row)))
    return frame


def _finite(role: str) -> pl.Expr:
    return pl.col(role).is_finite() if role in ("rating", "timestamp") else pl.lit(True)


def _read_parquet(path: Path, columns: dict[str, str]) -> pl.DataFrame:
    try:
        frame = pl.read_parquet(_files(path), columns=list(columns.values()))
        ids = {
            role: frame[name] if frame[name].dtype.is_integer() else frame[name].cast(pl.String).cast(pl.Categorical)
            for role, name in columns.items()
        }
        numbers = {
            role: frame[columns[role]].cast(pl.Float32 if role == "rating" else pl.Float64)
            for role in columns
            if role in ("rating", "timestamp")
        }
    except pl.exceptions.PolarsError as error:
        raise DataError(
            f"{path} cannot be read: {str(error).splitlines()[0]}", f"It must hold the columns {', '.join(columns.values())}."
        ) from error
    return pl.DataFrame(ids | numbers)


def _read_text(path: Path, columns: dict[str, str]) -> pl.DataFrame:
    if path.suffix not in _SEPARATORS:
        raise DataError(f"{path.name} has no suffix of a table", f"Use one of {', '.join([*_SEPARATORS, *PARQUET])}.")
    separator, quote = _SEPARATORS[path.suffix], '"' if path.suffix == ".csv" else None
    header = _header(path)
    if missing := [name for name in columns.values() if name not in header]:
        raise DataError(f"{path} has no column {missing[0]!r}", f"Its columns are {', '.join(header)}.")
    types = {"user": pl.Categorical, "item": pl.Categorical, "rating": pl.Float32, "timestamp": pl.Float64}
    overrides = {name: types[role] for role, name in columns.items()}
    read_csv = partial(pl.read_csv, path, separator=separator, quote_char=quote, infer_schema=False)
    try:
        frame = read_csv(columns=list(columns.values()), schema_overrides=overrides)
        separators, quotes = count_bytes(path, separator.encode(), b'"')
        if quote is not None and quotes:
            read_csv()  # a quoted separator spoils the count below, but a full read finds the rows that are too long
        elif separators != (len(header) - 1) * (len(frame) + 1):
            _refuse_first_malformed(path, columns, "rows differ in length")
    except pl.exceptions.PolarsError as error:
        _refuse_first_malformed(path, columns, str(error))
    return frame.select(**{role: pl.col(name) for role, name in columns.items()})


def _column_names(path: Path) -> list[str]:
    if not _is_parquet(path):
        return _header(path) if path.suffix in _SEPARATORS else []
    try:
        return list(pl.read_parquet_schema(_files(path)[0]))
    except (pl.exceptions.PolarsError, OSError):
        return []  # the reader says what is wrong with the file


def _header(path: Path) -> list[str]:
    with require_file(path).open(encoding="utf-8", errors="replace", newline="") as file:
        return next(table_lines(path, file))[1]


def _refuse_first_malformed(path: Path, columns: dict[str, str], reason: str) -> NoReturn:
    """MalformedRowError at the first bad row; DataError with `reason` when no row explains it."""
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        lines = table_lines(path, file)
        header = next(lines)[1]
        for line, fields in lines:
            if len(fields) != len(header):
                raise MalformedRowError(path, line, f"{len(header)} fields", ",".join(fields)[:80])
            for role, name in columns.items():
                text = fields[header.index(name)]
                if not (is_number(text) if role in ("rating", "timestamp") else text):
                    raise MalformedRowError(
                        path, line, f"{'a finite number' if role in ('rating', 'timestamp') else 'an id'} as {name}", text[:80]
                    )
    raise DataError(f"{path} cannot be read: {reason.splitlines()[0]}", "Check that the file is in the stated format.")
