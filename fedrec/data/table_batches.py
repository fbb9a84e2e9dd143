"""Rows of a table in batches of bounded memory: what `tables.read_frame` reads of a whole file,
with the lines they stand on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl

from fedrec.data.columns import in_unit
from fedrec.data.resolving import Missing
from fedrec.data.table_files import (
    complete,
    is_json_lines,
    json_rows,
    other_unit,
    read_piece,
    table_files,
    typed,
)
from fedrec.data.tables import AskedTable
from fedrec.data.text_tables import Layout, open_bytes
from fedrec.errors import DataError, MalformedRowError, SettingsError

_BATCH_BYTES = 1 << 26
_BATCH_ROWS = 2_000_000


def row_batches(asked: AskedTable) -> Iterator[tuple[pl.DataFrame, tuple[str, ...]]]:
    """Columns by role, complete and typed, `line` beside them; and notes on what was guessed.

    Raises what `read_table` raises of rows."""
    path = asked.source["train"]
    if asked.click_threshold is not None:
        raise SettingsError(
            "partitions need the scale of ratings from which clicks are made",
            "Give rating_range too, or keep the rows that are clicks.",
        )
    columns = asked.columns.names()
    if asked.layout is not None:
        yield from _of_text(asked.layout, columns, asked.policies.missing)
        return
    for file in table_files(path):
        yield from _of_parquet(file, columns, asked.policies.missing)


def _of_parquet(
    file: Path, columns: dict[str, str], missing: Missing
) -> Iterator[tuple[pl.DataFrame, tuple[str, ...]]]:
    try:
        units = _Units()
        rows_of = json_rows(file).lazy() if is_json_lines(file) else pl.scan_parquet(file)
        rows = int(rows_of.select(pl.len()).collect().item())
        for start in range(0, rows, _BATCH_ROWS):
            frame = typed(
                rows_of.select(list(columns.values())).slice(start, _BATCH_ROWS).collect(),
                columns,
            )
            frame, notes, unit = _complete(frame, file, columns, start, missing)
            units.take(unit, file, start + 1)
            yield _numbered(frame, start + 1), notes
    except pl.exceptions.PolarsError as error:
        remedy = (
            f"It must hold the columns {', '.join(columns.values())}; data.columns says which is "
            "which."
        )
        raise DataError(f"{file} cannot be read: {str(error).splitlines()[0]}", remedy) from error


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
    frame: pl.DataFrame, file: Path, columns: dict[str, str], before: int, missing: Missing
) -> tuple[pl.DataFrame, tuple[str, ...], str]:
    """before: rows before these."""
    try:
        return complete(frame, file, columns, missing)
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
    layout: Layout, columns: dict[str, str], missing: Missing
) -> Iterator[tuple[pl.DataFrame, tuple[str, ...]]]:
    """The file in pieces of whole rows, each read as a file of its own: the reader's checks hold in
    every piece."""
    with TemporaryDirectory(prefix="fedrec-") as folder, open_bytes(layout.path) as file:
        piece = Path(folder) / layout.path.name.removesuffix(".gz")
        line = layout.first_line
        if layout.header:
            file.readline()
        units = _Units()
        bare = replace(layout, path=piece, header=False)  # names stay those of the header
        while block := _whole_rows(file.read(_BATCH_BYTES), file, quotes=layout.quotes):
            piece.write_bytes(block)
            try:
                frame, notes, unit = read_piece(piece, columns, bare, missing)
            except MalformedRowError as bad:
                raise MalformedRowError(
                    layout.path, bad.line + line - 1, bad.expected, bad.found, bad.remedy
                ) from None
            units.take(unit, layout.path, line)
            yield _numbered(frame, line), notes
            line += block.count(b"\n")


def _whole_rows(block: bytes, file: object, *, quotes: bool) -> bytes:
    """The block and the rest of its last row; a line break within quotes ends no row."""
    more = file.readline()  # type: ignore[attr-defined]
    while more:
        block += more
        if not quotes or block.count(b'"') % 2 == 0:
            break
        more = file.readline()  # type: ignore[attr-defined]
    return block
