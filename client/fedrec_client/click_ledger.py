"""Ledger of what each click of this site has cost in trainings of news: written durably before an
answer leaves, refused past the limit.

Every user of a site answers alike, so one list of runs states what a click of each has cost, by
role (`privacy.click_accounting`): as part of a history, or as a label. A run is charged in whole
before its first answer, and bound then: to its terms, to the data it is about, to the users'
numbers. Every answer is an entry too: to which question, for which users. So what decides whether
noise repeats, whether an answer is new and how often a user has answered stands in one SHA-256
chain, whose head is also kept beside the database; `ledger_files` says what is noticed of going
back in time.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedrec.errors import RefusedError, RunError
from fedrec.federation.protocol import Refusal
from fedrec.operations.clock import ClockJump
from fedrec.operations.ledger_files import (
    CLOCK_SCHEMA,
    HeadFile,
    behind,
    opened,
    opening,
    read_jumps,
    reading,
    write_jump,
)
from fedrec.privacy.click_accounting import Costs, dearest_click
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.mixtures import epsilon_of_events
from fedrec_client.click_entries import (
    GENESIS,
    Bound,
    Entry,
    next_head,
    of_person,
    packed,
    runs_of,
    verified,
)
from fedrec_client.lock import locked
from fedrec_client.pseudonyms import SECRET_BYTES

_SCHEMA = """
CREATE TABLE IF NOT EXISTS secret (value BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS entries (
    number INTEGER PRIMARY KEY, time_s REAL NOT NULL, run TEXT NOT NULL, kind TEXT NOT NULL,
    content TEXT NOT NULL, head TEXT NOT NULL
);
"""
_ROUNDING = 1e-9  # relative; a calibrated release reaches the limit up to the last bits


class ClickLedger:
    """An open ledger of clicks. One process at a time; safe to call from several threads."""

    def __init__(
        self,
        path: Path,
        *,
        limit: Guarantee,
        max_user_epsilon: float = math.inf,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open or begin the ledger at `path`. Raises RunError where it is in use, damaged, or older
        than it was.

        max_user_epsilon: of all runs, per user (replace), at the limit's delta; see
        `person_epsilon`.
        """
        self.limit, self.max_user_epsilon = limit, max_user_epsilon
        self._clock, self._path, self._file = clock, path, HeadFile(path)
        self._mutex, self._lock = threading.Lock(), locked(path)
        with opening(path, self._lock):
            secret = (
                f"INSERT INTO secret SELECT x'{os.urandom(SECRET_BYTES).hex()}' WHERE NOT EXISTS "
                "(SELECT 1 FROM secret);"
            )
            self._database = opened(path, f"{_SCHEMA} {CLOCK_SCHEMA} {secret}")
            self.secret: bytes = self._database.execute("SELECT value FROM secret").fetchone()[0]
            self._entries = list(verified(self._database, path))
            self._file.agree([GENESIS, *(entry.head for entry in self._entries)])
            self._index(self._entries)
            self._jumps = read_jumps(self._database)

    @property
    def runs(self) -> tuple[Entry, ...]:
        """Every run charged, oldest first."""
        return runs_of(self._entries)

    @property
    def epsilon(self) -> float:
        """What the dearest click has cost in all runs, at the limit's delta."""
        return dearest_click([entry.price for entry in self.runs], self.limit)

    @property
    def person_epsilon(self) -> float:
        """Epsilon of all runs, per user (replace): for a person with a full history and as many
        labels as any user of this site, at the delta."""
        return epsilon_of_events(
            of_person([(entry.price, entry.bound) for entry in self.runs]), self.limit.delta
        )

    @property
    def epsilon_left(self) -> float:
        """The largest run of the limit's unit that is still possible is no larger than this: a sum,
        not a composition."""
        return (
            max(0.0, self.limit.epsilon - self.epsilon)
            if self.limit.private
            else self.limit.epsilon
        )

    def bound(self, run: str) -> Bound | None:
        """What a run that was charged is bound to."""
        return next((entry.bound for entry in self.runs if entry.run == run), None)

    def charge(self, run: str, costs: Costs, bound: Bound | None = None) -> bool:
        """Charge a whole run, durably, once; whether it is new.

        Raises RefusedError (`BUDGET`, `WRONG_PLAN`) and charges nothing then."""
        with self._mutex:
            content = packed(costs, bound or Bound())
            known = next((entry for entry in self.runs if entry.run == run), None)
            if known is not None and known.content != content:
                words = f"what run {run} costs, or what it is bound to, changed"
                raise _refused(
                    Refusal.WRONG_PLAN,
                    words,
                    "A run keeps its terms, plan, users and data from its first question.",
                )
            if known is not None:
                return False
            self._require_room(costs, bound or Bound())
            self._append(run, "run", content)
            return True

    def answer(
        self, run: str, round: int, question: str, users: npt.NDArray[np.bool_], *, most: int
    ) -> bool:
        """Write down, durably, who answers what, before it is answered; whether it is new.

        users: (n,) of the site. Raises RefusedError on another question in a round
        (`ALREADY_REPORTED`), and on a user who would answer more than `most` times in the run
        (`BUDGET`).
        """
        with self._mutex:
            before = self._answered.get((run, round))
            if before is not None and before != question:
                words = f"round {round} was answered already, to another question"
                raise _refused(
                    Refusal.ALREADY_REPORTED, words, "Nothing left: the server must ask otherwise."
                )
            if before is not None:
                return False
            bits = np.unpackbits(np.packbits(users))
            if (
                int((self._times.get(run, np.zeros(len(bits), np.int64)) + bits).max(initial=0))
                > most
            ):
                words = f"a user would answer more than {most} times, which is what was paid for"
                raise _refused(
                    Refusal.BUDGET, words, "Nothing left: the server must ask otherwise."
                )
            content = {
                "round": round,
                "question": question,
                "users": np.packbits(users).tobytes().hex(),
            }
            self._append(run, "answer", json.dumps(content, sort_keys=True))
            return True

    def note_clock(self, jump: ClockJump | None = None) -> ClockJump | None:
        """Keep a jump of the clock; without one, that the clock is behind the last entry, if it is.
        Returns what was kept.

        Raises RunError where it cannot be written.
        """
        with self._mutex:
            found = jump or self._behind()
            if found is not None:
                try:
                    with self._database:
                        write_jump(self._database, len(self._entries), found)
                except sqlite3.Error as failure:
                    raise RunError(
                        f"{self._path} cannot be written: {failure}",
                        "Free space or correct permissions.",
                    ) from None
                self._jumps = read_jumps(self._database)
            return found

    def close(self) -> None:
        """Let another process have it."""
        with self._mutex:
            self._database.close()
            self._lock.close()

    def _index(self, entries: Sequence[Entry], *, anew: bool = True) -> None:
        """Which rounds of a run were answered, to what, and how often each user did."""
        if anew:
            self._answered, self._times = (
                dict[tuple[str, int], str](),
                dict[str, npt.NDArray[np.int64]](),
            )
        for entry in entries:
            if entry.answers:
                told = entry.answer
                self._answered[entry.run, told.round] = told.question
                self._times[entry.run] = (
                    self._times.get(entry.run, np.zeros(len(told.users), np.int64)) + told.users
                )

    def _require_room(self, costs: Costs, bound: Bound) -> None:
        after = dearest_click([*(entry.price for entry in self.runs), costs], self.limit)
        if after > self.limit.epsilon * (1 + _ROUNDING):
            remedy = (
                f"It would bring a click to epsilon {after:.4g}; the limit is {self.limit}, and "
                f"{self.epsilon:.4g} is spent."
            )
            raise _refused(
                Refusal.BUDGET, "the run needs more than this client's limit leaves", remedy
            )
        if math.isinf(self.max_user_epsilon):
            return
        runs = [*((entry.price, entry.bound) for entry in self.runs), (costs, bound)]
        after = epsilon_of_events(of_person(runs), self.limit.delta)
        if after > self.max_user_epsilon * (1 + _ROUNDING):
            remedy = (
                f"It would bring a person to epsilon {after:.4g} per user (replace); "
                f"max_user_epsilon is {self.max_user_epsilon:g}."
            )
            raise _refused(
                Refusal.BUDGET,
                "the run needs more than this client's limit per user leaves",
                remedy,
            )

    def _behind(self) -> ClockJump | None:
        return behind(
            self._entries[-1].time_s if self._entries else None,
            self._jumps,
            len(self._entries),
            self._clock(),
        )

    def _append(self, run: str, kind: str, content: str) -> None:
        row = (len(self._entries) + 1, float(self._clock()), run, kind, content)
        head = next_head(self._entries[-1].head if self._entries else GENESIS, row)
        jump = self._behind()
        try:
            with self._database:
                if jump is not None:
                    write_jump(self._database, len(self._entries), jump)
                self._database.execute(
                    "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)", (*row, head)
                )
        except sqlite3.Error as failure:
            # a commit that is said to have failed may be on disk, and is spent then
            with suppress(sqlite3.Error):
                self._entries = list(verified(self._database, self._path))
                self._index(self._entries)
            remedy = "Nothing left this client. Free space or correct permissions."
            raise RunError(f"{self._path} cannot be written: {failure}", remedy) from None
        self._entries.append(Entry(*row, head))
        self._index(self._entries[-1:], anew=False)
        self._file.write(len(self._entries), head)


def _refused(code: Refusal, cause: str, remedy: str) -> RefusedError:
    return RefusedError(code.value, cause, remedy)


def read_clock(path: Path) -> tuple[tuple[int, ClockJump], ...]:
    """Jumps of the clock that a ledger keeps, each with the number of the entry before.

    Raises RunError as `read_entries`."""
    with reading(path) as database:
        return read_jumps(database)


def read_entries(path: Path) -> tuple[Entry, ...]:
    """The entries of a ledger, verified, also while a client has it open.

    Raises RunError where it is missing or damaged."""
    with reading(path) as database:
        return tuple(verified(database, path))
