"""Files that a person names, opened by exactly that name, and what is wrong with one in words.

Polars takes brackets, stars and `~` in a path for a pattern, and refuses names that are no UTF-8:
it is given open files alone. What Polars, NumPy and zlib raise on a damaged file is many types, a
Rust panic among them; `understood` makes them one.
"""

from __future__ import annotations

import gzip
import os
import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from csv import Error as CsvError
from functools import partial
from pathlib import Path
from typing import IO

from fedrec.errors import DataError, FedRecError

DAMAGED = (OSError, EOFError, zlib.error)
"""What reading a compressed file raises."""
_FAULTS = (
    *DAMAGED,
    zipfile.BadZipFile,
    CsvError,
    *(ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError),
    ValueError,
)
"""What NumPy and SciPy raise where a file does not hold what it says."""

MOST_LINE_BYTES = 1 << 26
"""Of a file of lines: a person with ten million items has fewer."""
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
            return Unpacked(path)  # type: ignore[return-value]
        return path.open("rb")
    except OSError as failure:
        raise DataError(
            f"{path} cannot be opened: {_reason(failure)}", "Correct its permissions."
        ) from None


class Unpacked(gzip.GzipFile):
    """A file that is unpacked as it is read: not to hundreds of times its size, as no table is."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "rb")
        self._most = max(_SMALL_BYTES, _MOST_TIMES * path.stat().st_size)

    def read(self, size: int | None = -1) -> bytes:
        """Read as from any file. Raises OSError past the bound."""
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


def faults() -> tuple[type[BaseException], ...]:
    """What Polars, NumPy and SciPy raise where a file does not hold what it says; Polars only where
    it was loaded, since many who open files do without it."""
    if polars := sys.modules.get("polars"):
        return (*_FAULTS, polars.exceptions.PolarsError, polars.exceptions.PanicException)
    return _FAULTS


@contextmanager
def understood(
    path: Path | str, remedy: str = "Check that the file is whole and what its name says."
) -> Iterator[None]:
    """Errors of whoever reads a file, as DataError with its name."""
    try:
        yield
    except FedRecError:
        raise
    except faults() as failure:
        raise DataError(f"{path} cannot be read: {_reason(failure)}", remedy) from failure


def _reason(failure: BaseException) -> str:
    """One line of it, without the file's name that the sentence has already."""
    if isinstance(failure, OSError) and failure.strerror:
        return failure.strerror
    return (str(failure).splitlines() or [""])[0][:200] or type(failure).__name__
