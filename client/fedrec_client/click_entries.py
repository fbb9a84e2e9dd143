"""Entries of the ledger of clicks: what a run costs and is bound to, what was answered."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from fedrec.ledgers.chain import EntryType, genesis, head_after
from fedrec.ledgers.sqlite_ledger import LedgerTable
from fedrec.news.person import events_of_person
from fedrec.privacy.accounting import GaussianEvent
from fedrec.privacy.click_accounting import Costs
from fedrec.privacy.mixtures import Event
from fedrec.privacy.padding import PaddedEvent
from fedrec.privacy.selection import PureEvent


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


_EVENTS: Mapping[str, Callable[..., Event]] = {
    "pure": PureEvent,
    "padded": PaddedEvent,
    "gaussian": partial(GaussianEvent, unit="click", neighbours="replace"),
}
"""By the word in a row of `_row`."""


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
