"""Entries of the serving ledger: what was asked and drawn, and what an answer cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedrec.ledgers.chain import EntryType, genesis, head_after
from fedrec.ledgers.sqlite_ledger import LedgerTable
from fedrec.privacy.accounting import GaussianEvent
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.padding import PaddedEvent

_COLUMNS = (
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
class ServingQuestion:
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
class PaidAnswer:
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


def _read(_: int, row: tuple[Any, ...], head: str) -> PaidAnswer:
    number, time_s, version, asked_with, history, *exact, raw, sent = row
    mu, padding, noise_std = (float.fromhex(text) for text in exact)
    release, left = np.frombuffer(raw, np.float64), np.frombuffer(sent, np.float32)
    return PaidAnswer(
        number, time_s, version, asked_with, history, mu, padding, noise_std, release, left, head
    )


ANSWERS = LedgerTable(
    "answers",
    _COLUMNS,
    EntryType(
        genesis("fedrec serving ledger 1"), lambda before, row: head_after(before, *row), _read
    ),
)
