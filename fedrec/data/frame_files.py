"""Tables and arrays in files, read by Polars, NumPy and SciPy: nobody else gives them a path
(rules.toml, [opens])."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import polars as pl
from scipy import sparse

from fedrec.data.opening import Unpacked, faults, open_bytes, understood
from fedrec.errors import DataError

Asked = TypeVar("Asked")
MOST_COLUMNS = 10_000
"""Of a table; readers of CSV take hours, or end, over hundreds of thousands."""


_PARQUET = "Ratings must be numbers, and a Parquet file whole; text is read from .csv."


def parquet(files: Path | Sequence[Path], columns: Sequence[str] | None = None) -> pl.DataFrame:
    """The rows of Parquet files of one schema, one below the other; of all columns, or some.

    Raises DataError where one is damaged, lacks a column or has another type for it."""
    frames = list[pl.DataFrame]()
    for path in [files] if isinstance(files, Path) else files:
        with understood(path, _PARQUET), open_bytes(path) as file:
            require_columns(path, _schema(file), columns or ())
            own = pl.read_parquet(file, columns=None if columns is None else list(columns))
        if frames and own.schema != frames[0].schema:
            raise DataError(
                f"{path} has columns of other types than the parts before it",
                "Write all parts with one schema.",
            )
        frames.append(own)
    return frames[0] if len(frames) == 1 else pl.concat(frames, rechunk=False)


_ROWS = f"A table of rows has one for each fact, at most {MOST_COLUMNS:,}."


def require_columns(path: Path, found: Collection[str], columns: Sequence[str]) -> None:
    """Raises DataError where a file without a layout lacks a column."""
    if len(found) > MOST_COLUMNS:
        raise DataError(f"{path} has {len(found):,} columns", _ROWS)
    if missing := [name for name in columns if name not in found]:
        raise DataError(
            f"{path} cannot be read: there is no column {missing[0]!r}",
            f"It must hold the columns {', '.join(columns)}; data.columns says which is which.",
        )


def parquet_of(content: bytes, name: str) -> pl.DataFrame:
    """The rows of a Parquet file in memory. Raises DataError where it is damaged."""
    with understood(name, _PARQUET):
        return pl.read_parquet(io.BytesIO(content))


def parquet_names(path: Path) -> list[str]:
    """Names of the columns of a Parquet file. Raises DataError where it is damaged."""
    with understood(path, _PARQUET), open_bytes(path) as file:
        return list(_schema(file))


def _schema(file: IO[bytes]) -> pl.Schema:
    found = pl.Schema(pl.read_parquet_schema(file))
    file.seek(0)
    return found


def parquet_metadata(path: Path) -> dict[str, str]:
    """Key-value metadata of a Parquet file. Raises DataError where it is damaged."""
    with understood(path, _PARQUET), open_bytes(path) as file:
        return pl.read_parquet_metadata(file)


def of_parquet(files: Sequence[Path], ask: Callable[[pl.LazyFrame], Asked]) -> Asked:
    """What is asked of the rows of Parquet files, which are not all in memory at once.

    Raises DataError where one is damaged."""
    with ExitStack() as opened, understood(files[0], _PARQUET):
        return ask(pl.scan_parquet([opened.enter_context(open_bytes(file)) for file in files]))


def csv(source: Path | bytes, **layout: Any) -> pl.DataFrame:
    """Rows of a text file, or of bytes of one, by Polars.

    Raises what Polars raises: the caller names the line."""
    if isinstance(source, bytes):
        return pl.read_csv(source, **layout)
    with open_bytes(source) as file:  # Polars prints a panic where what it reads from fails
        return pl.read_csv(file.read() if isinstance(file, Unpacked) else file, **layout)


def ndjson(content: bytes) -> pl.DataFrame:
    """Objects of JSON lines. Raises what Polars raises: the caller names the line."""
    return pl.read_ndjson(io.BytesIO(content), infer_schema_length=None)


def npz_matrix(path: Path) -> sparse.coo_matrix:
    """A matrix that `scipy.sparse.save_npz` wrote; nothing in it is executed. Raises DataError."""
    with open_bytes(path) as file:
        try:
            return sparse.coo_matrix(sparse.load_npz(file))
        except faults() as failure:
            raise DataError(
                f"{path} is not a SciPy sparse matrix", "Write it with scipy.sparse.save_npz."
            ) from failure


def array(path: Path) -> np.ndarray:
    """An array that `numpy.save` wrote; nothing in it is executed. Raises DataError."""
    with understood(path, "Write it with numpy.save."), open_bytes(path) as file:
        return np.asarray(np.load(file, allow_pickle=False))
