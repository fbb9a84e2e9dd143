"""Examination of ledgers: that they are whole, what is spent, in its unit, and whether a scenario's
run still fits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedrec.cli.disclosure.aggregator import DELTA, ledger_by
from fedrec.cli.doctor.machine import Doubt
from fedrec.errors import PrivacyError, RunError
from fedrec.privacy.accounting import GaussianEvent, mu_for
from fedrec.privacy.click_accounting import dearest_click
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.ledger import Ledger
from fedrec.privacy.mixtures import epsilon_of_events
from fedrec.recipes import guarantee_of
from fedrec.settings_tables.privacy import PrivacySettings
from fedrec_aggregator.chain import Charge, Link
from fedrec_aggregator.settings import AggregatorSettings
from fedrec_client.click_entries import runs_of
from fedrec_client.click_ledger import read_entries as read_click_entries
from fedrec_client.ledger import read_entries
from fedrec_client.ledger_entries import Entry
from fedrec_client.serving_ledger import read_answers
from fedrec_client.settings import ClientSettings


def release_ledger(settings: AggregatorSettings, now_s: float) -> str | Doubt:
    """What an aggregator has released; a clock before its last entry is a doubt.

    Raises RunError where its chain is broken."""
    links = _links(settings)
    if not links:
        return "begins with the first run"
    if clock := _set_back(links[-1].time_s, now_s):
        return clock
    limit = settings.limit or Guarantee(math.inf, 1e-5)
    spent = _account([link.entry.event for link in links if isinstance(link.entry, Charge)], limit)
    return (
        f"{len(links)} entries, unbroken; {_priced(spent.epsilon, limit)} released so far, limit "
        f"{settings.privacy.max_epsilon:g}"
    )


def client_ledger(settings: ClientSettings, now_s: float) -> str | Doubt:
    """What each user of a client has spent; a clock before its last entry is a doubt.

    Raises RunError."""
    entries = _entries(settings)
    if not entries:
        return "begins with the first run"
    if clock := _set_back(entries[-1].time_s, now_s):
        return clock
    limit = settings.privacy.limit
    spent = _account([event for entry in entries for event in entry.events], limit)
    return (
        f"{len(entries)} rounds, unbroken; {_priced(spent.epsilon, limit)} spent so far, limit "
        f"{limit.epsilon:g}"
    )


def click_ledger(settings: ClientSettings, now_s: float) -> str | Doubt:
    """What the dearest click of a client of news has spent. Raises RunError."""
    path, limit = Path(settings.state) / "clicks.sqlite", settings.privacy.limit
    entries = read_click_entries(path) if path.exists() else ()
    if not entries:
        return "begins with the first run"
    if clock := _set_back(entries[-1].time_s, now_s):
        return clock
    runs = runs_of(entries)
    spent = dearest_click([entry.price for entry in runs], limit)
    return (
        f"{len(runs)} runs, unbroken; {_priced(spent, limit)} spent so far, limit {limit.epsilon:g}"
    )


def serving_ledger(path: Path, now_s: float) -> str:
    """What the answers of a device have cost; its limit is in no file: whoever asks says it each
    time. Raises RunError."""
    answers = read_answers(path) if path.exists() else ()
    if not answers:
        return "begins with the first answer"
    _require_forward(answers[-1].time_s, now_s)
    spent = epsilon_of_events([answer.event for answer in answers], DELTA)
    said = f"epsilon {spent:.4g} per click (replace) at delta {DELTA:g}"
    return (
        f"{len(answers)} answers, unbroken; {said} spent so far; the limit is what --limit of "
        "fedrec recommend says"
    )


def _priced(epsilon: float, limit: Guarantee) -> str:
    return f"epsilon {epsilon:.4g} {limit.compared}"


def aggregator_limit(settings: AggregatorSettings, privacy: PrivacySettings) -> str:
    """Whether a run of the scenario fits.

    Raises PrivacyError where it does not, or is not to be taken part in."""
    guarantee = _established(privacy, allowed=settings.limits.allow_not_established)
    charged = [link.entry.event for link in _links(settings) if isinstance(link.entry, Charge)]
    return _room(guarantee, charged, settings.limit)


def client_limit(settings: ClientSettings, privacy: PrivacySettings) -> str:
    """Whether a run of the scenario fits; raises as `aggregator_limit` does."""
    guarantee = _established(privacy, allowed=settings.privacy.allow_not_established)
    return _room(
        guarantee,
        [event for entry in _entries(settings) for event in entry.events],
        settings.privacy.limit,
    )


def _links(settings: AggregatorSettings) -> tuple[Link, ...]:
    return ledger_by(settings)[0]


def _entries(settings: ClientSettings) -> tuple[Entry, ...]:
    path = Path(settings.state) / "ledger.sqlite"
    return read_entries(path) if path.exists() else ()


def _account(events: Sequence[GaussianEvent], limit: Guarantee) -> Ledger:
    """What was spent, whether or not the limit of today would have allowed it."""
    return Ledger(limit, tuple(events))


def _established(privacy: PrivacySettings, *, allowed: bool) -> Guarantee:
    guarantee = guarantee_of(privacy)
    if privacy.accountant == "am-ssp" and guarantee.private:
        guarantee = replace(
            guarantee, established=False, note="the paper's conversion covers one item update"
        )
    if not guarantee.established and not allowed:
        raise PrivacyError(
            f"the scenario promises {guarantee}",
            "Choose another scenario, or set allow_not_established.",
        )
    return guarantee


def _room(guarantee: Guarantee, charged: Sequence[GaussianEvent], limit: Guarantee | None) -> str:
    """Raises BudgetExceededError or UnitMismatchError where this scenario's run would pass the
    limit."""
    if limit is None:
        if not guarantee.private:
            raise PrivacyError(
                "the scenario has no noise, and privacy.without_noise is not set",
                'Set it, with max_epsilon = "inf", or a finite epsilon.',
            )
        return "no limit over all runs"
    run = GaussianEvent(
        "run of this scenario",
        mu_for(guarantee.epsilon, guarantee.delta),
        guarantee.unit,
        guarantee.neighbours,
    )
    after = _account(charged, limit).add(run)
    return f"{guarantee} fits; {_priced(after.epsilon, limit)} after it, limit {limit.epsilon:g}"


def _set_back(last_s: float, now_s: float) -> Doubt | None:
    """Entries follow each other by number, whatever the clock says."""
    if now_s >= last_s - 86_400:
        return None
    remedy = (
        "Set the clock, or leave it if it is right now: the ledger goes on all the same, and "
        "notes the jump."
    )
    return Doubt(
        f"the clock is {(last_s - now_s) / 86_400:.1f} days before the ledger's last entry", remedy
    )


def _require_forward(last_s: float, now_s: float) -> None:
    if now_s < last_s - 86_400:
        raise RunError(
            f"the clock is {(last_s - now_s) / 86_400:.1f} days before the ledger's last entry",
            "Set the clock right.",
        )
