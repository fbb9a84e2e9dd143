"""Entries of a client's ledger of rounds, and their chain."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrec.operations.ledger_files import (
    broken,
)
from fedrec.privacy.accounting import GaussianEvent

GENESIS = hashlib.sha256(b"fedrec client ledger 1").hexdigest()


@dataclass(frozen=True)
class Entry:
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


def rows_of(database: sqlite3.Connection) -> list[tuple[Any, ...]]:
    """All rows, by number, as `verified` takes them."""
    return database.execute(
        "SELECT number, time_s, run, round, question, plan, releases, head FROM entries "
        "ORDER BY number"
    ).fetchall()


def verified(rows: Iterable[tuple[Any, ...]], path: Path) -> Iterable[Entry]:
    """The entries in their order. Raises RunError where one does not follow from the last."""
    head = GENESIS
    for expected, (number, time_s, run, round, question, plan, releases, claimed) in enumerate(
        rows, start=1
    ):
        try:
            content = (
                number,
                time_s,
                run,
                round,
                question,
                plan,
                tuple((name, float.fromhex(mu)) for name, mu in json.loads(releases)),
            )
            head = next_head(head, *content)
        except (TypeError, ValueError, AttributeError):
            head = ""
        if number != expected or head != claimed:
            raise broken(path, expected)
        yield Entry(*content, head=head)


def next_head(
    head: str,
    number: int,
    time_s: float,
    run: str,
    round: int,
    question: str,
    plan: str,
    releases: Any,
) -> str:
    """The head after an entry: a hash of the head before and of all that the entry says."""
    content = [
        head,
        number,
        time_s.hex(),
        run,
        round,
        question,
        plan,
        [[name, mu.hex()] for name, mu in releases],
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
