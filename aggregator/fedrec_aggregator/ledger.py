"""The aggregator's durable memory: users, plans, attempts, and a hash chain of what was charged and
released.

    ledger.sqlite                           users, runs, rounds (digest and attempt), entries (the
                                            chain: `fedrec_aggregator.chain`), senders and
                                            sender_heads (how far each client's own ledger reached
                                            when it last said so), removed (releases whose files are
                                            not kept any more), weeks (of a stream: what the noise
                                            of each is derived from)
    releases/<run>/round-003.safetensors    what left, or may leave

A round becomes durable in this order: its attempt (`begin`), its charges (`charge`), the release's
bytes (`store`), and the entry that lets them leave (`publish`). A crash before `publish` leaves
nothing that anybody has seen: the round is collected again, and not charged again. Reports never
come here.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedrec.errors import RunError
from fedrec.federation.protocol import (
    RESTORE_LEDGER,
    LedgerGrowth,
    LedgerHead,
    OwnLedger,
    Refusal,
    RoundStatus,
)
from fedrec.federation.wire import refused
from fedrec.ledgers.file_lock import FileLock
from fedrec.ledgers.sqlite_ledger import DurableLedger, connected
from fedrec.operations import logs
from fedrec.operations.clock import LEAST_S, ClockJump
from fedrec.privacy.accounting import Ledger
from fedrec.privacy.calibration import Plan
from fedrec.privacy.guarantee import Guarantee
from fedrec.storage import PRIVATE, remove, unreadable, write_bytes
from fedrec_aggregator.chain import (
    RESTORE,
    Birth,
    Charge,
    ClockSet,
    Departure,
    Entry,
    LedgerLink,
    RoundReleased,
    link,
)
from fedrec_aggregator.ledger_tables import TABLES, BegunAttempt, read_rows
from fedrec_aggregator.spending import Spends, account_of, spends_of

ENTRIES_AT_ONCE = 8_192
"""Of a growth: half a mebibyte; who is further behind asks again."""

RUN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,119}")
"""Names of runs: each is a folder, and nothing that could lead out of it."""

log = logging.getLogger(__name__)
_FREE = (
    "Free disk space or repair the disk and ask again; nothing has left the aggregator that was "
    "not charged."
)


class ReleaseLedger(DurableLedger):
    """One folder, one writer. `limit` holds over all runs in it: None for no limit on the number of
    private runs, and a guarantee of infinite epsilon (`non_private`) to allow runs without noise
    too. releases_of_runs: see `removable`; 0 keeps all.

    Raises RunError where the folder cannot be used, is used by another process or is damaged. A
    clock that was set back refuses nothing, since time proves nothing about a ledger: that it went
    back is logged, and written into the chain with the next entry.
    """

    _remedy = _FREE
    deposed = False
    """Whether another process took the ledger over: nothing can be written here any more."""
    away = False
    """Whether its database could not be reached last."""

    def __init__(
        self,
        folder: Path,
        *,
        limit: Guarantee | None,
        clock: Callable[[], float] = time.time,
        releases_of_runs: int = 0,
    ) -> None:
        self.folder = folder
        self.limit = limit
        self._runs_kept = releases_of_runs
        super().__init__()
        self._clock = clock
        # two aggregators on one ledger would each release what is left
        self._guard = FileLock(
            folder / "lock",
            f"another aggregator uses {folder}",
            "Stop it first, or name another folder.",
        )
        unusable: tuple[type[Exception], ...] = (*self._failures, ValueError, TypeError, KeyError)
        try:
            self._open()
        except unusable as failure:
            self.close()
            if isinstance(failure, self._failures) and not self._is_damage(failure):
                raise self._failed("cannot be used", failure) from failure
            raise RunError(f"{self._name} is damaged: {failure}", RESTORE) from failure
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let another process have the ledger. Again is nothing."""
        if hasattr(self, "_db"):
            self._db.close()
        self._guard.close()

    # --- users ---

    def owners(self) -> Mapping[bytes, str]:
        """The sender of every enrolled user, by token."""
        return self._rows.owners

    def enroll(self, sender: str, tokens: Sequence[bytes]) -> None:
        """Keep new users of a sender."""
        with self._durably() as db:
            db.executemany("INSERT INTO users VALUES (?, ?)", [(token, sender) for token in tokens])
        # after the commit: what memory knows is on disk
        self._rows.owners.update(dict.fromkeys(tokens, sender))
        self._rows.enrolled_by[sender] += len(tokens)

    def enrolled_by(self, sender: str) -> int:
        """How many users a sender has enrolled; one who left keeps the place."""
        return self._rows.enrolled_by[sender]

    def departure(self, token: bytes) -> LedgerLink | None:
        """The entry by which this user left, None of one who has not."""
        return self._rows.chain.departed.get(token)

    def depart(self, token: bytes) -> LedgerLink:
        """A user leaves, durably. Raises KeyError of one who is not there."""
        # first: what is taken of this user from here on is nothing, so that whatever was taken is
        # of a round that is begun already
        sender = self._rows.owners.pop(token)
        attempts = tuple(self._rows.attempts)
        begun = {run for run, round in attempts if self.released(run, round) is None}
        try:
            self._append([Departure(token.hex(), sender, sorted(begun))])
        except Exception:
            self._rows.owners[token] = sender
            raise
        return self._rows.chain.departed[token]

    # --- runs and rounds ---

    def plan(self, run: str) -> Plan | None:
        """The plan that a run was opened with."""
        return self._rows.plans.get(run)

    def keep_plan(self, run: str, plan: Plan) -> None:
        """Fix the plan of a new run."""
        with self._durably() as db:
            db.execute("INSERT INTO runs VALUES (?, ?)", (run, json.dumps(plan.content())))
        self._rows.plans[run] = plan

    def attempt(self, run: str, round: int) -> BegunAttempt | None:
        """The last attempt at a round."""
        return self._rows.attempts.get((run, round))

    def begin(self, run: str, round: int, digest: str, *, number: int | None = None) -> int:
        """Count one more attempt at a round, and return its number; `number` is the attempt's where
        it is agreed with others."""
        known = self._rows.attempts.get((run, round))
        attempt = number if number is not None else 1 if known is None else known.attempt + 1
        with self._durably() as db:
            db.execute(
                "INSERT INTO rounds VALUES (?, ?, ?, ?) ON CONFLICT (run, round) "
                "DO UPDATE SET digest = excluded.digest, attempt = excluded.attempt",
                (run, round, digest, attempt),
            )
        self._rows.attempts[run, round] = BegunAttempt(digest, attempt)
        return attempt

    def weeks(self, run: str, release: str) -> Mapping[int, tuple[str, bytes]]:
        """By week of a stream, its grid and the secret that its noise is derived from."""
        with self._durably() as db:
            rows = db.execute(
                "SELECT week, grid, secret FROM weeks WHERE run = ? AND release = ?", (run, release)
            ).fetchall()
        return {week: (grid, bytes(secret)) for week, grid, secret in rows}

    def keep_week(self, run: str, release: str, week: int, grid: str) -> None:
        """Draw the secret of a week's noise, durably, before its noise is drawn; once more where
        what was drawn of it has not left: another sum never has the noise of the one before."""
        with self._durably() as db:
            db.execute(
                "INSERT INTO weeks VALUES (?, ?, ?, ?, ?) ON CONFLICT (run, release, week) "
                "DO UPDATE SET grid = excluded.grid, secret = excluded.secret",
                (run, release, week, grid, os.urandom(32)),
            )

    # --- what is spent, and what may leave ---

    def links(self) -> tuple[LedgerLink, ...]:
        """Every entry in its place."""
        return self._rows.chain.links

    def head(self) -> str:
        """Hash of everything charged and released so far."""
        return self._rows.chain.head

    def end(self) -> LedgerHead:
        """The head, and how many entries lead to it."""
        return self._rows.chain.end

    def growth(self, since: LedgerHead) -> LedgerGrowth:
        """How the chain grew since a head that another party kept.

        Raises RefusedError (`STALE_LEDGER`) where it never had it."""
        growth = self._rows.chain.growth(since, most=ENTRIES_AT_ONCE)
        if growth is None:
            cause = (
                f"the aggregator's ledger does not hold the {since.number} entries that were "
                "seen of it"
            )
            raise refused(Refusal.STALE_LEDGER, cause, RESTORE_LEDGER)
        return growth

    def heed(self, sender: str, own: OwnLedger) -> None:
        """A client's own ledger is this one now.

        Raises RefusedError (`STALE_LEDGER`) where it does not follow from what it was: it was put
        back, and may have gone on."""
        with self._lock:
            known = self._rows.seen_of.get(sender, LedgerHead())
            if not own.follows(known):
                fewer = f"has {own.number} entries, it had {known.number}"
                other = f"does not hold the {known.number} entries that it had"
                cause = (
                    f"the ledger of client {sender!r} "
                    f"{fewer if own.number < known.number else other}: it was restored from an "
                    "older backup"
                )
                remedy = (
                    "Put back its newest state folder. Where it is gone, what its users have "
                    "spent is not known."
                )
                raise refused(Refusal.STALE_LEDGER, cause, remedy)
            if own.end != known:
                # a disk that fails here must not cost the client its round: the next, longer ledger
                # is written then
                with suppress(RunError), self._durably() as db:
                    for table, name, value in (
                        ("senders", "charged", own.number),
                        ("sender_heads", "head", own.end.head),
                    ):
                        db.execute(
                            f"INSERT INTO {table} VALUES (?, ?) ON CONFLICT (sender) "
                            f"DO UPDATE SET {name} = excluded.{name}",
                            (sender, value),
                        )
                self._rows.seen_of[sender] = own.end

    def knows(self, head: str) -> bool:
        """Whether this ledger ever had that head; one that does not has gone back in time, or is
        another one."""
        return self._rows.chain.knows(head)

    def last_release_s(self) -> float | None:
        """When a round was last released, by this machine's clock then; None before the first."""
        return next(
            (
                link.time_s
                for link in reversed(self._rows.chain.links)
                if isinstance(link.entry, RoundReleased)
            ),
            None,
        )

    def spends(self) -> Spends:
        """Everything charged over all runs."""
        return spends_of(self._rows.chain.charges, self.limit)

    def account(self, guarantee: Guarantee, *, apart_from: tuple[str, int] | None = None) -> Ledger:
        """All charges but those of one round, against the limit.

        Raises UnitMismatchError where the limit is of another unit."""
        charges = [c for c in self._rows.chain.charges if (c.run, c.round) != apart_from]
        return account_of(charges, self.limit, guarantee)

    def afford(self, run: str, round: int, plan: Plan, releases: Sequence[str]) -> Ledger:
        """The account without this round, if the round fits. Raises BudgetExceededError,
        UnitMismatchError, or RefusedError (`BUDGET`) where a release was charged for another round
        of the run."""
        for name in releases:
            if self._rows.chain.charged(run, name) not in {None, round}:
                raise refused(
                    Refusal.BUDGET,
                    (
                        f"release {name!r} of run {run!r} was charged for round "
                        f"{self._rows.chain.charged(run, name)}"
                    ),
                )
        before = account = self.account(plan.guarantee, apart_from=(run, round))
        for name in releases:
            account = account.add(plan.event(name))
        return before

    def charge(self, run: str, round: int, plan: Plan, releases: Sequence[str]) -> None:
        """Charge the releases of a round; those that a crash left charged already are not charged
        again. Raises as `afford`."""
        with self._lock:
            self.afford(run, round, plan, releases)
            events = [
                plan.event(name) for name in releases if self._rows.chain.charged(run, name) is None
            ]
            self._append([Charge(run, round, e.name, e.mu, e.unit, e.neighbours) for e in events])

    def store(self, run: str, round: int, content: bytes) -> str:
        """Keep the release's bytes, which may not leave yet; returns their SHA-256."""
        try:
            self._keep(run, round, content)
        except OSError as failure:
            raise RunError(
                f"the release of round {round} cannot be kept: {failure}", _FREE
            ) from failure
        return hashlib.sha256(content).hexdigest()

    def stored(self, run: str, round: int) -> bytes | None:
        """What `store` kept last, published or not. Raises as `content`.

        Nothing under a name that no run has: it could lead out of the folder that it names.
        """
        if not RUN.fullmatch(run):
            return None
        if self.released(run, round) is not None:
            return self.content(run, round)
        try:
            return self._kept(run, round)
        except FileNotFoundError:
            return None
        except OSError as failure:
            raise unreadable(self._path(run, round), failure, RESTORE) from failure

    def discard(self, run: str, round: int) -> None:
        """Remove what `store` kept and nobody has seen.

        Raises RunError where it was published, or the disk fails."""
        if self.released(run, round) is not None:
            raise RunError(
                f"the release of round {round} is published: it stays",
                "Fetch it; no other will be made.",
            )
        try:
            self._drop([(run, round)])
        except OSError as failure:
            raise RunError(
                f"the release of round {round} cannot be removed: {failure}", _FREE
            ) from failure

    def publish(self, status: RoundStatus, sha256: str, *, bytes_in: int) -> None:
        """From here on the stored bytes are the round's only release, and may leave.

        Files of old runs are removed (`removable`)."""
        self._append([RoundReleased.of(status, sha256, bytes_in=bytes_in)])
        with suppress(RunError, OSError):  # the next release tries again
            self._remove([key for key in self.removable() if key not in self._rows.removed])

    def removable(self) -> list[tuple[str, int]]:
        """Releases that nobody asks for any more: of runs but the last ones released to, all but
        the newest.

        By order, not by time: clocks jump. The newest release of a run always stays, so that every
        run can go on; the entry with its SHA-256 always stays, so that what is removed is never
        released again.
        """
        if not self._runs_kept:
            return []
        rounds = dict[str, list[int]]()
        for new in self._rows.chain.links:
            if isinstance(entry := new.entry, RoundReleased):
                # to the end: in order of the last release
                rounds[entry.run] = [*rounds.pop(entry.run, []), entry.round]
        return [
            (run, round) for run in list(rounds)[: -self._runs_kept] for round in rounds[run][:-1]
        ]

    def note_clock(self, jump: ClockJump) -> None:
        """Write down that the clock was set. Nothing else follows from it."""
        self._append([ClockSet(jump.expected_s, jump.now_s)], clock=False)

    def clock_behind(self) -> ClockJump | None:
        """A clock that shows less than the last entry's time, by more than an hour: it was set
        back, or was ahead then."""
        now_s = self._clock()
        last = self._rows.chain.links[-1]
        return ClockJump(last.time_s, now_s) if last.time_s - now_s > LEAST_S else None

    def released(self, run: str, round: int) -> RoundStatus | None:
        """The final status of a round, or None before it is published."""
        return self._rows.chain.released(run, round)

    def content(self, run: str, round: int) -> bytes | None:
        """The bytes of a published release. Raises RunError where the file is missing or damaged,
        RefusedError (`ROUND_CLOSED`) where it was removed."""
        status = self.released(run, round)
        path = self._path(run, round)
        if status is None:
            return None
        if (run, round) in self._rows.removed:
            cause = (
                f"the release of round {round} of run {run!r} was removed: of runs so long ago "
                "the newest alone is kept"
            )
            raise refused(
                Refusal.ROUND_CLOSED,
                cause,
                (
                    "Go on from a newer checkpoint; releases_of_runs in the aggregator's "
                    "settings says more."
                ),
            )
        try:
            content = self._kept(run, round)
        except OSError as failure:
            raise unreadable(path, failure, RESTORE) from failure
        if hashlib.sha256(content).hexdigest() != status.release_sha256:
            raise RunError(f"{path} is not the file that was released", RESTORE)
        return content

    def _remove(self, releases: Sequence[tuple[str, int]]) -> None:
        """Written down first: a file that is missing otherwise is a loss."""
        if releases:
            with self._durably() as db:
                db.executemany("INSERT INTO removed VALUES (?, ?)", releases)
            self._rows.removed.update(releases)
        self._drop(sorted(self._rows.removed))

    # --- where rows and releases lie: this folder; `postgres_ledger` has them in PostgreSQL ---

    def _keep(self, run: str, round: int, content: bytes) -> None:
        write_bytes(self._path(run, round), content, mode=PRIVATE)  # of three, an output

    def _kept(self, run: str, round: int) -> bytes:
        """Raises FileNotFoundError where nothing is kept."""
        return self._path(run, round).read_bytes()

    def _drop(self, releases: Sequence[tuple[str, int]]) -> None:
        for path in (self._path(run, round) for run, round in releases):
            if path.exists():
                remove(path)

    def _path(self, run: str, round: int) -> Path:
        return self.folder / "releases" / run / f"round-{round:03d}.safetensors"

    def _append(self, entries: Sequence[Entry], *, clock: bool = True) -> None:
        if not entries:
            return
        with self._durably() as db:
            links = list[LedgerLink]()
            end = self._rows.chain.end
            now_s = self._clock()
            for entry in (*(self._clock_note(now_s) if clock else ()), *entries):
                links.append(link(entry, time_s=now_s, after=end))
                end = LedgerHead(end.number + 1, links[-1].head)
            first = len(self._rows.chain.links)
            db.executemany(
                "INSERT INTO entries VALUES (?, ?, ?)",
                [(first + i, new.content, new.head) for i, new in enumerate(links)],
            )
        self._rows.chain.extend(links)

    @property
    def _name(self) -> str:
        """Name of the file, for messages."""
        return str(self.folder / "ledger.sqlite")

    def _open(self) -> None:
        self._db = self._connected()
        self._prepare()
        self._begin()

    def _is_damage(self, failure: Exception) -> bool:
        """Whether a failure of the database says that the file is no ledger any more. A disk that
        fails, a lock and a lack of permission are no damage."""
        return not isinstance(failure, sqlite3.OperationalError)

    def _connected(self) -> Any:
        """A connection whose transactions are begun and ended by statements."""
        path = self.folder / "ledger.sqlite"
        try:
            return connected(path)
        except OSError as failure:
            remedy = "Correct the permissions of the folder and its files."
            raise RunError(f"{path} cannot be opened: {failure}", remedy) from failure

    def _prepare(self) -> None:
        self._db.executescript(TABLES)
        self._load()

    def _begin(self) -> None:
        """The first entry of a new ledger."""
        if not self._rows.chain.links:
            if any(self.folder.glob(".restoring-*")):
                raise RunError(
                    f"a restore into {self.folder} was cut off",
                    "Move the folder away and restore again: no new ledger is begun here.",
                )
            self._append([Birth(os.urandom(16).hex())])

    def _clock_note(self, now_s: float) -> tuple[ClockSet, ...]:
        """What goes before the next entry where the clock is behind the last one."""
        if not self._rows.chain.links or self._rows.chain.links[-1].time_s - now_s <= LEAST_S:
            return ()
        note = ClockSet(self._rows.chain.links[-1].time_s, now_s)
        logs.say(log, "clock-set", level=logging.WARNING, wait_s=note.last_s - now_s)
        return (note,)

    def _load(self) -> None:
        self._rows = read_rows(self._db, self._name)
