"""The aggregator's ledger in PostgreSQL, so that a standby on another machine can take it over.

Rules, chain and tables are `ledger.ReleaseLedger`'s; the releases' bytes lie in a table too, and
nothing that must last lies in the folder. One process holds the ledger at a time:

    holder    one row: the epoch, who has it, and until when by the database's clock (the lease)
    take      a process that finds the lease run out raises the epoch by one, and reads the ledger
    write     every transaction first locks that row and compares the epoch. A process that was
              taken over is refused, whatever it believes and however long it was away: its
              charge, its release and its attempt come to nothing
    renew     the lease only says when a standby may try. Safety does not depend on it, nor on
              any clock

Who lost the connection within a transaction does not know whether it was committed: the ledger is
read again before anything else is written, and the call fails, so that its caller asks again
(`LedgerAwayError`). A process that starts while the database is away, and a standby that loses it,
wait for it.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from fedrec.errors import RunError, require
from fedrec.operations import logs
from fedrec.privacy.guarantee import Guarantee
from fedrec_aggregator.chain import RESTORE, LedgerLink, read
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_aggregator.ledger_tables import TABLES

_TABLES = (
    TABLES.replace("BLOB", "BYTEA").replace(" WITHOUT ROWID", "").replace("INTEGER", "BIGINT")
    + """
CREATE TABLE IF NOT EXISTS releases (
    run TEXT, round BIGINT, content BYTEA NOT NULL, PRIMARY KEY (run, round)
);
CREATE TABLE IF NOT EXISTS holder (
    one BOOLEAN PRIMARY KEY CHECK (one), epoch BIGINT NOT NULL, name TEXT NOT NULL,
    until TIMESTAMPTZ NOT NULL
);
INSERT INTO holder VALUES (TRUE, 0, '', '-infinity') ON CONFLICT DO NOTHING;
"""
)
_TABLES_LOCK = 0x666564726563
"""Two processes that begin at once make the tables one after the other."""
PATIENCE_S = 5.0
"""A busy process may think for so long within a transaction, however short its lease."""
_LOCK_TIMEOUT = "55P03"


_PAUSE_S = 1.0
"""Between two attempts to reach a database that is away."""
_SAID_S = 30.0
"""How often that is logged."""
log = logging.getLogger(__name__)


class LedgerAwayError(RunError):
    """The database cannot be reached now, or lost the connection; the same call may be repeated."""


class PostgresLedger(ReleaseLedger):
    """The ledger in the database and schema that `conninfo` (of libpq) leads to.

    folder: of this process, not of the ledger. lease_s: how long a standby waits for a holder that
    is not heard of. standby: wait while another holds the ledger. stop: ends waits; without one a
    database that is away is not waited for.

    Raises RunError where another process holds it and this is no standby, where it cannot be
    used, or is damaged (`LedgerAwayError` where it is away, then and in every later call);
    SettingsError without the package psycopg.
    """

    def __init__(
        self,
        folder: Path,
        conninfo: str,
        *,
        limit: Guarantee | None,
        clock: Callable[[], float] = time.time,
        releases_of_runs: int = 0,
        lease_s: float = 15.0,
        standby: bool = False,
        stop: threading.Event | None = None,
    ) -> None:
        require("postgres", "a ledger in PostgreSQL")
        self._failures = (import_module("psycopg").Error,)
        self._conninfo = conninfo
        self.lease_s = lease_s
        self._standby = standby
        self._waits = stop is not None
        self._stop = stop or threading.Event()
        self.epoch = 0
        super().__init__(folder, limit=limit, clock=clock, releases_of_runs=releases_of_runs)

    _remedy = (
        "Repair the database or the way to it and ask again; nothing has left the aggregator that "
        "was not charged."
    )

    def close(self) -> None:
        """Let another process have the ledger, without its waiting for the lease."""
        if hasattr(self, "_db"):
            with suppress(*self._failures):
                self._db.execute(
                    "UPDATE holder SET until = '-infinity' WHERE epoch = ?", (self.epoch,)
                )
        super().close()

    def renew(self) -> None:
        """Hold the lease for another `lease_s`; to be called more often than that.

        Raises RunError where the database cannot be reached, or another process took over
        (`deposed`)."""
        with self._durably() as db:
            db.execute(
                "UPDATE holder SET until = clock_timestamp() + ? * interval '1 second'",
                (self.lease_s,),
            )

    # --- where rows and releases lie ---

    def _keep(self, run: str, round: int, content: bytes) -> None:
        with self._durably() as db:
            db.execute(
                "INSERT INTO releases VALUES (?, ?, ?) ON CONFLICT (run, round) "
                "DO UPDATE SET content = excluded.content",
                (run, round, content),
            )

    def _kept(self, run: str, round: int) -> bytes:
        try:
            with self._lock:
                rows = self._db.execute(
                    "SELECT content FROM releases WHERE run = ? AND round = ?", (run, round)
                ).fetchall()
        except self._failures as failure:
            raise self._failed("cannot be read", failure) from failure
        if not rows:
            raise FileNotFoundError(f"{self._name} holds no release of round {round}")
        return bytes(rows[0][0])

    def _drop(self, releases: Sequence[tuple[str, int]]) -> None:
        if releases:
            with self._durably() as db:
                db.executemany("DELETE FROM releases WHERE run = ? AND round = ?", releases)

    @property
    def _name(self) -> str:
        return "the ledger in PostgreSQL"

    def _connected(self) -> _Connection:
        return _Connection(self._conninfo, self.lease_s)

    def _failed(self, words: str, failure: Exception) -> RunError:
        error = LedgerAwayError if _is_away(failure) else RunError
        cause = " ".join(str(failure).split())  # libpq says more than one line
        return error(f"{self._name} {words}: {cause}", self._remedy)

    def _is_damage(self, failure: Exception) -> bool:
        # XX001, XX002: data and index that PostgreSQL itself finds corrupted
        return getattr(failure, "sqlstate", None) in {"XX001", "XX002"}

    def _open(self) -> None:
        """Waits for a database that is away."""
        failures: tuple[type[Exception], ...] = (*self._failures, LedgerAwayError)
        said_s = -_SAID_S
        while True:
            try:
                return super()._open()
            except failures as failure:
                away = isinstance(failure, LedgerAwayError) or _is_away(failure)
                if not (away and self._waits):
                    raise
                if hasattr(self, "_db"):
                    self._db.close()
                if (now_s := time.monotonic()) - said_s >= _SAID_S:
                    said_s = now_s
                    logs.say_failure(log, "database-away", self._failed("is out of reach", failure))
                if self._stop.wait(_PAUSE_S):
                    raise

    def _prepare(self) -> None:
        self._db.make_tables()
        while not self._taken():
            if not self._standby or self._stop.wait(min(1.0, self.lease_s / 5)):
                raise RunError(
                    f"another aggregator holds {self._name}: {self._db.holder()}",
                    "Stop it first, or set postgres.standby = true to wait for it.",
                )
        self._load()

    def _taken(self) -> bool:
        """Whether the lease had run out, and is this process's now."""
        try:
            rows = self._db.execute(
                "UPDATE holder SET epoch = epoch + 1, name = ?, "
                "until = clock_timestamp() + ? * interval '1 second' "
                # this process's own, where the connection was lost after it was taken
                "WHERE until < clock_timestamp() OR epoch = ? RETURNING epoch",
                (f"{socket.gethostname()}, process {os.getpid()}", self.lease_s, self.epoch or -1),
            ).fetchall()
        except self._failures as failure:
            if getattr(failure, "sqlstate", None) == _LOCK_TIMEOUT:  # the holder is writing
                return False
            raise
        if rows:
            self.epoch = int(rows[0][0])
        return bool(rows)

    def _open_transaction(self) -> None:
        """Begin, and hold the holder's row until the end: nobody takes over within a transaction,
        and nobody who was taken over gets into one."""
        if self._db.closed:
            self._db = self._connected()
            self._load()
            raise LedgerAwayError(
                f"{self._name} was out of reach, and was read again", "Ask again."
            )
        self._db.execute("BEGIN")
        (epoch,) = self._db.execute("SELECT epoch FROM holder FOR UPDATE").fetchone()
        if epoch != self.epoch:
            self.deposed = True
            raise RunError(
                f"another aggregator took {self._name} over (epoch {epoch}, this one's is "
                f"{self.epoch}): {self._db.holder()}",
                "Nothing is written from here. Start this one again as a standby.",
            )


@dataclass(frozen=True)
class LedgerInDatabase:
    """A ledger as it lies there. users: by client. holder: who has it, for messages. releases:
    SHA-256 of what is stored, by run and round."""

    links: tuple[LedgerLink, ...]
    users: dict[str, int]
    holder: str
    releases: dict[tuple[str, int], str]


def held_in(conninfo: str) -> LedgerInDatabase:
    """The ledger of an aggregator that may be running; nothing is written.

    Raises RunError where it cannot be reached, is none, or is damaged."""
    require("postgres", "a ledger in PostgreSQL")
    failures = (import_module("psycopg").Error,)
    try:
        database = _Connection(conninfo, 15.0)
        try:
            links = read(database, "the ledger in PostgreSQL")
            users = database.execute("SELECT sender, count(*) FROM users GROUP BY 1 ORDER BY 1")
            hashes = "SELECT run, round, encode(sha256(content), 'hex') FROM releases"
            releases = {(run, round): found for run, round, found in database.execute(hashes)}
            return LedgerInDatabase(links, dict(users), database.holder(), releases)
        finally:
            database.close()
    except (*failures, ValueError, TypeError, KeyError) as failure:
        remedy = "Repair the database or the way to it." if _is_away(failure) else RESTORE
        raise RunError(f"the ledger in PostgreSQL cannot be read: {failure}", remedy) from failure


def _is_away(failure: Exception) -> bool:
    """Whether the same may succeed later: no connection, a database that starts, stops, lacks space
    or is a standby still."""
    psycopg = import_module("psycopg")
    later = psycopg.errors.ReadOnlySqlTransaction, psycopg.errors.IdleInTransactionSessionTimeout
    return isinstance(failure, (psycopg.OperationalError, psycopg.InterfaceError, *later))


class _Connection:
    """A connection of psycopg that takes the statements of `ledger.ReleaseLedger`.

    lease_s: also how long a lost peer, a lock, or a transaction in which nothing happens is waited
    for, if it is `PATIENCE_S` at least: a holder that was stopped within one must not keep its
    successor out."""

    def __init__(self, conninfo: str, lease_s: float) -> None:
        psycopg = import_module("psycopg")
        patience_ms = round(1_000 * max(lease_s, PATIENCE_S))  # PostgreSQL takes integers
        given = psycopg.conninfo.conninfo_to_dict(conninfo)
        # libpq takes whole seconds
        bounds = {"connect_timeout": round(patience_ms / 1_000), "tcp_user_timeout": patience_ms}
        self._real: Any = psycopg.connect(
            **{**bounds, **given}, autocommit=True, prepare_threshold=None
        )
        for name, value in (
            ("synchronous_commit", "on"),  # a charge that was reported durable is
            ("idle_in_transaction_session_timeout", patience_ms),
            ("lock_timeout", patience_ms),
        ):
            self._real.execute(f"SET {name} = {value}")

    @property
    def closed(self) -> bool:
        return bool(self._real.closed)

    def make_tables(self) -> None:
        with self._real.transaction():
            self.execute("SELECT pg_advisory_xact_lock(?)", (_TABLES_LOCK,))
            self._real.execute(_TABLES)

    def holder(self) -> str:
        """Who has the ledger, for messages."""
        epoch, name, until = self.execute("SELECT epoch, name, until::text FROM holder").fetchone()
        return f"{name or 'nobody'}, epoch {epoch}, until {until}"

    def execute(self, statement: str, values: Sequence[object] = ()) -> Any:
        return self._real.execute(statement.replace("?", "%s"), values)

    def executemany(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        with self._real.cursor() as cursor:
            cursor.executemany(statement.replace("?", "%s"), rows)

    def rollback(self) -> None:
        self._real.rollback()

    def close(self) -> None:
        self._real.close()
