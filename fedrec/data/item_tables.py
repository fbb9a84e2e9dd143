"""A table of items, one row each, as public features: CSV and its kin, plain or by gzip, Parquet,
or RecBole's typed `.item`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from fedrec.data.delimited import NO_VALUE, is_number
from fedrec.data.features import FeatureBag, PublicFeatures, bag_of, words
from fedrec.data.frame_files import parquet
from fedrec.data.ids import require_distinct, require_named
from fedrec.data.opening import require_file, understood
from fedrec.data.text_tables import SEPARATORS, Layout, layout_of, rows_of, suffix_of
from fedrec.data.values import AN_ID, FLOATED, floated, plain_ids
from fedrec.errors import DataError, MalformedRowError

PARQUET = (".parquet", ".pq")
TITLES = ("title", "movie_title", "name", "item_name", "titel")
_BINS = 10  # deciles: a number becomes one of ten words, each of as many items
_TYPES = ("token", "token_seq", "float", "float_seq")


@dataclass(frozen=True)
class ItemTable:
    """Items of one table in its order: ids, titles (if a column holds them), and one bag per other
    column."""

    path: Path
    ids: tuple[str, ...]
    titles: tuple[str, ...] | None
    bags: dict[str, FeatureBag]

    @property
    def features(self) -> PublicFeatures:
        """The bags. There are none where no bag tells an item from another: of titles without words
        of three letters, or of columns with one value throughout, directions would be 0 / 0."""
        return PublicFeatures(self.bags if any(bag.tells for bag in self.bags.values()) else {})

    def notes(self, item_ids: Sequence[str]) -> tuple[str, ...]:
        """Notes on items with events that the table does not name, and on blank titles.

        Raises, and warns, as `require_named`."""
        lacking = require_named(item_ids, self.ids, self.path.name)
        called = untitled(self.ids, self.titles or self.ids, self.path.name)
        return tuple(filter(None, (lacking, called)))

    @property
    def shown(self) -> tuple[str, ...] | None:
        """Titles; an item without one is called by its id."""
        if self.titles is None:
            return None
        pairs = zip(self.titles, self.ids, strict=True)
        return tuple(title if title.strip() else own for title, own in pairs)


def untitled(ids: Sequence[str], titles: Sequence[str], where: Path | str) -> str:
    """A note on items whose title is blank; empty where there are none."""
    lost = [item for item, title in zip(ids, titles, strict=True) if not title.strip()]
    said = f"{len(lost):,} of the {len(ids):,} titles of {where} are blank, such as that of"
    return f"{said} {lost[0]!r}: lists show the id" if lost else ""


def read_item_table(path: Path, *, id_column: str, separator: str, min_items: int = 1) -> ItemTable:
    """Every column but the id as a bag. A title column (`title`, `movie_title`, `name`) gives the
    titles and a bag of their words.

    separator: between the values in one field of text. Typed columns (`year:token`,
    `genre:token_seq`, `price:float`) hold one value, values separated by blanks, or a number that
    is put into ten equally filled bins; `float_seq` columns are passed over. Raises DataError on a
    missing or empty file or no such id column, MalformedRowError on a row of a wrong length,
    without id, or of an id seen before.
    """
    with understood(path):
        return item_table(
            path,
            _rows(require_file(path), id_column),
            id_column=id_column,
            separator=separator,
            min_items=min_items,
        )


def item_table(
    path: Path,
    rows_with_header: Iterable[list[str]],
    *,
    id_column: str,
    separator: str,
    min_items: int = 1,
) -> ItemTable:
    """A table from rows in memory, the header first; `path` names them in errors."""
    header, *rows = rows_with_header
    names = [_untyped(field) for field in header]
    if id_column not in names:
        raise DataError(
            f"{path} has no column {id_column!r}", f"Its columns are {', '.join(names)}."
        )
    if not rows:
        raise DataError(f"{path} holds no items", "Check that the file is whole.")
    place = names.index(id_column)
    ids = tuple(row[place] for row in rows)
    if twice := [name for name in names if names.count(name) > 1]:
        raise DataError(f"{path} has several columns {twice[0]!r}", "Rename all but one of them.")
    _check_ids(path, ids, rows.index(header) if header in rows else -1)
    fields = {field: [row[n] for row in rows] for n, field in enumerate(header) if n != place}
    titles = next(
        (tuple(values) for field, values in fields.items() if _untyped(field).lower() in TITLES),
        None,
    )
    bags = {
        _untyped(field): bag_of(_values(field, texts, separator), min_items=min_items)
        for field, texts in fields.items()
        if _type(field) != "float_seq"
    }
    return ItemTable(path, ids, titles, bags)


def _values(field: str, texts: Sequence[str], separator: str) -> list[list[str]]:
    """Each item's values in one column."""
    if _untyped(field).lower() in TITLES:
        return [words(text) for text in texts]
    if _type(field) == "float":
        return _binned(texts)
    if _type(field) == "token":
        return [[text] if text else [] for text in texts]
    between = " " if _type(field) == "token_seq" else separator
    return [[part.strip() for part in text.split(between) if part.strip()] for text in texts]


def _binned(texts: Sequence[str]) -> list[list[str]]:
    """Numbers by tenths of the items, each named by the bin's upper edge; what is not a number is
    unknown."""
    numbers = np.array([float(text) if is_number(text) else np.nan for text in texts])
    if not np.isfinite(numbers).any():
        return [[] for _ in texts]
    edges = np.unique(np.nanquantile(numbers, np.arange(1, _BINS + 1) / _BINS))
    places = np.minimum(np.searchsorted(edges, numbers), len(edges) - 1)
    return [
        [f"up to {edges[place]:g}"] if np.isfinite(number) else []
        for place, number in zip(places, numbers, strict=True)
    ]


def _untyped(field: str) -> str:
    return (
        field.rpartition(":")[0] if field.rpartition(":")[2] in _TYPES and ":" in field else field
    )


def _type(field: str) -> str:
    return field.rpartition(":")[2] if _untyped(field) != field else "text"


def _rows(path: Path, ids: str) -> Iterator[list[str]]:
    """The header, then every row as text, each as long as the header."""
    if path.suffix in PARQUET:
        yield from rows_of_frame(parquet(path), ids, path)
        return
    layout = item_layout(path)
    yield list(layout.names)
    for line, fields in rows_of(layout):
        if len(fields) != len(layout.names):
            raise MalformedRowError(
                path, line, f"{len(layout.names)} fields", f"{len(fields)} fields"
            )
        yield fields


def frame_of_items(path: Path) -> pl.DataFrame:
    """A table of items, similar items or vectors; of a text file every value as text.

    Raises DataError on a missing file, MalformedRowError on a row of a wrong length."""
    if path.suffix in PARQUET:
        return parquet(path)
    with understood(path):
        header, *rows = _rows(require_file(path), "")
        return pl.DataFrame(rows, schema=header, orient="row")


def rows_of_frame(
    frame: pl.DataFrame, ids: str, where: Path = Path("items")
) -> Iterator[list[str]]:
    """The header of a frame, then every row as text. ids: the column of them."""
    for name, kind in frame.schema.items():
        if kind in (pl.Struct, pl.Object, pl.Binary):
            raise DataError(
                f"the column {name!r} of items holds records, bytes or objects",
                "Give text, numbers or lists of them; drop the column, or unnest it.",
            )
    if ids in frame.columns:
        frame = frame.with_columns(plain_ids(frame[ids], where, first=2))
    yield frame.columns
    yield from ([_text(value) for value in row] for row in frame.iter_rows())


def item_layout(path: Path) -> Layout:
    """Layout of a public table with a header: tabs where the suffix is not one of a table, as in
    RecBole's `.item`."""
    return layout_of(
        path, separator="" if suffix_of(path) in SEPARATORS else "tab", header="yes", wanted=()
    )


def _text(value: object) -> str:
    if value is None:
        return ""
    return "|".join(map(str, value)) if isinstance(value, list) else str(value)


def _check_ids(path: Path, ids: Sequence[str], again: int) -> None:
    """Every id there, and once. again: place of a row that is the header, or -1.

    Lines are counted from the header, so a field with a line break in it shifts them."""
    seen: set[str] = set()
    for place, item in enumerate(ids):
        if item.strip() in NO_VALUE or item in seen or place == again:
            raise MalformedRowError(path, place + 2, "an item id that is new", item)
        seen.add(item)
    if bad := floated(ids):
        raise MalformedRowError(path, ids.index(bad[0]) + 2, AN_ID, bad[0], FLOATED)
    require_distinct(ids, "item", path)
