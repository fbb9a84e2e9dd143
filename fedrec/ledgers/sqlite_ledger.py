"""Ledger in a table of SQLite, with a head file beside it: one process at a time, transactions that
are on disk when they have ended, and jumps of the machine's clock."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from fedrec.errors import RunError
from fedrec.ledgers.chain import ChainEntry, EntryType, HeadFile
from fedrec.ledgers.file_lock import FileLock
from fedrec.operations.clock import LEAST_S, ClockJump

SCHEMA = (
    "CREATE TABLE IF NOT EXISTS clock (after INTEGER NOT NULL, expected_s REAL NOT NULL, now_s "
    "REAL NOT NULL);"
)
Jumps = tuple[tuple[int, ClockJump], ...]
"""Each with the number of the entry before."""


class DurableLedger:
    """A ledger in a database of which this process holds the lock. `_db`: a connection whose
    transactions are begun and ended by statements; `_load` reads it anew.

    Who writes the ledger cannot always know whether a commit that is said to have failed is on
    disk: where that is in doubt, the ledger is read again, and what stands there is spent.
    """

    _db: Any
    _failures: tuple[type[Exception], ...] = (sqlite3.Error,)
    _remedy = "Nothing left this machine. Free space or correct permissions."

    def __init__(self) -> None:
        self._lock = threading.RLock()  # calls come on several threads, and entries are a chain

    @property
    def _name(self) -> str:
        """Name of the ledger in messages."""
        raise NotImplementedError

    def _load(self) -> None:
        """What the database says, in memory."""
        raise NotImplementedError

    def _failed(self, words: str, failure: Exception) -> RunError:
        """What says that the database failed, where the ledger is not damaged."""
        return RunError(f"{self._name} {words}: {failure}", self._remedy)

    def _open_transaction(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    @contextmanager
    def _durably(self) -> Iterator[Any]:
        """One transaction, on disk when the block ends.

        What is in memory is read again where that is in doubt. Raises RunError where it cannot be
        written."""
        with self._lock:
            try:
                self._open_transaction()
                yield self._db
                self._db.execute("COMMIT")
            except self._failures as failure:
                with suppress(*self._failures):
                    self._db.rollback()
                    self._load()
                raise self._failed("cannot be written", failure) from failure
            except BaseException:
                with suppress(*self._failures):
                    self._db.rollback()
                raise


def connected(path: Path) -> sqlite3.Connection:
    """The database at `path`, readable by its owner alone.

    Raises OSError where the file cannot be opened, sqlite3.Error where it is none."""
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
    # FULL would not sync the folder after the journal is unlinked: a power cut could take back a
    # charge that was reported durable
    return _told(database, "journal_mode = DELETE", "synchronous = EXTRA")


def _told(database: sqlite3.Connection, *pragmas: str) -> sqlite3.Connection:
    """The database with these settings; closed where a file that is none refuses."""
    try:
        for pragma in pragmas:
            database.execute(f"PRAGMA {pragma}")
    except BaseException:
        database.close()
        raise
    return database


def opened_to_look(path: Path) -> sqlite3.Connection:
    """The database at `path`, which is read alone, also while its process has it open.

    What a crash left in SQLite's journal is finished first, where this user may write: a database
    that is opened read-only (`mode=ro`) cannot be read until somebody has done so. Raises
    sqlite3.Error where there is none."""
    database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True, timeout=30.0)
    return _told(database, "query_only = ON")


def write_jump(database: sqlite3.Connection, after: int, jump: ClockJump) -> None:
    """Keep a jump, in the transaction of the caller.

    It is not in the chain: times decide nothing.
    """
    database.execute("INSERT INTO clock VALUES (?, ?, ?)", (after, jump.expected_s, jump.now_s))


def read_jumps(database: sqlite3.Connection) -> Jumps:
    """All of them; none in a ledger of an earlier version."""
    if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'clock'").fetchone():
        return ()
    return tuple(
        (after, ClockJump(expected_s, now_s))
        for after, expected_s, now_s in database.execute("SELECT * FROM clock ORDER BY rowid")
    )


def behind(last_s: float, noted: Jumps, entries: int, now_s: float) -> ClockJump | None:
    """A clock that shows less than the time of the last entry by more than an hour, where that was
    not noted after this entry."""
    if last_s - now_s <= LEAST_S or any(after == entries for after, _ in noted):
        return None
    return ClockJump(last_s, now_s)


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

    def __init__(
        self, path: Path, *, clock: Callable[[], float] = time.time, seen: Path | None = None
    ) -> None:
        """Open or begin the ledger at `path`. seen: a second head file, of a client elsewhere.

        Raises RunError where it is in use, damaged, or older than it was."""
        super().__init__()
        self._path = path
        self._clock = clock
        self._head_file = HeadFile(path, seen=seen)
        # two clients on one ledger would each spend what is left
        self._guard = FileLock(
            path.with_suffix(".lock"),
            f"{path} is in use by another process",
            "Stop the other client, or give this one its own state folder.",
        )
        try:
            self._head_file.require_ledger()
            self._db = connected(path)
            self._db.executescript(f"BEGIN; {self.schema} {SCHEMA} COMMIT;")
            self._load()
            self._head_file.agree(self.table.entries.heads(self._entries))
        except (sqlite3.Error, OSError) as failure:
            self.close()
            remedy = "Free space, check permissions; a damaged ledger must not be replaced."
            raise RunError(f"{path} cannot be used: {failure}", remedy) from None
        except BaseException:
            self.close()
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
        """Let another process have it, also where its opening was refused."""
        with self._lock:
            if hasattr(self, "_db"):
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
        return behind(last_s, self._jumps, len(self._entries), self._clock())

    def _append(self, *content: Any, also: Callable[[Any], None] | None = None) -> E:
        """The entry with these columns, durable: spent from here on, whatever happens next. also:
        writes more in the same transaction."""
        with self._lock:
            row = (len(self._entries) + 1, float(self._clock()), *content)
            entry = self.table.entries.after(self._entries, row)
            jump = self._behind()
            with self._durably() as database:
                if jump is not None:
                    write_jump(database, len(self._entries), jump)
                self.table.write(database, (*row, entry.head))
                if also is not None:
                    also(database)
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
        with closing(opened_to_look(path)) as database:
            yield database
    except sqlite3.Error as failure:
        raise RunError(
            f"{path} cannot be read: {failure}",
            "Run this as a user who may read and write it; it is no ledger otherwise.",
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
