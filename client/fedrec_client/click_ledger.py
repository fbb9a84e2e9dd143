"""What each click of this site has cost in trainings of news: written durably before an answer leaves, refused past the limit.

Every user of a site answers alike, so one list of entries states what a click of each has cost, by role (`privaterec.spending`): as part of
a history, or as a label. An entry is a run, charged in whole before its first answer. Entries form a SHA-256 chain, whose head is also
kept beside the database; `ledger_files` says what is noticed of going back in time.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrec.errors import RefusedError, RunError
from fedrec.federation.protocol import Refusal
from fedrec.privacy.accounting import GaussianEvent
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.mixtures import Event
from fedrec.privacy.padding import PaddedEvent
from fedrec.privacy.selection import PureEvent
from fedrec.privaterec.spending import ClickLedger, Cohort, Costs
from fedrec_client.ledger_files import HeadFile, broken, locked, opened, opening, reading, require_forward_clock
from fedrec_client.pseudonyms import SECRET_BYTES

_GENESIS = hashlib.sha256(b"fedrec click ledger 1").hexdigest()
_SCHEMA = """
CREATE TABLE IF NOT EXISTS secret (value BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS runs (number INTEGER PRIMARY KEY, time_s REAL NOT NULL, run TEXT NOT NULL UNIQUE, costs TEXT NOT NULL,
    head TEXT NOT NULL);
"""
_ROUNDING = 1e-9  # relative; a calibrated release reaches the limit up to the last bits


@dataclass(frozen=True)
class Entry:
    """One run that was charged; `costs` as JSON; `head` closes the chain so far."""

    number: int
    time_s: float
    run: str
    costs: str
    head: str

    @property
    def price(self) -> Costs:
        """What the run cost each click."""
        read = json.loads(self.costs)
        return Costs(tuple(map(_event, read["history"])), tuple(map(_pure, read["labels"])))


class ClickSpending:
    """An open ledger of clicks. One process at a time; safe to call from several threads."""

    def __init__(self, path: Path, *, limit: Guarantee, clock: Callable[[], float] = time.time) -> None:
        """Open or begin the ledger at `path`. Raises RunError where it is in use, damaged, or older than it was."""
        self.limit, self._clock, self._path, self._file = limit, clock, path, HeadFile(path)
        self._mutex, self._lock = threading.Lock(), locked(path)
        with opening(path, self._lock):
            secret = f"INSERT INTO secret SELECT x'{os.urandom(SECRET_BYTES).hex()}' WHERE NOT EXISTS (SELECT 1 FROM secret);"
            self._database = opened(path, f"{_SCHEMA} {secret}")
            self.secret: bytes = self._database.execute("SELECT value FROM secret").fetchone()[0]
            self._entries = list(_verified(self._database, path))
            self._file.agree([_GENESIS, *(entry.head for entry in self._entries)])
            if self._entries:
                require_forward_clock(self._clock(), self._entries[-1].time_s)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Every run charged, oldest first."""
        return tuple(self._entries)

    @property
    def epsilon(self) -> float:
        """What the dearest click has cost in all runs, at the limit's delta."""
        return dearest_click([entry.price for entry in self._entries], self.limit)

    @property
    def epsilon_left(self) -> float:
        """The largest run of the limit's unit that is still possible is no larger than this: a sum, not a composition."""
        return max(0.0, self.limit.epsilon - self.epsilon) if self.limit.private else self.limit.epsilon

    def charge(self, run: str, costs: Costs) -> bool:
        """Charge a whole run, durably, once; whether it is new. Raises RefusedError (`BUDGET`, `WRONG_PLAN`) and charges nothing then."""
        with self._mutex:
            content = _packed(costs)
            known = next((entry for entry in self._entries if entry.run == run), None)
            if known is not None and known.costs != content:
                raise _refused(Refusal.WRONG_PLAN, f"what run {run} costs changed", "A run keeps its plan from its first round.")
            if known is not None:
                return False
            self._require_room(costs)
            self._append(run, content)
            return True

    def close(self) -> None:
        """Let another process have it."""
        with self._mutex:
            self._database.close()
            self._lock.close()

    def _require_room(self, costs: Costs) -> None:
        after = dearest_click([*(entry.price for entry in self._entries), costs], self.limit)
        if after > self.limit.epsilon * (1 + _ROUNDING):
            remedy = f"It would bring a click to epsilon {after:.4g}; the limit is {self.limit}, and {self.epsilon:.4g} is spent."
            raise _refused(Refusal.BUDGET, "the run needs more than this client's limit leaves", remedy)

    def _append(self, run: str, costs: str) -> None:
        content = (len(self._entries) + 1, float(self._clock()), run, costs)
        head = _next_head(self._entries[-1].head if self._entries else _GENESIS, content)
        try:
            with self._database:
                self._database.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?)", (*content, head))
        except sqlite3.Error as failure:
            with suppress(sqlite3.Error):  # a commit that is said to have failed may be on disk, and is spent then
                self._entries = list(_verified(self._database, self._path))
            remedy = "Nothing left this client. Free space or correct permissions."
            raise RunError(f"{self._path} cannot be written: {failure}", remedy) from None
        self._entries.append(Entry(*content, head))
        self._file.write(len(self._entries), head)


def read_runs(path: Path) -> tuple[Entry, ...]:
    """The entries of a ledger, verified, also while a client has it open. Raises RunError where it is missing or damaged."""
    with reading(path) as database:
        return tuple(_verified(database, path))


def dearest_click(runs: Sequence[Costs], limit: Guarantee) -> float:
    """Epsilon at the limit's delta: of those in histories, which all runs' reports see, or of labels, which all runs' answers tell."""
    history = tuple(event for costs in runs for event in costs.history)
    labels = tuple(event for costs in runs for event in costs.labels)
    return ClickLedger(limit, (Cohort("history", history), Cohort("label", labels))).epsilon


def _packed(costs: Costs) -> str:
    parts = {"history": [_row(event) for event in costs.history], "labels": [_row(event) for event in costs.labels]}
    return json.dumps(parts, sort_keys=True)


def _row(event: Event) -> list[str]:
    """Kind, name and numbers, exactly; a label is priced as a coin of its epsilon, which dominates it."""
    if isinstance(event, PureEvent):
        return ["pure", event.name, event.epsilon.hex()]
    return (
        ["padded", event.name, event.mu.hex(), event.padding.hex()]
        if isinstance(event, PaddedEvent)
        else ["gaussian", event.name, event.mu.hex()]
    )


def _event(row: list[str]) -> Event:
    kind, name, *numbers = row
    if kind == "pure":
        return _pure(row)
    values = [float.fromhex(number) for number in numbers]
    return PaddedEvent(name, values[0], values[1]) if kind == "padded" else GaussianEvent(name, values[0], "click", "replace")


def _pure(row: list[str]) -> PureEvent:
    return PureEvent(row[1], float.fromhex(row[2]))


def _verified(database: sqlite3.Connection, path: Path) -> Iterator[Entry]:
    head = _GENESIS
    for expected, row in enumerate(database.execute("SELECT number, time_s, run, costs, head FROM runs ORDER BY number"), start=1):
        try:
            head = _next_head(head, row[:4])
        except (TypeError, ValueError):
            head = ""
        if row[0] != expected or row[4] != head:
            raise broken(path, expected)
        yield Entry(*row)


def _next_head(head: str, content: tuple[Any, ...]) -> str:
    number, time_s, run, costs = content
    return hashlib.sha256(json.dumps([head, number, float(time_s).hex(), run, costs]).encode()).hexdigest()


def _refused(code: Refusal, cause: str, remedy: str) -> RefusedError:
    return RefusedError(code.value, cause, remedy)
