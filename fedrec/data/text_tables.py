"""Text tables: separator, header and wanted columns of CSV and its kin, plain or compressed with
gzip.

What is not said is guessed from the first lines, and every guess that the suffix does not imply is
a note for whoever reads the report. Polars has separators of one byte: `a::b` is read as three
columns split at `:`, and a count of the separators in the file's bytes then proves that every row
had exactly the declared ones.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal, NoReturn

import polars as pl

from fedrec.data.columns import meant
from fedrec.data.delimited import NO_VALUE, decoded, is_number, require_text
from fedrec.data.frame_files import csv as read_csv
from fedrec.data.frame_files import require_columns
from fedrec.data.opening import DAMAGED, faults, line_of, lines_of, open_bytes
from fedrec.data.values import first_fault
from fedrec.errors import DataError, MalformedRowError, SettingsError

SEPARATORS = {".csv": ",", ".tsv": "\t", ".tab": "\t", ".inter": "\t", ".txt": "", ".dat": ""}
"""What the suffix says; empty where it says nothing."""
NAMED = {"tab": "\t", "comma": ",", "semicolon": ";", "space": " ", "pipe": "|"}
"""Words for separators that are awkward on a command line."""
Header = Literal["auto", "yes", "no"]

_GUESSED = ("\t", "::", ";", ",", "|", " ")
_PEEK_LINES = 20  # enough to tell a separator and a header from chance
_BLOCK_BYTES = 1 << 24  # checked at a time, in little memory


@dataclass(frozen=True)
class Layout:
    """How a file's rows are to be read. names: of all columns, numbers from 1 where there is no
    header. notes: what was guessed."""

    path: Path
    separator: str
    header: bool
    names: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def quotes(self) -> bool:
        """Whether fields may stand in quotes: never in tables of tabs and of several characters, as
        their makers mean them."""
        return len(self.separator) == 1 and self.separator != "\t"

    @property
    def first_line(self) -> int:
        """The line of the first row."""
        return 2 if self.header else 1


def suffix_of(path: Path) -> str:
    """`.csv` of `log.csv` and of `log.csv.gz`, in lower case."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def layout_of(path: Path, *, separator: str, header: Header, wanted: Collection[str]) -> Layout:
    """The layout of a file whose columns `wanted` will be asked for. separator: itself, a word of
    NAMED, or empty to guess it.

    A file has no header where header is "no", where the columns asked for are numbers, or where two
    fields of its first line are numbers and none is the name of a column. Raises SettingsError on
    an impossible separator, DataError where none is found.
    """
    chosen = NAMED.get(separator, separator.replace("\\t", "\t"))
    if chosen in {"\n", "\r", '"'} or len(set(chosen)) > 1:
        raise SettingsError(
            f"data.separator = {separator!r} separates nothing",
            f"Use {', '.join(NAMED)}, :: or one character.",
        )
    try:
        with open_bytes(path) as file:
            written = list(islice(lines_of(file), _PEEK_LINES))
    except DAMAGED as failure:
        raise DataError(f"{path} cannot be read: {failure}", "Download or pack it again.") from None
    require_text(path, b"".join(written))
    if written[0][:1] in (b"{", b"["):
        raise DataError(
            f"{path} is JSON",
            f"Call rows {path.stem}.jsonl, with one object a line; write items as CSV or Parquet.",
        )
    if not written[0].strip():
        raise DataError(f"{path} begins with a blank line", "Begin with the header, or a row.")
    lines = [decoded(raw, path, line).rstrip("\r\n") for line, raw in enumerate(written, start=1)]
    try:
        return _layout(path, lines, chosen, header, wanted)
    except csv.Error as error:
        raise stray_quote(path, 1, error) from error


def stray_quote(path: Path, line: int, error: csv.Error) -> MalformedRowError:
    """Where a row that begins on a line has a quote too many."""
    remedy = 'Close the quoted field, and write a quote within one twice: "5"" disc".'
    if "new-line" in str(error):
        return MalformedRowError(path, line, "a row of a table", str(error))
    return MalformedRowError(path, line, "fields whose quotes are in pairs", str(error), remedy)


def _layout(
    path: Path, lines: list[str], chosen: str, header: Header, wanted: Collection[str]
) -> Layout:
    """Layout of the first lines, by the separator that was named, or the one that fits them."""
    notes = list[str]()
    if not chosen:
        usual = SEPARATORS.get(suffix_of(path), "")
        chosen = _guessed([line for line in lines if line], usual)
        if not chosen and len(wanted) > 1:
            raise DataError(
                f"{path} has one column: no separator was found",
                "Say it: data.separator = tab, comma, semicolon or ::.",
            )
        chosen = chosen or usual or ","
        notes += (
            [f"{path.name}: fields are separated by {_word(chosen)}, guessed"]
            if chosen != usual
            else []
        )
    first = _fields(lines[0], chosen)
    require_columns(path, first, ())
    has_header = header == "yes" or (header == "auto" and _is_header(first, wanted))
    if not has_header and header == "auto":
        notes.append(
            f"{path.name} has no header, guessed: its first line is a row, and columns are "
            "numbered from 1"
        )
    names = tuple(first) if has_header else tuple(str(n + 1) for n in range(len(first)))
    return Layout(path, chosen, has_header, names, tuple(notes))


def read_columns(
    layout: Layout,
    columns: Mapping[str, str],
    types: Mapping[str, type[pl.DataType]],
    refuse: Callable[[Layout, Mapping[str, str], str], NoReturn] | None = None,
) -> pl.DataFrame:
    """The columns named by role, of the given types, every row with as many fields as the first.

    columns: role to name. refuse: names the first bad row, with the reason in general; None:
    `refuse_first_malformed`. Raises DataError where a column is missing, MalformedRowError at the
    first row that is too long or too short or whose number is none.
    """
    refuse = refuse or refuse_first_malformed
    path = layout.path
    names = layout.names
    separator = layout.separator
    if missing := [name for name in columns.values() if name not in names]:
        role = next(role for role, name in columns.items() if name == missing[0])
        asked = meant(role, missing[0], names)
        # a blank beside a name is seen only in quotes
        known = ", ".join(name if name == name.strip() else repr(name) for name in names)
        first = (
            "If that is a row of data, data.header=no; if the header stands below it, drop what is "
            "above."
            if layout.header
            else "The file is read without a header."
        )
        raise DataError(
            f"{path} has no column {missing[0]!r}",
            f"{asked}Its columns are {known}: say which is which, data.columns.{role} = ... in a "
            f"scenario, --{role.replace('timestamp', 'time')} COLUMN of a command. {first}",
        )
    if twice := [name for name in columns.values() if names.count(name) > 1]:
        raise DataError(f"{path} has several columns {twice[0]!r}", "Rename all but one of them.")
    width = len(separator)  # between two fields lie width - 1 empty ones
    schema: dict[str, type[pl.DataType]] = {}
    for place, name in enumerate(names):
        schema |= {f"{place}/{n}": pl.String for n in range(1, width) if place}
        schema[f"{place}"] = next(
            (types[role] for role, wanted in columns.items() if wanted == name), pl.String
        )
    places = {role: names.index(name) for role, name in columns.items()}

    def scan(wanted: list[int] | None) -> pl.DataFrame:
        return read_csv(
            path,
            has_header=False,
            skip_rows=int(layout.header),
            separator=separator[0],
            quote_char='"' if layout.quotes else None,
            schema=schema,
            null_values=list(NO_VALUE),
            columns=wanted,
        )

    try:
        frame = scan([place * width for place in sorted(set(places.values()))])
        separators, parts, quotes, blank = _counts(layout)
        frame = frame.head(len(frame) - blank)
        if layout.quotes and quotes:
            # a quoted separator spoils the count below, but a full read finds the rows that are too
            # long
            scan(None)
            # a quote within a field ends it for one reader of CSV and not for another
            if _quotes_within(layout) and sum(1 for _ in rows_of(layout)) != len(frame):
                refuse(layout, columns, "quotes are not in pairs")
        elif (separators, parts) != _expected(layout, len(frame)):
            refuse(layout, columns, "rows differ in length")
    except faults() as error:
        refuse(layout, columns, str(error))
    return frame.select(**{role: pl.col(str(place)) for role, place in places.items()})


def refuse_first_malformed(
    layout: Layout,
    columns: Mapping[str, str],
    reason: str,
    counted: str = "",
    remedy: str = "Correct the line, or drop it.",
    *,
    decimal: str = ".",
    time_format: str = "",
    dropping: bool = False,
) -> NoReturn:
    """MalformedRowError at the first bad row; DataError with `reason` when no row explains it.
    counted: what to say of all rows without a value, remedy: of one; dropping: these are left out.
    decimal, time_format: how numbers and times are written."""
    first_time = ""
    for line, fields in rows_of(layout):
        require_width(layout, line, fields)
        texts = {role: fields[layout.names.index(name)] for role, name in columns.items()}
        if dropping and any(text.strip() in NO_VALUE for text in texts.values()):
            continue
        first_time = first_time or texts.get("timestamp", "")
        if fault := first_fault(texts, columns, first_time, decimal, time_format):
            expected, found, more = fault
            if found.strip() in NO_VALUE:
                expected, more = f"{expected}{counted}", remedy
            raise MalformedRowError(layout.path, line, expected, found, more)
    if layout.quotes:  # which the two readers of CSV take differently within a field
        with open_bytes(layout.path) as file:
            for line, raw in enumerate(lines_of(file), start=1):
                if raw.count(b'"') % 2:
                    odd = csv.Error(decoded(raw, layout.path, line).rstrip()[:80])
                    raise stray_quote(layout.path, line, odd)
    raise unreadable(layout, reason)


def require_width(layout: Layout, line: int, fields: Sequence[str]) -> None:
    """Raises MalformedRowError where a row has not as many fields as the first."""
    if len(fields) != len(layout.names):
        raise MalformedRowError(
            layout.path,
            line,
            f"{len(layout.names)} fields separated by {_word(layout.separator)}",
            layout.separator.join(fields)[:80],
        )


def unreadable(layout: Layout, reason: str) -> DataError:
    """A file of which no row explains why it cannot be read."""
    if next(rows_of(layout), None) is None:
        return DataError(f"{layout.path} holds no rows", "Check that the file is whole.")
    return DataError(
        f"{layout.path} cannot be read: {reason.splitlines()[0]}",
        "Check that the file is whole and in the stated format.",
    )


def rows_of(layout: Layout) -> Iterator[tuple[int, list[str]]]:
    """Line number and fields of each row after the header, one by one; the line is the one that a
    row ends on. Blank lines at the end of the file are no rows."""
    blank = list[tuple[int, list[str]]]()
    for line, fields in _all_rows(layout):
        if not any(fields) and len(fields) < 2:
            blank.append((line, fields))
            continue
        yield from blank
        blank.clear()
        yield line, fields


def _all_rows(layout: Layout) -> Iterator[tuple[int, list[str]]]:
    path = layout.path
    begun = 0
    try:
        with open_bytes(path) as file:
            texts = (decoded(raw, path, line) for line, raw in enumerate(lines_of(file), start=1))
            if not layout.quotes:
                for line, text in enumerate(texts, start=1):
                    if line >= layout.first_line:
                        yield line, text.rstrip("\r\n").split(layout.separator)
                return
            reader = csv.reader(texts, delimiter=layout.separator, strict=True)
            for number, fields in enumerate(reader):
                begun = reader.line_num
                if number or not layout.header:
                    yield begun, fields
    except csv.Error as error:
        raise stray_quote(path, begun + 1, error) from error
    except DAMAGED as failure:
        raise DataError(f"{path} cannot be read: {failure}", "Download or pack it again.") from None


def _fields(line: str, separator: str) -> list[str]:
    return (
        next(csv.reader([line], delimiter=separator), [""])
        if len(separator) == 1 and separator != "\t"
        else line.split(separator)
    )


def _guessed(lines: list[str], usual: str) -> str:
    """The suffix's own separator where the first line has it; else the first that all lines have,
    equally often; else empty."""
    if not lines or (usual and usual in lines[0]):
        return usual
    for separator in _GUESSED:
        lengths = {len(_fields(line, separator)) for line in lines}
        if len(lengths) == 1 and lengths != {1}:
            return separator
    return next((separator for separator in _GUESSED if separator in lines[0]), "")


def _is_header(first: list[str], wanted: Collection[str]) -> bool:
    if any(name in first for name in wanted if not name.isdigit()):
        return True
    if any(name.isdigit() for name in wanted):
        return all(name in first for name in wanted)
    return sum(map(is_number, first)) < 2


def _word(separator: str) -> str:
    return next(
        (word for word, character in NAMED.items() if character == separator), repr(separator)
    )


def _counts(layout: Layout) -> tuple[int, int, int, int]:
    """How often the separator, its first character and quotes occur, in blocks of whole lines so
    that none is cut in two; and how many blank lines the file ends with."""
    found = [0, 0, 0]
    ends = 0
    patterns = layout.separator.encode(), layout.separator[:1].encode(), b'"'
    with open_bytes(layout.path) as file:
        while block := file.read(_BLOCK_BYTES) + line_of(file):
            found = [
                count + block.count(pattern) for count, pattern in zip(found, patterns, strict=True)
            ]
            rest = block.rstrip(b"\r\n")
            ends = block[len(rest) :].count(b"\n") + (0 if rest else ends)
    return found[0], found[1], found[2], max(ends - 1, 0)


def _quotes_within(layout: Layout) -> bool:
    """Whether a quote that is not doubled stands between two letters of a field."""
    within = re.compile(rb'[^"\r\n%b]"[^"\r\n%b]' % ((re.escape(layout.separator.encode()),) * 2))
    with open_bytes(layout.path) as file:
        while block := file.read(_BLOCK_BYTES) + line_of(file):
            if within.search(block):
                return True
    return False


def _expected(layout: Layout, rows: int) -> tuple[int, int]:
    each = (len(layout.names) - 1) * (rows + layout.header)
    return each, each * len(layout.separator)
