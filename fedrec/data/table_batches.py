"""Rows of a table in batches of bounded memory, with the lines they stand on: what
`table_files.read_frame` reads of a whole file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

import polars as pl

from fedrec.data.frame_files import of_parquet, parquet_names, require_columns
from fedrec.data.opening import line_of, open_bytes, understood
from fedrec.data.table_files import (
    Written,
    complete,
    is_json_lines,
    json_rows,
    other_unit,
    read_piece,
    table_files,
    typed,
)
from fedrec.data.tables import AskedTable
from fedrec.data.text_tables import Layout
from fedrec.data.values import in_unit
from fedrec.errors import MalformedRowError

_BATCH_BYTES = 1 << 26
_BATCH_ROWS = 2_000_000
"""Text, and rows of Parquet, that are parsed at a time: some 64 MB of both, so that tables larger
than memory can be read."""


def row_batches(asked: AskedTable) -> Iterator[tuple[pl.DataFrame, tuple[str, ...]]]:
    """Columns by role, complete and typed, `line` beside them; and notes on what was guessed.

    Raises what `read_table` raises of rows."""
    path = asked.source["train"]
    columns = asked.rules.columns.names()
    with understood(path):
        if asked.layout is not None:
            yield from _of_text(asked.layout, columns, asked.written)
            return
        for file in table_files(path):
            yield from _of_parquet(file, columns, asked.written)


def _of_parquet(
    file: Path, columns: dict[str, str], written: Written
) -> Iterator[tuple[pl.DataFrame, tuple[str, ...]]]:
    """Rows of Parquet, and of JSON lines, which are in memory as a whole."""
    names = list(columns.values())
    ids = [columns["user"], columns["item"]]
    whole = json_rows(file, ids) if is_json_lines(file) else None
    require_columns(file, parquet_names(file) if whole is None else whole.columns, names)
    units = _Units()
    start = 0
    while True:
        own = (
            of_parquet([file], lambda rows: rows.select(names).slice(start, _BATCH_ROWS).collect())  # noqa: B023
            if whole is None
            else whole.select(names).slice(start, _BATCH_ROWS)
        )
        if not len(own):
            return
        frame, notes, unit = _complete(own, file, columns, start, written)
        units.take(unit, file, start + 1)
        yield _numbered(frame, start + 1), notes
        start += len(own)


class _Units:
    """The unit of a file's times, which every batch of it has."""

    def __init__(self) -> None:
        self._first = ""

    def take(self, unit: str, path: Path, line: int) -> None:
        """Raises MalformedRowError where an earlier batch had another; zeros alone have none."""
        if self._first and unit and unit != self._first:
            raise other_unit(path, line - 1, self._first, f"times from here on {in_unit(unit)}")
        self._first = self._first or unit


def _complete(
    frame: pl.DataFrame, file: Path, columns: dict[str, str], before: int, written: Written
) -> tuple[pl.DataFrame, tuple[str, ...], str]:
    """before: rows before these."""
    try:
        return complete(typed(frame, columns, file, written), file, columns, written)
    except MalformedRowError as bad:
        line = bad.line + before
        raise MalformedRowError(file, line, bad.expected, bad.found, bad.remedy) from None


def _numbered(frame: pl.DataFrame, first_line: int) -> pl.DataFrame:
    """With the line of each row; where rows were dropped, `row` says which these are."""
    rows = pl.col("row") if "row" in frame.columns else pl.int_range(pl.len())
    return frame.with_columns((rows.cast(pl.Int64) + first_line).alias("line")).drop(
        "row", strict=False
    )


def _of_text(
    layout: Layout, columns: dict[str, str], written: Written
) -> Iterator[tuple[pl.DataFrame, tuple[str, ...]]]:
    """The file in pieces of whole rows, each read as a file of its own: the reader's checks hold in
    every piece."""
    with TemporaryDirectory(prefix="fedrec-") as folder, open_bytes(layout.path) as file:
        piece = Path(folder) / layout.path.name.removesuffix(".gz")
        line = layout.first_line
        if layout.header:
            line_of(file)
        units = _Units()
        bare = replace(layout, path=piece, header=False)  # names stay those of the header
        while block := _whole_rows(file.read(_BATCH_BYTES), file, quotes=layout.quotes):
            piece.write_bytes(block)
            try:
                frame, notes, unit = read_piece(piece, columns, bare, written)
            except MalformedRowError as bad:
                raise MalformedRowError(
                    layout.path, bad.line + line - 1, bad.expected, bad.found, bad.remedy
                ) from None
            units.take(unit, layout.path, line)
            yield _numbered(frame, line), notes
            line += block.count(b"\n")


def _whole_rows(block: bytes, file: IO[bytes], *, quotes: bool) -> bytes:
    """The block and the rest of its last row; a line break within quotes ends no row."""
    more = line_of(file)
    while more:
        block += more
        if not quotes or block.count(b'"') % 2 == 0:
            break
        more = line_of(file)
    return block
