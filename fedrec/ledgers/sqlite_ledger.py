"""Ledger in a table of SQLite, with a head file beside it; one process at a time."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from fedrec.errors import RunError
from fedrec.ledgers import clock_jumps
from fedrec.ledgers.chain import ChainEntry, EntryType
from fedrec.ledgers.clock_jumps import Jumps, read_jumps, write_jump
from fedrec.ledgers.head_file import HeadFile
from fedrec.ledgers.lock import FileLock
from fedrec.ledgers.transactions import DurableLedger, connected
from fedrec.operations.clock import ClockJump


class TimedEntry(ChainEntry, Protocol):
    """An entry, and when it was written."""

    @property
    def time_s(self) -> float:
        """Seconds since 1970; they decide nothing, since clocks jump."""


E = TypeVar("E", bound=TimedEntry)


@dataclass(frozen=True)
class LedgerTable(Generic[E]):
    """Where entries of a sort lie: the first two columns are the number and the time, the last is
    the head."""

    name: str
    columns: tuple[str, ...]
    entries: EntryType[E]

    def read(self, database: sqlite3.Connection, path: Path) -> list[E]:
        """All entries. Raises RunError where one does not follow from those before it."""
        rows = database.execute(
            f"SELECT {', '.join(self.columns)} FROM {self.name} ORDER BY number"
        )
        return self.entries.verified(((row[:-1], row[-1]) for row in rows), path)

    def write(self, database: sqlite3.Connection, row: tuple[Any, ...]) -> None:
        """A row with its head, in the transaction of the caller."""
        database.execute(
            f"INSERT INTO {self.name} VALUES ({', '.join('?' * len(self.columns))})", row
        )


class SqliteLedger(DurableLedger, Generic[E]):
    """An open ledger; safe to call from several threads.

    A kind of ledger names its `table` and the `schema` of it and of what it keeps beside it, and
    reads the latter in `_load`."""

    table: LedgerTable[E]
    schema: str

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        """Open or begin the ledger at `path`.

        Raises RunError where it is in use, damaged, or older than it was."""
        super().__init__()
        self._path = path
        self._clock = clock
        self._head_file = HeadFile(path)
        self._guard = FileLock(
            path.with_suffix(".lock"),
            f"{path} is in use by another process",
            "Stop the other client, or give this one its own state folder.",
        )
        try:
            self._head_file.require_ledger()
            self._db = connected(path)
            self._db.executescript(f"BEGIN; {self.schema} {clock_jumps.SCHEMA} COMMIT;")
            self._load()
            self._head_file.agree(self.table.entries.heads(self._entries))
        except (sqlite3.Error, OSError) as failure:
            self._guard.close()
            remedy = "Free space, check permissions; a damaged ledger must not be replaced."
            raise RunError(f"{path} cannot be used: {failure}", remedy) from None
        except BaseException:
            self._guard.close()
            raise

    @property
    def entries(self) -> tuple[E, ...]:
        """All, oldest first."""
        return tuple(self._entries)

    @property
    def head(self) -> str:
        """The end of the chain."""
        return self.table.entries.end(self._entries)

    def note_clock(self, jump: ClockJump | None = None) -> ClockJump | None:
        """Keep a jump of the clock; without one, that the clock is behind the last entry, if it is.
        Returns what was kept.

        Raises RunError where it cannot be written.
        """
        with self._lock:
            found = jump or self._behind()
            if found is not None:
                with self._durably() as database:
                    write_jump(database, len(self._entries), found)
                self._jumps = read_jumps(self._db)
            return found

    def close(self) -> None:
        """Let another process have it."""
        with self._lock:
            self._db.close()
            self._guard.close()

    @property
    def _name(self) -> str:
        return str(self._path)

    def _load(self) -> None:
        self._entries = self.table.read(self._db, self._path)
        self._jumps = read_jumps(self._db)

    def _behind(self) -> ClockJump | None:
        last_s = self._entries[-1].time_s if self._entries else 0.0
        return clock_jumps.behind(last_s, self._jumps, len(self._entries), self._clock())

    def _append(self, *content: Any) -> E:
        """The entry with these columns, durable: spent from here on, whatever happens next."""
        with self._lock:
            row = (len(self._entries) + 1, float(self._clock()), *content)
            entry = self.table.entries.after(self._entries, row)
            jump = self._behind()
            with self._durably() as database:
                if jump is not None:
                    write_jump(database, len(self._entries), jump)
                self.table.write(database, (*row, entry.head))
            self._entries.append(entry)
            self._head_file.write(entry.number, entry.head)
            return entry


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """The database to look at, also while its process has it open.

    Raises RunError where it is missing or SQLite fails."""
    if not path.is_file():
        raise RunError(f"{path} does not exist", "Give the state folder of a client.")
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            yield database
    except sqlite3.Error as failure:
        raise RunError(
            f"{path} cannot be read: {failure}", "It is no ledger of this version."
        ) from None


def read_entries(path: Path, table: LedgerTable[E]) -> tuple[E, ...]:
    """The entries of a ledger, verified, also while its process has it open.

    Raises RunError where it is missing or damaged."""
    with reading(path) as database:
        return tuple(table.read(database, path))


def read_clock(path: Path) -> Jumps:
    """Jumps of the clock that a ledger keeps. Raises RunError as `read_entries`."""
    with reading(path) as database:
        return read_jumps(database)
