"""Contents of ledgers of clicks: a client of news, what each run cost; a device that asks for
recommendations, each answer it paid for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedrec.cli.disclosure.aggregator import DELTA
from fedrec.privacy.click_accounting import dearest_click
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.mixtures import Event, epsilon_of_events
from fedrec.privacy.selection import PureEvent
from fedrec_client.click_entries import ClickEntry, runs_of
from fedrec_client.click_ledger import read_entries
from fedrec_client.serving_ledger import read_answers

Content = dict[str, Any]

UNIT = "click (replace)"


def news_client(folder: Path, round: int | None) -> Content:
    """A client's ledger of clicks, and how often it answered in each run. Raises RunError."""
    entries = read_entries(folder / "clicks.sqlite")
    runs = runs_of(entries)
    spent = dearest_click(
        [entry.price for entry in runs], Guarantee(math.inf, DELTA, "click", "replace")
    )
    charges = [
        {
            "time_s": entry.time_s,
            "run": entry.run,
            "history": [_price(event) for event in entry.price.history],
            "labels": [_price(event) for event in entry.price.labels],
            "rounds": _answered(entries, entry.run, round),
        }
        for entry in runs
    ]
    return {
        "charges": charges,
        "ledger_head": entries[-1].head if entries else "",
        "spent": _spent(spent),
    }


def device(folder: Path, round: int | None) -> Content:
    """A device's ledger of answers; it knows no rounds.

    `kept_bytes`: of the answer, which is repeated for nothing. Raises RunError."""
    answers = read_answers(folder / "ledger.sqlite")
    shown = [
        {
            "time_s": answer.time_s,
            "version": answer.version,
            **_price(answer.event),
            "noise_std": answer.noise_std,
            "sent": answer.sent.tolist(),
            "kept_bytes": answer.raw.nbytes + answer.sent.nbytes,
        }
        for answer in answers
    ]
    spent = epsilon_of_events([answer.event for answer in answers], DELTA)
    return {
        "answers": shown,
        "ledger_head": answers[-1].head if answers else "",
        "spent": _spent(spent),
    }


def _answered(entries: Sequence[ClickEntry], run: str, round: int | None) -> list[int]:
    """Numbers of the rounds of a run that were answered."""
    rounds = (entry.answer.round for entry in entries if (entry.run, entry.kind) == (run, "answer"))
    return sorted(number for number in rounds if round in {None, number})


def _price(event: Event) -> Content:
    """One release, and what it alone costs each click that it sees."""
    epsilon = event.epsilon if isinstance(event, PureEvent) else epsilon_of_events([event], DELTA)
    return {
        "release": event.name,
        "epsilon": epsilon,
        "delta": 0.0 if isinstance(event, PureEvent) else DELTA,
    }


def _spent(epsilon: float) -> Content:
    return {UNIT: {"epsilon": epsilon, "delta": DELTA}}
