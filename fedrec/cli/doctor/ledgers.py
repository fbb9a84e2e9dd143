"""Examination of ledgers: that they are whole, what is spent, in its unit, and whether a scenario's
run still fits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedrec.cli.disclosure.aggregator import DELTA
from fedrec.cli.doctor.machine import Doubt
from fedrec.cli.ledgers import account
from fedrec.cli.ledgers.account import Account
from fedrec.errors import PrivacyError, RunError
from fedrec.privacy.accounting import GaussianEvent, Ledger, mu_for
from fedrec.privacy.guarantee import Guarantee
from fedrec.recipes import guarantee_of
from fedrec.settings_tables.training import PrivacySettings
from fedrec_aggregator.settings import AggregatorSettings
from fedrec_client.settings import ClientSettings


def release_ledger(settings: AggregatorSettings, now_s: float) -> str | Doubt:
    """What an aggregator has released; a clock before its last entry is a doubt.

    Raises RunError where its chain is broken."""
    limit = settings.limit or Guarantee(math.inf, 1e-5)
    most = f"limit {settings.privacy.max_epsilon:g}"
    return _told(account.of_aggregator(settings), limit, now_s, "released so far", most)


def client_ledger(settings: ClientSettings, now_s: float) -> str | Doubt:
    """What each user of a client has spent, or of news the dearest click; a clock before its last
    entry is a doubt. Raises RunError."""
    limit = settings.privacy.limit
    most = f"limit {limit.epsilon:g}"
    return _told(account.of_client(settings), limit, now_s, "spent so far", most)


def serving_ledger(path: Path, now_s: float) -> str | Doubt:
    """What the answers of a device have cost; its limit is in no file: whoever asks says it each
    time. Raises RunError, also where the clock is before the last answer: what counts depends on
    it."""
    found = account.of_device(path)
    no_limit = Guarantee(math.inf, DELTA, "click", "replace")
    most = "the limit is what --limit of fedrec recommend says"
    told = _told(found, no_limit, now_s, f"at delta {DELTA:g} spent so far", most, "answer")
    if isinstance(told, Doubt):
        raise RunError(told.words, "Set the clock right.")
    return told


def _told(
    found: Account, limit: Guarantee, now_s: float, spent: str, most: str, first: str = "run"
) -> str | Doubt:
    if found.last_s is None:
        return f"begins with the first {first}"
    if clock := _set_back(found.last_s, now_s):
        return clock
    return f"{found.counted}, unbroken; {_priced(found.spent(limit), limit)} {spent}, {most}"


def _priced(epsilon: float, limit: Guarantee) -> str:
    return f"epsilon {epsilon:.4g} {limit.compared}"


def aggregator_limit(settings: AggregatorSettings, privacy: PrivacySettings) -> str:
    """Whether a run of the scenario fits.

    Raises PrivacyError where it does not, or is not to be taken part in."""
    guarantee = _established(privacy, allowed=settings.limits.allow_not_established)
    return _room(guarantee, account.of_aggregator(settings).events, settings.limit)


def client_limit(settings: ClientSettings, privacy: PrivacySettings) -> str:
    """Whether a run of the scenario fits; raises as `aggregator_limit` does."""
    guarantee = _established(privacy, allowed=settings.privacy.allow_not_established)
    return _room(guarantee, account.of_client(settings).events, settings.privacy.limit)


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
    after = Ledger(limit, tuple(charged)).add(run)
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
