"""Entries of the serving ledger: what was asked and drawn, and what an answer cost; their chain."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedrec.operations.ledger_files import broken
from fedrec.privacy.accounting import GaussianEvent
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.padding import PaddedEvent

GENESIS = hashlib.sha256(b"fedrec serving ledger 1").hexdigest()


_FIELDS = (
    "number",
    "time_s",
    "version",
    "asked_with",
    "history",
    "mu",
    "padding",
    "noise_std",
    "raw",
    "sent",
    "head",
)


Event = GaussianEvent | PaddedEvent
"""What an answer may cost."""


@dataclass(frozen=True)
class Question:
    """What an answer is remembered by. asked_with: digest of the public numbers of its release;
    history: its `edit_of`.

    version: of the bundle it is asked with; it does not tell questions apart. price: of a fresh
    answer with `guarantee`; noise_std: of its entries.
    """

    version: str
    asked_with: str
    history: str
    guarantee: Guarantee
    price: Event
    noise_std: float = 0.0


@dataclass(frozen=True)
class Drawn:
    """One answer: raw (B,) is the release, sent (B,) what leaves of it, noise_std: of each entry of
    raw; event: its price."""

    raw: npt.NDArray[np.float64]
    sent: npt.NDArray[np.float32]
    noise_std: float
    event: object


@dataclass(frozen=True)
class Answer:
    """An answer that was paid for. `head` closes the chain so far."""

    number: int
    time_s: float
    version: str
    asked_with: str
    history: str
    mu: float
    padding: float
    noise_std: float
    raw: npt.NDArray[np.float64]
    sent: npt.NDArray[np.float32]
    head: str

    @property
    def event(self) -> Event:
        """What it cost each click of the history."""
        return event_of(self.mu, self.padding)


def event_of(mu: float, padding: float = 0.0) -> Event:
    """The price of one answer: Gaussian, inside padding where there is some."""
    return (
        PaddedEvent("answer", mu, padding)
        if padding
        else GaussianEvent("answer", mu, "click", "replace")
    )


def row_of(answer: Answer) -> tuple[Any, ...]:
    """The columns of an answer, its head last."""
    numbers = (
        answer.mu.hex(),
        answer.padding.hex(),
        answer.noise_std.hex(),
        answer.raw.tobytes(),
        answer.sent.tobytes(),
    )
    return (
        answer.number,
        answer.time_s,
        answer.version,
        answer.asked_with,
        answer.history,
        *numbers,
        answer.head,
    )


def verified(database: sqlite3.Connection, path: Path) -> Iterator[Answer]:
    """The answers in their order. Raises RunError where one does not follow from the last."""
    head, rows = (
        GENESIS,
        database.execute(f"SELECT {', '.join(_FIELDS)} FROM answers ORDER BY number"),
    )
    for expected, (
        number,
        time_s,
        version,
        asked_with,
        history,
        *exact,
        raw,
        sent,
        claimed,
    ) in enumerate(rows, start=1):
        try:
            arrays = np.frombuffer(raw, np.float64), np.frombuffer(sent, np.float32)
            content = (
                number,
                time_s,
                version,
                asked_with,
                history,
                *(float.fromhex(text) for text in exact),
                *arrays,
            )
            head = next_head(head, *content)
        except (TypeError, ValueError, AttributeError):
            head = ""
        if number != expected or head != claimed:
            raise broken(path, expected)
        yield Answer(**dict(zip(_FIELDS, (*content, head), strict=True)))


def next_head(head: str, number: int, time_s: float, *rest: Any) -> str:
    """The head after an answer: a hash of the head before and of all that its row says."""
    version, asked_with, history, mu, padding, noise_std, raw, sent = rest
    plain = [head, number, time_s.hex(), version, asked_with, history]
    content = [
        *plain,
        mu.hex(),
        padding.hex(),
        noise_std.hex(),
        raw.tobytes().hex(),
        sent.tobytes().hex(),
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
