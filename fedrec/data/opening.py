"""Files that a person names, opened by exactly that name, and what is wrong with one in words.

Polars takes brackets, stars and `~` in a path for a pattern, and refuses names that are no UTF-8:
it is given open files alone. What Polars, NumPy and zlib raise on a damaged file is many types, a
Rust panic among them; `understood` makes them one.
"""

from __future__ import annotations

import gzip
import io
import os
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from csv import Error as CsvError
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import polars as pl
from scipy import sparse

from fedrec.errors import DataError, FedRecError

Asked = TypeVar("Asked")
DAMAGED = (OSError, EOFError, zlib.error)
"""What reading a compressed file raises."""
FAULTS = (
    *DAMAGED,
    zipfile.BadZipFile,
    CsvError,
    *(pl.exceptions.PolarsError, pl.exceptions.PanicException),
    *(ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError),
    ValueError,
)
"""What Polars, NumPy and SciPy raise where a file does not hold what it says."""

MOST_LINE_BYTES = 1 << 26
"""Of a file of lines: a person with ten million items has fewer."""
MOST_COLUMNS = 10_000
"""Of a table; readers of CSV take hours, or end, over hundreds of thousands."""
_SMALL_BYTES = 1 << 30  # what a small packed file may unpack to, and memory holds
_MOST_TIMES = 100  # a table of rows packs to a twentieth


def shown_name(path: Path) -> str:
    """The name of a file for people and records; bytes that are no UTF-8 as `\\xfc`."""
    return os.fsencode(path.name).decode("utf-8", "backslashreplace")


def require_file(path: Path) -> Path:
    """The path, when a file with something in it is there. Raises DataError otherwise."""
    try:
        if not path.is_file():
            raise DataError(*_no_file(path))
        size = path.stat().st_size
    except (OSError, ValueError) as failure:
        raise DataError(f"{path} cannot be opened: {_reason(failure)}", "Check the path.") from None
    if size == 0:
        raise DataError(f"{path} is empty", "Download or unpack it again.")
    return path


def _no_file(path: Path) -> tuple[str, str]:
    if str(path) == "-":
        return "- is no file, and rows are not read from a terminal or a pipe", _PIPE
    if path.is_dir():
        return f"{path} is a folder", "Give one file in it."
    if path.exists():
        return f"{path} is no file, but a pipe or a device", _PIPE
    remedy = "formats are guessed from names of files, and data.format says another."
    return f"{path} is missing", f"Check the path; {remedy}"


_PIPE = "A file is read several times: write the rows to one first, COMMAND > clicks.csv."


def open_bytes(path: Path) -> IO[bytes]:
    """The file's bytes, decompressed where its name ends in .gz.

    Raises DataError where it is missing, empty or may not be read."""
    require_file(path)
    try:
        if path.name.lower().endswith(".gz"):
            return _Unpacked(path)  # type: ignore[return-value]
        return path.open("rb")
    except OSError as failure:
        raise DataError(
            f"{path} cannot be opened: {_reason(failure)}", "Correct its permissions."
        ) from None


class _Unpacked(gzip.GzipFile):
    """A file that is unpacked as it is read: not to hundreds of times its size, as no table is."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "rb")
        self._most = max(_SMALL_BYTES, _MOST_TIMES * path.stat().st_size)

    def read(self, size: int | None = -1) -> bytes:
        content = super().read(self._most + 1 if size is None or size < 0 else size)
        if self.tell() > self._most:
            raise OSError(f"it unpacks to more than {self._most:,} bytes")
        return content


def line_of(file: IO[bytes]) -> bytes:
    """The next line, of at most `MOST_LINE_BYTES`. Raises OSError."""
    if len(line := file.readline(MOST_LINE_BYTES + 1)) > MOST_LINE_BYTES:
        raise OSError(f"a line has more than {MOST_LINE_BYTES:,} bytes")
    return line


def lines_of(file: IO[bytes]) -> Iterator[bytes]:
    """The lines that are left of a file, each by `line_of`."""
    return iter(partial(line_of, file), b"")


def content_of(path: Path) -> bytes:
    """All bytes of a file, decompressed where its name ends in .gz. Raises DataError."""
    with understood(path), open_bytes(path) as file:
        if path.stat().st_size > (most := os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")):
            raise OSError(f"it has more bytes than the {most:,} of this machine's memory")
        return file.read()


@contextmanager
def understood(
    path: Path | str, remedy: str = "Check that the file is whole and what its name says."
) -> Iterator[None]:
    """Errors of whoever reads a file, as DataError with its name."""
    try:
        yield
    except FedRecError:
        raise
    except FAULTS as failure:
        raise DataError(f"{path} cannot be read: {_reason(failure)}", remedy) from failure


def _reason(failure: BaseException) -> str:
    """One line of it, without the file's name that the sentence has already."""
    if isinstance(failure, OSError) and failure.strerror:
        return failure.strerror
    return (str(failure).splitlines() or [""])[0][:200] or type(failure).__name__


# --- by Polars, NumPy and SciPy: nobody else gives them a path (rules.toml, [opens]) ---

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
        return pl.read_csv(file.read() if isinstance(file, _Unpacked) else file, **layout)


def ndjson(content: bytes) -> pl.DataFrame:
    """Objects of JSON lines. Raises what Polars raises: the caller names the line."""
    return pl.read_ndjson(io.BytesIO(content), infer_schema_length=None)


def npz_matrix(path: Path) -> sparse.coo_matrix:
    """A matrix that `scipy.sparse.save_npz` wrote; nothing in it is executed. Raises DataError."""
    with open_bytes(path) as file:
        try:
            return sparse.coo_matrix(sparse.load_npz(file))
        except FAULTS as failure:
            raise DataError(
                f"{path} is not a SciPy sparse matrix", "Write it with scipy.sparse.save_npz."
            ) from failure


def array(path: Path) -> np.ndarray:
    """An array that `numpy.save` wrote; nothing in it is executed. Raises DataError."""
    with understood(path, "Write it with numpy.save."), open_bytes(path) as file:
        return np.asarray(np.load(file, allow_pickle=False))
