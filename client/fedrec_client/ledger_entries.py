"""Entries of a client's ledger of rounds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from fedrec.ledgers.chain import EntryType, genesis, head_after
from fedrec.ledgers.sqlite_ledger import LedgerTable
from fedrec.privacy.accounting import GaussianEvent


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
