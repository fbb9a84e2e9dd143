"""Account of a party's ledger: whether it is whole, what it holds, and what is spent.

What doctor, status and `fedrec ledger` say of a ledger is read here, so that they say the same.
Read only, also while the party runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedrec.cli.disclosure.aggregator import ledger_by
from fedrec.ledgers.sqlite_ledger import TimedEntry
from fedrec.privacy.accounting import GaussianEvent, Ledger, compose, epsilon_of, mu_for
from fedrec.privacy.click_accounting import Costs, dearest_click
from fedrec.privacy.guarantee import Guarantee
from fedrec_aggregator.chain import Charge, LedgerLink, RoundReleased
from fedrec_aggregator.settings import AggregatorSettings
from fedrec_client import click_ledger, serving_ledger
from fedrec_client import ledger as client_ledger
from fedrec_client.click_ledger import runs_of
from fedrec_client.settings import ClientSettings


@dataclass(frozen=True)
class Account:
    """One ledger. counted: how many of what it is counted by. rounds: of each run, how many were
    charged or released. events: charged for each user. costs: of runs, for each click, where that
    is the unit; a sum is of one of the two. last_round, last_success_s: of the newest entry that
    names a round, and when it was released. users: by client."""

    entries: Sequence[TimedEntry]
    counted: str
    rounds: Mapping[str, int] = field(default_factory=dict)
    events: Sequence[GaussianEvent] = ()
    costs: Sequence[Costs] | None = None
    last_round: int | None = None
    last_success_s: float | None = None
    users: Mapping[str, int] | None = None

    @property
    def head(self) -> str:
        """The end of its chain, "" before the first entry."""
        return self.entries[-1].head if self.entries else ""

    @property
    def first_s(self) -> float | None:
        """When its first entry was written, by that machine's clock."""
        return self.entries[0].time_s if self.entries else None

    @property
    def last_s(self) -> float | None:
        """When its last entry was."""
        return self.entries[-1].time_s if self.entries else None

    def spent(self, limit: Guarantee) -> float:
        """Epsilon at the limit's delta, whether or not the limit of today would have allowed it."""
        if self.costs is not None:
            return dearest_click(self.costs, limit)
        return Ledger(limit, tuple(self.events)).epsilon

    def left(self, limit: Guarantee | None) -> float:
        """Epsilon of the largest run that still fits; of clicks never more than that. Charges of
        other units than the limit's count as the limit's."""
        if limit is None or not limit.private:
            return math.inf
        if self.costs is not None:
            return max(0.0, limit.epsilon - self.spent(limit))
        spent = compose(self.events) if self.events else 0.0
        left = mu_for(limit.epsilon, limit.delta) ** 2 - spent**2
        return epsilon_of(left**0.5, limit.delta) if left > 0 else 0.0


def of_aggregator(settings: AggregatorSettings) -> Account:
    """Return the account of an aggregator's ledger, wherever it lies; empty before the first run.

    Raises RunError where its chain is broken."""
    return of_links(*ledger_by(settings))


def of_links(links: Sequence[LedgerLink], users: Mapping[str, int]) -> Account:
    """Return the account of an aggregator from its chain and its users by client."""
    rounds = dict[str, int]()
    last: RoundReleased | None = None
    last_s: float | None = None
    for link in links:
        if isinstance(link.entry, RoundReleased):
            last = link.entry
            last_s = link.time_s
            rounds[last.run] = rounds.get(last.run, 0) + 1
    events = [link.entry.event for link in links if isinstance(link.entry, Charge)]
    round = last.round if last else None
    counted = f"{len(links)} entries"
    return Account(links, counted, rounds, events, None, round, last_s, users)


def of_client(settings: ClientSettings) -> Account:
    """Return the account of a client's ledger, of rounds or of clicks; empty before its first run.
    Raises RunError."""
    path = ledger_path(settings)
    rounds = dict[str, int]()
    if settings.privacy.unit == "click":
        clicks = click_ledger.read_entries(path) if path.exists() else ()
        for entry in clicks:
            rounds[entry.run] = rounds.get(entry.run, 0) + entry.answers
        runs = runs_of(clicks)
        last = clicks[-1].answer.round if clicks and clicks[-1].answers else None
        costs = [entry.price for entry in runs]
        return Account(clicks, f"{len(runs)} runs", rounds, costs=costs, last_round=last)
    entries = client_ledger.read_entries(path) if path.exists() else ()
    asked = [entry for entry in entries if entry.run != client_ledger.DEPARTED]
    for charge in asked:
        rounds[charge.run] = rounds.get(charge.run, 0) + 1
    events = [event for charge in asked for event in charge.events]
    last = asked[-1].round if asked else None
    return Account(entries, f"{len(asked)} rounds", rounds, events, last_round=last)


def of_device(path: Path) -> Account:
    """Return the account of the answers that a device paid for. Raises RunError."""
    answers = serving_ledger.read_answers(path) if path.exists() else ()
    costs = [Costs(tuple(answer.event for answer in answers), ())]
    return Account(answers, f"{len(answers)} answers", costs=costs)


def ledger_path(settings: ClientSettings) -> Path:
    """Where a client's ledger is: of rounds, or of clicks where a click is the unit."""
    news = settings.privacy.unit == "click"
    return Path(settings.state) / ("clicks.sqlite" if news else "ledger.sqlite")
