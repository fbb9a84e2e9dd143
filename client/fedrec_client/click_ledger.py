"""Ledger of what each click of this site has cost in trainings of news: written durably before an
answer leaves, refused past the limit.

Every user of a site answers alike, so one list of runs states what a click of each has cost, by
role (`privacy.click_accounting`): as part of a history, or as a label. A run is charged in whole
before its first answer, and bound then: to its terms, to the data it is about, to the users'
numbers. Every answer is an entry too: to which question, for which users. So what decides whether
noise repeats, whether an answer is new and how often a user has answered stands in one SHA-256
chain, whose head is also kept beside the database; `fedrec.ledgers` says what is noticed of going
back in time.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedrec.federation.protocol import Refusal, refused
from fedrec.ledgers import sqlite_ledger
from fedrec.ledgers.chain import EntryType, genesis, head_after
from fedrec.ledgers.sqlite_ledger import LedgerTable, SqliteLedger
from fedrec.privacy.accounting import GaussianEvent
from fedrec.privacy.click_accounting import Costs, dearest_click
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.mixtures import Event, PaddedEvent, epsilon_of_events
from fedrec.privacy.person import events_of_person
from fedrec.privacy.selection import PureEvent
from fedrec_client.ledger import SECRET_SCHEMA, kept_secret

_EVENTS: Mapping[str, Callable[..., Event]] = {
    "pure": PureEvent,
    "padded": PaddedEvent,
    "gaussian": partial(GaussianEvent, unit="click", neighbours="replace"),
}
"""By the word in a row of `_row`."""
_SCHEMA = f"""
{SECRET_SCHEMA}
CREATE TABLE IF NOT EXISTS entries (
    number INTEGER PRIMARY KEY, time_s REAL NOT NULL, run TEXT NOT NULL, kind TEXT NOT NULL,
    content TEXT NOT NULL, head TEXT NOT NULL
);
"""
_ROUNDING = 1e-9  # relative; a calibrated release reaches the limit up to the last bits


@dataclass(frozen=True)
class RunBinding:
    """What a run is bound to from its first question. terms, data: digests; users, first_user: of
    how many, and from which number on.

    history, labels: the most clicks and impressions of one user that it may see; 0 where that is
    not known.
    """

    terms: str = ""
    data: str = ""
    users: int = 0
    first_user: int = 0
    history: int = 0
    labels: int = 0


@dataclass(frozen=True)
class ClickEntry:
    """One entry of kind "run" (a charge) or "answer"; `content` as JSON; `head` closes the chain so
    far."""

    number: int
    time_s: float
    run: str
    kind: str
    content: str
    head: str

    @property
    def answers(self) -> bool:
        """Whether it is the answer to one question; if not, the charge of a run."""
        return self.kind == "answer"

    @property
    def price(self) -> Costs:
        """What the run cost each click."""
        read = json.loads(self.content)
        return Costs(tuple(map(_event, read["history"])), tuple(map(_event, read["labels"])))

    @property
    def bound(self) -> RunBinding:
        """What the run is bound to."""
        return RunBinding(**json.loads(self.content)["bound"])

    @property
    def answer(self) -> AnsweredRound:
        """Which question was answered, and for whom."""
        read = json.loads(self.content)
        return AnsweredRound(
            read["round"],
            read["question"],
            np.unpackbits(np.frombuffer(bytes.fromhex(read["users"]), np.uint8)),
        )


@dataclass(frozen=True)
class AnsweredRound:
    """question: its digest; users: 1 for each of the site's users who answered, 0 for others and
    behind the last, to whole bytes."""

    round: int
    question: str
    users: npt.NDArray[np.uint8]


def runs_of(entries: Sequence[ClickEntry]) -> tuple[ClickEntry, ...]:
    """The charges among them."""
    return tuple(entry for entry in entries if not entry.answers)


def of_person(runs: Sequence[tuple[Costs, RunBinding]]) -> list[Event]:
    """Public numbers decide, whatever anybody clicked.

    A run that does not say how much it sees costs everything."""
    found = list[Event]()
    for costs, bound in runs:
        if bound.history:
            found += events_of_person(costs, clicks=bound.history, labels=bound.labels)
        else:
            found.append(GaussianEvent("unknown", math.inf, "user", "replace"))
    return found


def packed(costs: Costs, bound: RunBinding) -> str:
    """Content of the entry that charges a run."""
    parts = {
        "history": [_row(event) for event in costs.history],
        "labels": [_row(event) for event in costs.labels],
    }
    return json.dumps(parts | {"bound": asdict(bound)}, sort_keys=True)


def _row(event: Event) -> list[str]:
    """Kind, name and numbers, exactly; an answer about a label is priced as a coin of its epsilon,
    which dominates it."""
    if isinstance(event, PureEvent):
        return ["pure", event.name, event.epsilon.hex()]
    if isinstance(event, PaddedEvent):
        return ["padded", event.name, event.mu.hex(), event.padding.hex()]
    return ["gaussian", event.name, event.mu.hex()]


def _event(row: list[str]) -> Event:
    kind, name, *numbers = row
    event: Event = _EVENTS[kind](name, *map(float.fromhex, numbers))
    return event


def _read(_: int, row: tuple[Any, ...], head: str) -> ClickEntry:
    number, time_s, run, kind, content = row
    entry = ClickEntry(number, time_s, run, kind, content, head)
    read: object = entry.answer if entry.answers else entry.price
    del read  # a price or an answer that is not known here raises
    return entry


CLICKS = LedgerTable(
    "entries",
    ("number", "time_s", "run", "kind", "content", "head"),
    EntryType(
        genesis("fedrec click ledger 2"), lambda before, row: head_after(before, *row), _read
    ),
)


class ClickLedger(SqliteLedger[ClickEntry]):
    """An open ledger of clicks. One process at a time; safe to call from several threads."""

    table = CLICKS
    schema = _SCHEMA

    def __init__(
        self,
        path: Path,
        *,
        limit: Guarantee,
        max_user_epsilon: float = math.inf,
        clock: Callable[[], float] = time.time,
        seen: Path | None = None,
    ) -> None:
        """Open or begin the ledger at `path`. Raises RunError where it is in use, damaged, or older
        than it was. seen: as of `HeadFile`.

        max_user_epsilon: of all runs, per user (replace), at the limit's delta: for a person with
        a full history and as many labels as any user of this site (`of_person`).
        """
        self.limit = limit
        self.max_user_epsilon = max_user_epsilon
        super().__init__(path, clock=clock, seen=seen)

    def _load(self) -> None:
        super()._load()
        self.secret = kept_secret(self._db)
        self._answered = dict[tuple[str, int], str]()
        self._times = dict[str, npt.NDArray[np.int64]]()
        for entry in self._entries:
            self._index(entry)

    @property
    def runs(self) -> tuple[ClickEntry, ...]:
        """Every run charged, oldest first."""
        return runs_of(self._entries)

    @property
    def epsilon(self) -> float:
        """What the dearest click has cost in all runs, at the limit's delta."""
        return dearest_click([entry.price for entry in self.runs], self.limit)

    @property
    def epsilon_left(self) -> float:
        """The largest run of the limit's unit that is still possible is no larger than this: a sum,
        not a composition."""
        return (
            max(0.0, self.limit.epsilon - self.epsilon)
            if self.limit.private
            else self.limit.epsilon
        )

    def bound(self, run: str) -> RunBinding | None:
        """What a run that was charged is bound to."""
        return next((entry.bound for entry in self.runs if entry.run == run), None)

    def charge(self, run: str, costs: Costs, bound: RunBinding | None = None) -> bool:
        """Charge a whole run, durably, once; whether it is new.

        Raises RefusedError (`BUDGET`, `WRONG_PLAN`) and charges nothing then."""
        with self._lock:
            content = packed(costs, bound or RunBinding())
            known = next((entry for entry in self.runs if entry.run == run), None)
            if known is not None and known.content != content:
                words = f"what run {run} costs, or what it is bound to, changed"
                raise refused(
                    Refusal.WRONG_PLAN,
                    words,
                    "A run keeps its terms, plan, users and data from its first question.",
                )
            if known is not None:
                return False
            self._require_room(costs, bound or RunBinding())
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
        with self._lock:
            before = self._answered.get((run, round))
            if before is not None and before != question:
                words = f"round {round} was answered already, to another question"
                raise refused(
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
                raise refused(Refusal.BUDGET, words, "Nothing left: the server must ask otherwise.")
            content = {
                "round": round,
                "question": question,
                "users": np.packbits(users).tobytes().hex(),
            }
            self._index(self._append(run, "answer", json.dumps(content, sort_keys=True)))
            return True

    def _index(self, entry: ClickEntry) -> None:
        """Which rounds of a run were answered, to what, and how often each user did."""
        if entry.answers:
            told = entry.answer
            self._answered[entry.run, told.round] = told.question
            before = self._times.get(entry.run, np.zeros(len(told.users), np.int64))
            self._times[entry.run] = before + told.users

    def _require_room(self, costs: Costs, bound: RunBinding) -> None:
        after = dearest_click([*(entry.price for entry in self.runs), costs], self.limit)
        if after > self.limit.epsilon * (1 + _ROUNDING):
            remedy = (
                f"It would bring a click to epsilon {after:.4g}; the limit is {self.limit}, and "
                f"{self.epsilon:.4g} is spent."
            )
            raise refused(
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
            raise refused(
                Refusal.BUDGET,
                "the run needs more than this client's limit per user leaves",
                remedy,
            )


def read_entries(path: Path) -> tuple[ClickEntry, ...]:
    """The entries of a ledger, verified, also while a client has it open.

    Raises RunError where it is missing or damaged."""
    return sqlite_ledger.read_entries(path, CLICKS)
