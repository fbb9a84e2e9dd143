"""Ledger of what each user of this site has spent, in all runs together: written durably before a
report leaves, refused past the limit.

Every user of a site answers the same questions, so each has spent the same, and one list of entries
states the spend of each of them. An entry is a round: the releases it was charged for, composed
exactly over all runs (`fedrec.privacy.accounting`). The entries form a SHA-256 chain, whose head is
also kept in a small file beside the database.

It is noticed where an entry was changed or dropped, and where the ledger is older than its head
file (`fedrec.ledgers` says what is not). How far it reaches is told to the aggregator, which
notices where a whole folder was put back, also where it went on since. Entries follow each other by
their numbers; their times are written down and decide nothing, since clocks jump.

Beside the entries lies the newest head that was seen of the aggregator's own ledger
(`fedrec.federation.protocol`): it is lost or put back with them alone.

A person who left (`depart`) is an entry too, which costs nothing: an older ledger, which does not
know that she left, is noticed as one that does not know a charge.

Names that stand for a user and for a report: without the site's secret they say nothing, and
they are the same every time.

A resent report must be the report that was sent: the aggregator counts a report id once. Both names
are HMAC-SHA256 under the site's secret, cut to 16 bytes: among 2^32 of them two are alike with
probability 2^-65.
"""

from __future__ import annotations

import hmac
import json
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedrec.arrays import Int32s, UInt8s
from fedrec.errors import BudgetExceededError, RefusedError, UnitMismatchError
from fedrec.federation.protocol import (
    OWN_HEADS,
    TOKEN_BYTES,
    HeadMemory,
    LedgerHead,
    OwnLedger,
    Refusal,
    refused,
)
from fedrec.ledgers import sqlite_ledger
from fedrec.ledgers.chain import EntryType, genesis, head_after
from fedrec.ledgers.sqlite_ledger import LedgerTable, SqliteLedger, reading
from fedrec.privacy.accounting import GaussianEvent, Ledger, epsilon_of, mu_for
from fedrec.privacy.calibration import Plan
from fedrec.privacy.guarantee import Guarantee, said_down

SECRET_BYTES = 32  # 256 bits: nobody guesses it
SECRET_SCHEMA = "CREATE TABLE IF NOT EXISTS secret (value BLOB NOT NULL);"
_SCHEMA = f"""
{SECRET_SCHEMA}
CREATE TABLE IF NOT EXISTS entries (
    number INTEGER PRIMARY KEY, time_s REAL NOT NULL, run TEXT NOT NULL, round INTEGER NOT NULL,
    question TEXT NOT NULL, plan TEXT NOT NULL,
    releases TEXT NOT NULL, head TEXT NOT NULL, UNIQUE (run, round)
);
CREATE TABLE IF NOT EXISTS aggregators (
    place INTEGER PRIMARY KEY, number INTEGER NOT NULL, head TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS aggregator (
    one INTEGER PRIMARY KEY CHECK (one = 1), number INTEGER NOT NULL, head TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS told (run TEXT, token BLOB, week INTEGER, items BLOB);
CREATE TABLE IF NOT EXISTS asked (run TEXT, item INTEGER, week INTEGER, PRIMARY KEY (run, item));
"""
_ATTEMPTS = (
    "CREATE TABLE IF NOT EXISTS attempts (run TEXT, round INTEGER, ticket BLOB, PRIMARY KEY "
    "(run, round, ticket))"
)
"""Made where checks of hostile clients are charged, so that other ledgers stay as they are."""
DEPARTED = "-departed"
"""In place of a run, which no run is called: the entry names a user who left as its question."""
_CLEARLY = 1e-6
"""Relative, of mu: a limit that is passed by more is passed by any plan of such a guarantee."""


def kept_secret(database: sqlite3.Connection) -> bytes:
    """The secret of a ledger, made where there is none yet; its table is `SECRET_SCHEMA`'s."""
    kept = database.execute("SELECT value FROM secret").fetchone()
    if kept is None:
        kept = (os.urandom(SECRET_BYTES),)
        database.execute("INSERT INTO secret VALUES (?)", kept)
    return bytes(kept[0])


def user_tokens(secret: bytes, user_ids: Sequence[str]) -> UInt8s:
    """(num_users, 16) uint8: one pseudonym per user of the site, the same in all runs."""
    return _names(secret, b"fedrec/1/user/", [user.encode() for user in user_ids])


def report_ids(secret: bytes, tokens: UInt8s, *, run: str, round: int, digest: str) -> UInt8s:
    """(num_users, 16) uint8: one id per user, run, round and question."""
    return _names(
        secret,
        f"fedrec/1/report/{run}/{round}/{digest}/".encode(),
        [token.tobytes() for token in tokens],
    )


def _names(secret: bytes, purpose: bytes, whose: Sequence[bytes]) -> UInt8s:
    content = b"".join(hmac.digest(secret, purpose + one, "sha256")[:TOKEN_BYTES] for one in whose)
    return np.frombuffer(content, np.uint8).reshape(len(whose), TOKEN_BYTES)


@dataclass(frozen=True)
class RoundCharge:
    """One round that was charged: `question` and `plan` are digests; `releases` are names with
    their mu; `head` closes the chain so far."""

    number: int
    time_s: float
    run: str
    round: int
    question: str
    plan: str
    releases: tuple[tuple[str, float], ...]
    head: str

    @property
    def events(self) -> tuple[GaussianEvent, ...]:
        """What the round cost each user."""
        return tuple(GaussianEvent(f"{self.run}/{name}", mu) for name, mu in self.releases)


def _head(before: str, row: tuple[Any, ...]) -> str:
    *content, releases = row
    return head_after(before, *content, json.loads(releases))


def _read(_: int, row: tuple[Any, ...], head: str) -> RoundCharge:
    number, time_s, run, round, question, plan, releases = row
    costs = tuple((name, float.fromhex(mu)) for name, mu in json.loads(releases))
    return RoundCharge(number, time_s, run, round, question, plan, costs, head)


ROUNDS = LedgerTable(
    "entries",
    ("number", "time_s", "run", "round", "question", "plan", "releases", "head"),
    EntryType(genesis("fedrec client ledger 1"), _head, _read),
)


class ClientLedger(SqliteLedger[RoundCharge]):
    """An open ledger. One process at a time; safe to call from several threads."""

    table = ROUNDS
    schema = _SCHEMA

    def __init__(
        self,
        path: Path,
        *,
        limit: Guarantee,
        clock: Callable[[], float] = time.time,
        seen: Path | None = None,
    ) -> None:
        """Open or begin the ledger at `path`. seen: as of `HeadFile`.

        Raises RunError where it is in use, damaged, or older than it was."""
        self.limit = limit
        super().__init__(path, clock=clock, seen=seen)

    def _load(self) -> None:
        super()._load()
        self._secret = kept_secret(self._db)
        found = self._db.execute("SELECT number, head FROM aggregator").fetchone()
        self._seen = LedgerHead(*found) if found else LedgerHead()
        of_three = self._db.execute("SELECT place, number, head FROM aggregators")
        self._seen_of = {place: LedgerHead(number, head) for place, number, head in of_three}

    @property
    def told(self) -> OwnLedger:
        """What an aggregator is told of it."""
        heads = (entry.head for entry in self._entries[-OWN_HEADS:])
        return OwnLedger(len(self._entries), tuple(heads))

    @property
    def secret(self) -> bytes:
        """32 bytes made once, from which users' pseudonyms and report ids come.

        Never leaves the site."""
        return self._secret

    @property
    def epsilon(self) -> float:
        """What each user has spent in all runs, at the limit's delta."""
        return self._spent().epsilon

    @property
    def epsilon_left(self) -> float:
        """The largest run that is still possible, at the limit's delta.

        Not the difference: guarantees do not add up plainly."""
        if not self.limit.private:
            return self.limit.epsilon
        left = mu_for(self.limit.epsilon, self.limit.delta) ** 2 - self._spent().mu ** 2
        return epsilon_of(left**0.5, self.limit.delta) if left > 0 else 0.0

    @property
    def departed(self) -> frozenset[bytes]:
        """Pseudonyms of those who left."""
        entries = (entry.question for entry in self._entries if entry.run == DEPARTED)
        return frozenset(map(bytes.fromhex, entries))

    def depart(self, token: bytes) -> None:
        """Durably note that a user leaves: nothing of hers is reported from here on. Again is
        nothing. Raises RunError where it cannot be written."""
        with self._lock:
            if token not in (known := self.departed):
                erase = "DELETE FROM told WHERE token = ?"
                self._append(
                    DEPARTED, len(known), token.hex(), "", "[]",
                    also=lambda database: database.execute(erase, (token,)),
                )  # fmt: skip

    def plan_of(self, run: str) -> str | None:
        """Digest of the plan that a run was charged under, None before its first charge."""
        return next((entry.plan for entry in self._entries if entry.run == run), None)

    def charge(
        self,
        run: str,
        round: int,
        question: str,
        plan: Plan,
        releases: Sequence[str],
        *,
        weight: float = 1.0,
        keep: Callable[[Any], None] | None = None,
    ) -> bool:
        """Durably charge each user for these releases of `plan`; `question` is the digest. False
        where this was charged before: a resend. Of a stream, a release is charged with the first
        week that this ledger has of it, and `keep` writes what the week brought.

        weight: of this site's reports (`federation.releases`), which cost so much of each release's
        mu. There must be room for all that is left of the plan: a run that cannot be finished is
        refused before its first round.
        Raises RefusedError: WRONG_PLAN where the run had another plan, ALREADY_REPORTED where the
        round had another question or cost otherwise, WRONG_QUESTION where a release was charged in
        another round, BUDGET past the limit; RunError where the entry cannot be written.
        """
        with self._lock:
            digest = plan.digest()
            rounds = [entry for entry in self._entries if entry.run == run]
            paid = {name for entry in rounds if entry.round != round for name, _ in entry.releases}
            new = [name for name in releases if not (plan.horizon and name in paid)]
            costs = [(name, weight * plan[name].mu) for name in new]
            if self._is_resend(run, round, question, digest, costs):
                return False
            if plan.horizon and any(entry.round > round for entry in rounds):
                raise refused(
                    Refusal.WRONG_QUESTION,
                    f"round {round} of run {run} comes after a later one",
                    "Weeks of a stream are asked in their order.",
                )
            self._require_new_releases(run, new)
            self._require_room(run, plan, weight)
            names = json.dumps([[name, mu.hex()] for name, mu in costs])
            self._append(run, round, question, digest, names, also=keep)
            return True

    def told_clicks(self, run: str) -> list[tuple[bytes, Int32s, int]]:
        """Clicks told in a stream: pseudonym, numbers of items, and the week in which they were
        this person's first."""
        with self._lock:
            rows = self._db.execute("SELECT token, items, week FROM told WHERE run = ?", (run,))
            return [(token, np.frombuffer(items, np.int32), week) for token, items, week in rows]

    def asked_items(self, run: str) -> dict[int, int]:
        """Weeks of a stream in which pairs with each item were first asked for, by item."""
        with self._lock:
            return dict(self._db.execute("SELECT item, week FROM asked WHERE run = ?", (run,)))

    @staticmethod
    def keep_told(
        database: Any, run: str, week: int, clicks: Sequence[tuple[bytes, Int32s]]
    ) -> None:
        """Write what `told_clicks` reads."""
        rows = [(run, token, week, items.astype(np.int32).tobytes()) for token, items in clicks]
        database.executemany("INSERT INTO told VALUES (?, ?, ?, ?)", rows)

    @staticmethod
    def keep_asked(database: Any, run: str, week: int, items: Sequence[int]) -> None:
        """Write what `asked_items` reads."""
        rows = [(run, item, week) for item in items]
        database.executemany("INSERT INTO asked VALUES (?, ?, ?)", rows)

    def keep_attempt(self, run: str, round: int, ticket: bytes, *, most: int) -> None:
        """Durably count an attempt at a round in which this client shares; the same ticket again is
        nothing.

        Raises RefusedError (`BUDGET`) beyond `most`, RunError where it cannot be written.
        """
        with self._durably() as database:
            database.execute(_ATTEMPTS)
            database.execute(
                "INSERT OR IGNORE INTO attempts VALUES (?, ?, ?)", (run, round, ticket)
            )
            (count,) = database.execute(
                "SELECT COUNT(*) FROM attempts WHERE run = ? AND round = ?", (run, round)
            ).fetchone()
            if count > most:
                cause = (
                    f"round {round} of run {run} was begun more than {most} times, for which its "
                    "checks are charged"
                )
                raise refused(Refusal.BUDGET, cause, "The server must begin a new run.")

    def require_room_for(self, promised: Guarantee) -> None:
        """Raises RefusedError (`BUDGET`) where a run of this guarantee cannot fit: said before it
        begins, so that nobody is charged.

        Only what is clear: the plan itself decides at every charge.
        """
        if not (promised.private and promised.established and self.limit.private):
            return
        if (promised.unit, promised.neighbours) != (self.limit.unit, self.limit.neighbours):
            return
        mu = mu_for(promised.epsilon, promised.delta)
        allowed = mu_for(self.limit.epsilon, self.limit.delta)
        if mu**2 + self._spent().mu ** 2 > (allowed * (1 + _CLEARLY)) ** 2:
            raise self._no_room(f"it takes epsilon {promised.epsilon:.4g}")

    def ledger_head(self) -> LedgerHead:
        """The newest head seen of the aggregator's ledger."""
        return self._seen

    def keep_ledger_head(self, head: LedgerHead) -> None:
        """Durably; `LedgerHead()` forgets. Raises RunError where it cannot be written."""
        with self._durably() as database:
            database.execute(
                "INSERT OR REPLACE INTO aggregator VALUES (1, ?, ?)", (head.number, head.head)
            )
        self._seen = head

    def of_aggregator(self, place: int) -> HeadMemory:
        """The newest head seen of one of three aggregators' ledgers."""
        return _HeadOfThree(self, place)

    def forget_aggregators(self) -> None:
        """Take the next ledgers of all aggregators for new ones.

        Raises RunError where that cannot be written."""
        self.keep_ledger_head(LedgerHead())
        for place in tuple(self._seen_of):
            self._keep_of_three(place, LedgerHead())

    def _keep_of_three(self, place: int, head: LedgerHead) -> None:
        with self._durably() as database:
            database.execute(
                "INSERT OR REPLACE INTO aggregators VALUES (?, ?, ?)",
                (place, head.number, head.head),
            )
        self._seen_of[place] = head

    def _is_resend(
        self, run: str, round: int, question: str, plan: str, costs: Sequence[tuple[str, float]]
    ) -> bool:
        if (known := self.plan_of(run)) is not None and known != plan:
            raise refused(
                Refusal.WRONG_PLAN,
                f"the plan of run {run} changed",
                "Do not take part: a run keeps its plan from its first round.",
            )
        entry = next(
            (entry for entry in self._entries if (entry.run, entry.round) == (run, round)), None
        )
        if entry is not None and entry.question != question:
            raise refused(
                Refusal.ALREADY_REPORTED,
                f"round {round} of run {run} was answered already, to another question",
                "Each round is answered once.",
            )
        if entry is not None and list(entry.releases) != list(costs):
            # other terms may announce other limits, by which the same question costs more
            raise refused(
                Refusal.ALREADY_REPORTED,
                f"round {round} of run {run} was answered already, at another cost",
                "A run keeps its terms from its first round.",
            )
        return entry is not None

    def _require_new_releases(self, run: str, releases: Sequence[str]) -> None:
        charged = {
            name for entry in self._entries if entry.run == run for name, _ in entry.releases
        }
        if again := [name for name in releases if name in charged] or [
            name for name in releases if list(releases).count(name) > 1
        ]:
            raise refused(
                Refusal.WRONG_QUESTION,
                f"release {again[0]} of run {run} was answered already",
                "The plan holds each release once.",
            )

    def _require_room(self, run: str, plan: Plan, weight: float) -> None:
        """Requires room for every release of the plan that is not charged yet, this question's
        among them."""
        charged = {
            name for entry in self._entries if entry.run == run for name, _ in entry.releases
        }
        ledger = self._spent()
        try:
            for release in plan.releases:
                if release.name not in charged:
                    event = plan.event(release.name)
                    ledger = ledger.add(replace(event, mu=weight * event.mu))
        except (BudgetExceededError, UnitMismatchError) as failure:
            raise self._no_room(failure.cause) from None

    def _no_room(self, why: str) -> RefusedError:
        spent = f"Spent: epsilon {self.epsilon:.4g} of {self.limit}."
        remedy = (
            f"{spent} Still possible: a run of epsilon {said_down(self.epsilon_left)}. "
            f"{why[0].upper()}{why[1:]}."
        )
        return refused(
            Refusal.BUDGET, "the plan needs more than this client's limit leaves", remedy
        )

    def _spent(self) -> Ledger:
        return Ledger(self.limit, tuple(event for entry in self._entries for event in entry.events))


@dataclass(frozen=True)
class _HeadOfThree:
    """A `HeadMemory` in a client's ledger."""

    ledger: ClientLedger
    place: int

    def ledger_head(self) -> LedgerHead:
        """Implements `HeadMemory.ledger_head`."""
        return self.ledger._seen_of.get(self.place, LedgerHead())

    def keep_ledger_head(self, head: LedgerHead) -> None:
        """Implements `HeadMemory.keep_ledger_head`. Raises RunError where it cannot be written."""
        self.ledger._keep_of_three(self.place, head)


def read_seen(path: Path, place: int | None = None) -> LedgerHead:
    """How far this client has seen the aggregator's ledger, or of three that of a place. Raises
    RunError as `read_entries`."""
    where = "aggregator" if place is None else f"aggregators WHERE place = {place:d}"
    with reading(path) as database:
        found = database.execute(f"SELECT number, head FROM {where}").fetchone()
        return LedgerHead(*found) if found else LedgerHead()


def read_entries(path: Path) -> tuple[RoundCharge, ...]:
    """The entries of a ledger, verified, also while a client has it open.

    Raises RunError where it is missing or damaged."""
    return sqlite_ledger.read_entries(path, ROUNDS)
