"""Files of a table as frames: text, JSON lines or Parquet, every field of its role's type."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import NoReturn

import polars as pl

from fedrec.data.delimited import (
    JSON_LINES,
    NO_VALUE,
    decoded,
    is_number,
    json_object,
    require_text,
)
from fedrec.data.frame_files import ndjson, of_parquet, parquet, parquet_names, require_columns
from fedrec.data.item_tables import PARQUET
from fedrec.data.opening import content_of, faults, lines_of, open_bytes, require_file, understood
from fedrec.data.resolving import Missing
from fedrec.data.text_tables import (
    SEPARATORS,
    Layout,
    read_columns,
    refuse_first_malformed,
    rows_of,
    suffix_of,
)
from fedrec.data.values import (
    AN_ID,
    FLOATED,
    UNZONED,
    ZONED,
    first_fault,
    in_unit,
    numbers_of,
    plain_ids,
    require_time_format,
    times_of,
)
from fedrec.errors import DataError, MalformedRowError, SettingsError
from fedrec.storage import parsed_json

_ONE_UNIT = "times of one unit"
_HEADER = "a row of data"
_COUNTED = " ("
_MISSING = (
    'Fill the values, or drop these rows: missing = "drop", --set data.missing=drop of a command.'
)
FIRST = 100
"""Rows that are looked at before all are read."""
_PEEK_BYTES = 64  # enough to tell text from compressed or binary files by their first bytes
_ONE_TYPE = 'Write all ids of a key as text, "1", or all as integers, 1.'
_HALF = "It is half of a surrogate pair, which is no character: write the id in UTF-8."
_WORDS = {pl.Object: "Python objects", pl.Binary: "bytes", pl.Boolean: "true and false",
          pl.Time: "times of day", pl.Duration: "durations", pl.Date: "times",
          pl.Datetime: "times"}  # fmt: skip
_IDS = "ids are numbers or text", "Write each as text, for example by map(str).", ()
_VALUES: Mapping[str, tuple[str, str, tuple[type[pl.DataType], ...]]] = {
    "rating": (
        "ratings are numbers",
        "Name another column, or write each as a number.",
        (pl.Boolean,),
    ),
    "timestamp": (
        "times are numbers, dates or ISO text",
        "Name another column, or write each in seconds.",
        (pl.Date, pl.Datetime),
    ),
}
"""What a column of a role holds, what to do, and which of `_WORDS` it may be; other roles are
ids."""


@dataclass(frozen=True)
class Written:
    """How values are written. missing: what to do with rows that lack one. decimal: the mark before
    the decimals of a rating. time_format: of times, in the directives of strftime; empty reads
    seconds and ISO dates. Raises SettingsError on a mark or a format that is none."""

    missing: Missing = "refuse"
    decimal: str = "."
    time_format: str = ""

    def __post_init__(self) -> None:
        if self.decimal not in (".", ","):
            raise SettingsError(
                f"data.decimal = {self.decimal!r} is no decimal mark", "Give . or a comma."
            )
        require_time_format(self.time_format)


AS_WRITTEN = Written()


def is_parquet(path: Path) -> bool:
    """Whether a path is a Parquet file, or a folder of some."""
    return path.is_dir() or path.suffix in PARQUET


def is_json_lines(path: Path) -> bool:
    """Whether a file has one JSON object a line, by its name."""
    return suffix_of(path) in JSON_LINES


def json_rows(path: Path, ids: Sequence[str]) -> pl.DataFrame:
    """The objects of a file of JSON lines as rows; a key that an object lacks is null there.

    ids: names of the columns of ids. Raises MalformedRowError at the first line that is no object,
    has a key twice, or an id that would be made another: of 1 and "1", 472.0 among integers and
    halves of surrogate pairs Polars makes one id of several. Raises DataError where another key
    holds values of several types."""
    content = content_of(path).removeprefix(BOM_UTF8)
    require_text(path, content[:_PEEK_BYTES])
    if content.lstrip()[:1] == b"[":
        raise DataError(
            f"{path} is one JSON array", "Write one object a line: jq -c '.[]' FILE > FILE.jsonl."
        )
    if not content.strip():
        raise DataError(f"{path} holds no rows", "Check that the file is whole.")
    kinds = dict[str, type]()
    for line, raw in enumerate(BytesIO(content), start=1):
        if text := decoded(raw, path, line).strip():
            _require_json_ids(path, line, json_object(path, line, text), ids, kinds)
    try:
        return ndjson(content)
    except faults() as failure:
        reason = str(failure).splitlines()[0]
        raise DataError(f"{path} cannot be read: {reason}", "Give each key one type.") from None


def _require_json_ids(
    path: Path, line: int, row: Mapping[str, object], names: Sequence[str], kinds: dict[str, type]
) -> None:
    """kinds: the type of each column's first id, which is added."""
    for name in names:
        if (value := row.get(name)) is None:
            continue
        first = kinds.setdefault(name, type(value))
        if isinstance(value, float):
            raise MalformedRowError(path, line, AN_ID, repr(value), FLOATED)
        if type(value) is not first:
            expected = f"{AN_ID}, of one type in all lines"
            raise MalformedRowError(path, line, expected, repr(value), _ONE_TYPE)
        if isinstance(value, str) and value.encode(errors="replace").decode() != value:
            raise MalformedRowError(path, line, AN_ID, repr(value), _HALF)


def table_files(path: Path) -> list[Path]:
    """The file, or the Parquet parts of a folder in the order of their names."""
    if not path.is_dir():
        return [require_file(path)]
    parts = sorted(file for file in path.iterdir() if file.suffix in PARQUET)
    if not parts:
        raise DataError(
            f"{path} holds no Parquet files",
            (
                f"Give a file ({', '.join([*SEPARATORS, *PARQUET])}), a folder of Parquet parts, "
                "or one of train.csv and test.csv."
            ),
        )
    return parts


def read_frame(
    path: Path, columns: dict[str, str], layout: Layout | None, written: Written = AS_WRITTEN
) -> tuple[pl.DataFrame, int, tuple[str, ...]]:
    """The wanted columns named by role, complete and finite: ids as integers or categories, ratings
    float32, times float64.

    Also the line of the first row, and notes on what was guessed.
    """
    frame, notes, _ = read_piece(path, columns, layout, written)
    return frame, 1 if layout is None else layout.first_line, notes


def read_piece(
    path: Path, columns: dict[str, str], layout: Layout | None, written: Written = AS_WRITTEN
) -> tuple[pl.DataFrame, tuple[str, ...], str]:
    """Columns of a part of a file as `read_frame` reads them, notes, and the unit of its times."""
    frame = (
        _read_columns(path, columns, written)
        if layout is None
        else _read_text(layout, columns, written)
    )
    if not len(frame):
        raise DataError(f"{path} holds no rows", "Check that the file is whole.")
    notes = () if layout is None else layout.notes
    try:
        frame, guessed, unit = complete(frame, path, columns, written)
    except MalformedRowError as bad:
        if layout is not None:
            if bad.expected.startswith((_ONE_UNIT, _HEADER)):
                line = bad.line - 1 + layout.first_line
                raise MalformedRowError(path, line, bad.expected, bad.found, bad.remedy) from None
            counted = bad.expected.partition(_COUNTED)
            refuse_first_malformed(
                layout,
                columns,
                "a row is incomplete",
                "".join(counted[1:]),
                bad.remedy,
                decimal=written.decimal,
                time_format=written.time_format,
                dropping=written.missing == "drop",
            )
        raise
    return frame, notes + guessed, unit


def complete(
    frame: pl.DataFrame, path: Path, columns: Mapping[str, str], written: Written = AS_WRITTEN
) -> tuple[pl.DataFrame, tuple[str, ...], str]:
    """The columns of `typed` with times in seconds, what was guessed of them, and their unit.

    Where rows that lack a value are dropped, `row` says which the
    others were. Raises MalformedRowError on a row that lacks a value, with the count of all, or has
    a time of another unit."""
    notes: tuple[str, ...] = ()
    unit = ""
    again = pl.all_horizontal(
        pl.col(role).cast(pl.String) == columns[role] for role in ("user", "item")
    )
    if not columns["user"].isdigit() and len(rows := frame.select(again).to_series().arg_true()):
        raise MalformedRowError(
            path,
            int(rows[0]) + 1,
            _HEADER,
            f"the header again ({', '.join(columns.values())})",
            "Drop the line: a file was put below another with its header.",
        )
    gone = frame.select(_lacking(role, frame.schema[role]).alias(role) for role in columns)
    lacking = gone.select(pl.any_horizontal(pl.all())).to_series()
    if len(rows := lacking.arg_true()):
        each = (f"{int(gone[role].sum()):,} {name}" for role, name in columns.items())
        counted = f"{len(rows):,} of {len(frame):,} rows lack a value: {', '.join(each)}"
        if written.missing == "refuse":
            row = int(rows[0])
            lost = ", ".join(name for role, name in columns.items() if gone[role][row])
            expected = f"a value in each of {', '.join(columns.values())}{_COUNTED}{counted})"
            raise MalformedRowError(path, row + 1, expected, f"no {lost}", _MISSING)
        notes = (f"{path.name}: dropped, as {counted}",)
        frame = frame.with_row_index("row").filter(
            ~gone.select(pl.any_horizontal(pl.all())).to_series()
        )
        if frame.is_empty():
            raise DataError(f"every row of {path} lacks a value", "Name the columns that are full.")
    given = frame
    if "rating" in frame.columns and frame["rating"].dtype == pl.String:
        frame = frame.with_columns(numbers_of(frame["rating"], written.decimal))
    if "timestamp" in frame.columns:
        times = times_of(frame["timestamp"], written.time_format)
        if times.other is not None:
            raise other_unit(
                path, _place(frame, times.other), times.unit, frame["timestamp"][times.other]
            )
        unit = times.unit
        frame = frame.with_columns(times.seconds.alias("timestamp"))
        notes += (f"{path.name}: {times.guessed}",) if times.guessed else ()
    bad = pl.any_horizontal(*(pl.col(role).is_null() | ~_finite(role) for role in columns))
    if (rows := frame.select(bad.alias("bad"))["bad"].arg_true()).len():
        _refuse(given, int(rows[0]), path, columns, written)
    return frame, notes, unit


def other_unit(path: Path, row: int, unit: str, found: object) -> MalformedRowError:
    """Where a row's time is of another unit than those before it, or only one has a zone."""
    remedy = {"remedy": "Write a zone at every time, or at none: without one it counts as UTC."}
    return MalformedRowError(
        path,
        row + 1,
        f"{_ONE_UNIT} (the first {in_unit(unit)})",
        str(found),
        **(remedy if unit in {ZONED, UNZONED} else {}),
    )


def _refuse(
    frame: pl.DataFrame, row: int, path: Path, columns: Mapping[str, str], written: Written
) -> NoReturn:
    """frame: as it was written, its times too."""
    found = frame.row(row, named=True)
    first = frame["timestamp"].drop_nulls()[0] if "timestamp" in columns else ""
    texts = {role: str(found[role]) for role in columns}
    fault = first_fault(texts, columns, str(first), written.decimal, written.time_format)
    expected = f"a value in each of {', '.join(columns.values())}", str(tuple(found.values()))
    words = fault or (*expected, "Correct the line, or drop it.")
    raise MalformedRowError(path, _place(frame, row) + 1, *words)


def _place(frame: pl.DataFrame, row: int) -> int:
    """The row of the file that a row is, where others were dropped before it."""
    return int(frame["row"][row]) if "row" in frame.columns else row


def _lacking(role: str, dtype: pl.DataType) -> pl.Expr:
    """Whether a value is missing: null, not a number, or text that says so."""
    value = pl.col(role)
    if dtype.is_float():
        return value.is_null() | value.is_nan()
    if not (dtype.is_numeric() or dtype.is_temporal()):
        return value.is_null() | value.cast(pl.String).str.strip_chars().is_in(NO_VALUE)
    return value.is_null()


def _finite(role: str) -> pl.Expr:
    return pl.col(role).is_finite() if role in ("rating", "timestamp") else pl.lit(True)


def _read_columns(path: Path, columns: dict[str, str], written: Written) -> pl.DataFrame:
    names = list(columns.values())
    if not path.is_dir() and is_json_lines(path):
        frame = json_rows(path, [columns["user"], columns["item"]])
        require_columns(path, frame.columns, names)
    else:
        frame = parquet(table_files(path), names)
    return typed(frame, columns, path, written)


def typed(
    frame: pl.DataFrame, columns: Mapping[str, str], path: Path, written: Written = AS_WRITTEN
) -> pl.DataFrame:
    """The wanted columns by role: ids as integers or categories, ratings float32, times as they
    are; text that is yet to be read stays text.

    Raises DataError where ids are lists, records, bytes or objects, or ratings no numbers;
    MalformedRowError on ids that were floats, SettingsError on a form of text for what is none."""
    for role, name in columns.items():
        _require_kind(frame[name], role)
    ids = {
        role: ids if ids.dtype.is_integer() else ids.cast(pl.Categorical)
        for role, name in columns.items()
        if role in ("user", "item")
        for ids in [plain_ids(frame[name], path)]
    }
    for name in (columns[role] for role in _VALUES if role in columns):
        if frame[name].dtype in (pl.Categorical, pl.Enum):
            frame = frame.with_columns(pl.col(name).cast(pl.String))
    require_text_forms(frame, columns, written)
    others = {role: frame[columns[role]] for role in _VALUES if role in columns}
    if "rating" in others and others["rating"].dtype != pl.String:
        with understood(path, "Ratings must be numbers; times numbers, dates or ISO text."):
            others["rating"] = others["rating"].cast(pl.Float32)
    return pl.DataFrame(ids | others)


def require_text_forms(frame: pl.DataFrame, columns: Mapping[str, str], written: Written) -> None:
    """Raises SettingsError where a form is said of a column that is not there, or is no text."""
    for role, key, said in (
        ("rating", "decimal", written.decimal != "."),
        ("timestamp", "time_format", bool(written.time_format)),
    ):
        kind = frame[columns[role]].dtype if said and role in columns else pl.Null()
        # days are written as integers too, 20200131
        if said and not (kind == pl.String or (role == "timestamp" and kind.is_integer())):
            what = f"{columns[role]!r} is no text" if role in columns else f"no {role} is read"
            raise SettingsError(f"data.{key} is of {role}s in text, and {what}", "Leave it out.")


def _require_kind(column: pl.Series, role: str) -> None:
    """Raises DataError where a column holds values of a kind that its role has not."""
    dtype = column.dtype
    words = next((said for kind, said in _WORDS.items() if dtype == kind), "lists or records")
    right, remedy, known = _VALUES.get(role, _IDS)
    if (dtype.is_nested() or dtype in tuple(_WORDS)) and dtype not in known:
        raise DataError(f"the column {column.name!r} holds {words}, and {right}", remedy)


def _read_text(layout: Layout, columns: dict[str, str], written: Written) -> pl.DataFrame:
    """Times stay text where the first is no number, and what has a form of its own."""
    types: dict[str, type[pl.DataType]] = {
        "user": pl.Categorical,
        "item": pl.Categorical,
        "rating": pl.Float32 if written.decimal == "." else pl.String,
        "timestamp": pl.Float64,
    }
    if "timestamp" in columns and columns["timestamp"] in layout.names:
        first = next(rows_of(layout), (0, []))[1]
        place = layout.names.index(columns["timestamp"])
        if written.time_format or (place < len(first) and not is_number(first[place])):
            types["timestamp"] = pl.String
    refuse = partial(
        refuse_first_malformed,
        decimal=written.decimal,
        time_format=written.time_format,
        dropping=written.missing == "drop",
    )
    frame = read_columns(layout, columns, types, refuse)
    require_text_forms(frame, {role: role for role in columns}, written)
    line = layout.first_line
    ids = (plain_ids(frame[role], layout.path, first=line) for role in ("user", "item"))
    return frame.with_columns(own.cast(pl.Categorical) for own in ids)


def _first_rows(path: Path) -> list[dict[str, object]]:
    """The first objects of JSON lines; the reader says what is wrong with a line that is none."""
    rows = list[object]()
    with open_bytes(path) as file:
        for raw in islice(lines_of(file), FIRST):
            with suppress(ValueError):
                rows.append(parsed_json(raw))
    return [row for row in rows if isinstance(row, dict)]


def column_names(path: Path, layout: Layout | None) -> list[str]:
    """Names of a file's columns, in its order."""
    if layout is not None:
        return list(layout.names)
    if not path.is_dir() and is_json_lines(path):
        return list(dict.fromkeys(key for row in _first_rows(path) for key in row))
    try:
        return parquet_names(table_files(path)[0])
    except DataError:
        return []  # the reader says what is wrong with the file


def first_values(
    path: Path, layout: Layout | None, names: Sequence[str]
) -> dict[str, list[object]]:
    """The first values of some columns, as they are written."""
    rows: Iterable[Mapping[str, object]] = ()
    if layout is not None:
        rows = (dict(zip(layout.names, row, strict=False)) for _, row in rows_of(layout))
    elif not path.is_dir() and is_json_lines(path):
        rows = _first_rows(path)
    else:
        first = table_files(path)[:1]
        frame = of_parquet(first, lambda rows: rows.select(names).head(FIRST).collect())
        return frame.to_dict(as_series=False)
    found = list(islice(rows, FIRST))
    return {name: [row.get(name) for row in found] for name in names}
