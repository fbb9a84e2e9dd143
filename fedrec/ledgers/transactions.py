"""Transactions of a ledger in SQL, which are on disk when they have ended.

Who writes the ledger cannot always know whether a commit that is said to have failed is on disk:
where that is in doubt, the ledger is read again, and what stands there is spent.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedrec.errors import RunError


class DurableLedger:
    """A ledger in a database of which this process holds the lock. `_db`: a connection whose
    transactions are begun and ended by statements; `_load` reads it anew."""

    _db: Any
    _failures: tuple[type[Exception], ...] = (sqlite3.Error,)
    _remedy = "Nothing left this machine. Free space or correct permissions."

    def __init__(self) -> None:
        self._lock = threading.RLock()

    @property
    def _name(self) -> str:
        """For messages."""
        raise NotImplementedError

    def _load(self) -> None:
        """What the database says, in memory."""
        raise NotImplementedError

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
                raise RunError(
                    f"{self._name} cannot be written: {failure}", self._remedy
                ) from failure
            except BaseException:
                with suppress(*self._failures):
                    self._db.rollback()
                raise


def connected(path: Path) -> sqlite3.Connection:
    """The database at `path`, readable by its owner alone.

    Raises OSError where the file cannot be opened, sqlite3.Error where it is none."""
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
    database.execute("PRAGMA journal_mode = DELETE")
    # FULL would not sync the folder after the journal is unlinked: a power cut could take back a
    # charge that was reported durable
    database.execute("PRAGMA synchronous = EXTRA")
    return database
