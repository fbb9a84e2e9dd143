"""Guards of a ledger's file: one process at a time, and a small file beside it that remembers its
newest head.

What is noticed of going back in time: a ledger older than the head file beside it, or without one.
What is not: the whole folder, or the disk, put back to an earlier state together. So a backup of
such a folder is there to be read, not to be restored.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from fedrec.errors import RunError
from fedrec.operations.clock import LEAST_S, ClockJump
from fedrec.storage import read_json, write_json


def opened(path: Path, schema: str) -> sqlite3.Connection:
    """The database, made where neither it nor its head file is there; readable by its owner alone.

    Every commit is durable."""
    if not path.exists() and HeadFile(path).path.exists():
        raise RunError(
            f"{path} is gone, but the file beside it knows of it",
            "Put it back: without it, what was spent is not known.",
        )
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    database = sqlite3.connect(path, check_same_thread=False)
    database.executescript(f"PRAGMA synchronous=FULL; BEGIN; {schema} COMMIT;")
    return database


@contextmanager
def opening(path: Path, lock: Any) -> Iterator[None]:
    """What fails here lets go of the lock. Raises RunError where SQLite fails."""
    try:
        yield
    except sqlite3.Error as failure:
        lock.close()
        remedy = "Free space, check permissions; a damaged ledger must not be replaced."
        raise RunError(f"{path} cannot be used: {failure}", remedy) from None
    except BaseException:
        lock.close()
        raise


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


def broken(path: Path, entry: int) -> RunError:
    """Where an entry is not the one that was written."""
    return RunError(
        f"{path} is damaged at entry {entry}: its chain is broken",
        "Put back the ledger as it was; do not begin a new one.",
    )


CLOCK_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS clock (after INTEGER NOT NULL, expected_s REAL NOT NULL, now_s "
    "REAL NOT NULL);"
)
"""Jumps of the clock, with the number of the entry before.

Not in the chain: times decide nothing."""


def write_jump(database: sqlite3.Connection, after: int, jump: ClockJump) -> None:
    """Keep a jump, in the transaction of the caller."""
    database.execute("INSERT INTO clock VALUES (?, ?, ?)", (after, jump.expected_s, jump.now_s))


def read_jumps(database: sqlite3.Connection) -> tuple[tuple[int, ClockJump], ...]:
    """All of them, each with the number of the entry before; none in a ledger of an earlier
    version."""
    if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'clock'").fetchone():
        return ()
    return tuple(
        (after, ClockJump(expected_s, now_s))
        for after, expected_s, now_s in database.execute("SELECT * FROM clock ORDER BY rowid")
    )


def behind(
    last_s: float | None, noted: Sequence[tuple[int, ClockJump]], entries: int, now_s: float
) -> ClockJump | None:
    """A clock that shows less than the time of the last entry by more than an hour, where that was
    not noted after this entry."""
    if last_s is None or last_s - now_s <= LEAST_S or any(after == entries for after, _ in noted):
        return None
    return ClockJump(last_s, now_s)


class HeadFile:
    """`ledger.head.json` beside `ledger.sqlite`."""

    def __init__(self, ledger: Path) -> None:
        self.ledger, self.path = ledger, ledger.with_suffix(".head.json")

    def write(self, number: int, head: str) -> None:
        """After `number` entries the chain ends in `head`.

        Raises RunError where that cannot be written."""
        try:
            write_json(self.path, {"number": number, "head": head})
        except OSError as failure:
            raise RunError(
                f"{self.path} cannot be written: {failure.strerror}",
                "Free space or correct permissions.",
            ) from None

    def agree(self, heads: Sequence[str]) -> None:
        """heads: of the ledger, oldest first, its beginning included.

        The file may be behind, after a crash; the ledger may not."""
        there = self.path.exists()
        kept = read_json(self.path).get("head") if there else None if len(heads) > 1 else heads[0]
        if kept not in heads:
            raise RunError(
                (
                    f"{self.ledger} is older than {self.path.name} beside it, or one of the two "
                    "was replaced"
                ),
                (
                    "Put back the newest pair. If it is lost, what was spent is not known: begin "
                    "a new state folder only with other users."
                ),
            )
        if kept != heads[-1] or not there:
            self.write(len(heads) - 1, heads[-1])
