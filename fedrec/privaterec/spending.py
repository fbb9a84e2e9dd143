"""What each click of one client has cost, role by role: a ledger that is charged before an answer leaves, and refuses.

A click has one role at a time. In a history it is seen by every report on that history; as a label it is seen by the one answer of
its impression. Roles are places in a public schedule, so replacing a click changes what one role's releases see and no
other's: parallel composition. Proof: let the clicks be divided by place into parts seen by mechanisms M_1, M_2, .. with independent
randomness. Neighbours differ in one place, hence in one part; the other mechanisms' outputs have the same law given the first's, so the
joint divergence is that of the one. The price of training is therefore the larger of report and label, not their sum. That a later
question is chosen by what was released changes nothing.

When label clicks join the history, as before serving, later reports see them too: these clicks carry their label's price and all later
reports', composed exactly (`privacy.mixtures`). A ledger keeps one cohort per sequence of events and is as dear as its dearest.

Serving: a noised answer is remembered for a public period (`Memory`). Repeating it costs nothing; refreshing when the
history changes would tell when a click happened, so it is refreshed by date.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from fedrec.errors import BudgetExceededError
from fedrec.privacy.accounting import GaussianEvent, mu_for
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.mixtures import Event, epsilon_of_events
from fedrec.privacy.selection import PureEvent
from fedrec.privaterec.additive import Coefficients

Role = Literal["history", "label"]

_ROUNDING = 1e-9  # relative; a calibrated release reaches the limit up to the last bits


@dataclass(frozen=True)
class TrainingPlan:
    """One report on the history, mu-GDP, and one answer per impression, pure: each uses the whole guarantee, by parallel composition.

    no_click: whether an impression without a click answers too, and all with one symbol more.
    """

    guarantee: Guarantee
    report_mu: float
    label_epsilon: float
    no_click: bool = False


def plan_training(guarantee: Guarantee, *, no_click: bool = False) -> TrainingPlan:
    """(epsilon, delta) per click replaced for all of training. Raises UnitMismatchError for another unit."""
    guarantee.require_same_unit(_CLICK)
    return TrainingPlan(guarantee, mu_for(guarantee.epsilon, guarantee.delta), guarantee.epsilon, no_click)


def serving_epsilon(answers: int, guarantee: Guarantee) -> float:
    """Epsilon of so many fresh answers of `guarantee` each on one history, at its delta, exactly."""
    event = GaussianEvent("answer", mu_for(guarantee.epsilon, guarantee.delta), guarantee.unit, guarantee.neighbours)
    return epsilon_of_events([event] * answers, guarantee.delta)


@dataclass(frozen=True)
class Cohort:
    """Clicks that were seen by the same releases."""

    role: Role
    events: tuple[Event, ...]


@dataclass(frozen=True)
class ClickLedger:
    """Cohorts of one client's clicks against `limit`; `answered` impressions have given their one answer."""

    limit: Guarantee
    cohorts: tuple[Cohort, ...] = (Cohort("history", ()),)
    answered: frozenset[int] = field(default=frozenset())

    def __post_init__(self) -> None:
        self.limit.require_same_unit(_CLICK)

    @property
    def epsilon(self) -> float:
        """Of the dearest click, at the limit's delta."""
        return max(epsilon_of_events(cohort.events, self.limit.delta) for cohort in self.cohorts)

    def charge_history(self, event: Event) -> ClickLedger:
        """This ledger and one more report, which all clicks of the history see. Raises BudgetExceededError past the limit."""
        seen = tuple(replace(c, events=(*c.events, event)) if c.role == "history" else c for c in self.cohorts)
        return self._within(replace(self, cohorts=seen), event)

    def charge_label(self, impression: int, event: PureEvent) -> ClickLedger:
        """This ledger and the answer of one impression. Raises BudgetExceededError past the limit, and on a second answer."""
        if impression in self.answered:
            raise BudgetExceededError(f"impression {impression} has been answered", "Use the first answer again: it costs nothing.")
        added = Cohort("label", (event,))
        cohorts = self.cohorts if added in self.cohorts else (*self.cohorts, added)
        return self._within(replace(self, cohorts=cohorts, answered=self.answered | {impression}), event)

    def labels_join_history(self) -> ClickLedger:
        """From now on, reports see the clicks of answered impressions too."""
        joined = (replace(c, role="history") for c in self.cohorts)
        return replace(self, cohorts=tuple(dict.fromkeys(joined)))

    def _within(self, after: ClickLedger, event: Event) -> ClickLedger:
        self.limit.require_same_unit(Guarantee(1.0, 0.5, event.unit, event.neighbours))
        if after.epsilon > self.limit.epsilon * (1 + _ROUNDING):
            raise BudgetExceededError(
                f"release {event.name!r} would bring a click to epsilon {after.epsilon:.4g}; the limit is {self.limit}",
                "Stop here, or repeat an earlier answer: that costs nothing.",
            )
        return after


@dataclass(frozen=True)
class Costs:
    """What a whole training costs one client: releases that every click of its history sees, and answers that each label click gives."""

    history: tuple[Event, ...]
    labels: tuple[PureEvent, ...]

    def charged(self, limit: Guarantee) -> float:
        """Epsilon of the dearest click; infinite without privacy. Raises BudgetExceededError past a private `limit`."""
        ledger = ClickLedger(limit)
        if not limit.private:
            return limit.epsilon
        for event in self.history:
            ledger = ledger.charge_history(event)
        for event in self.labels:
            ledger = ledger.charge_label(0, event)
        return ledger.epsilon


@dataclass(frozen=True)
class Memory:
    """The answer of one public period, and the ledger that paid for it."""

    ledger: ClickLedger
    period: int = -1
    answer: Coefficients | None = None

    def ask(self, period: int, event: Event, fresh: Callable[[], Coefficients]) -> tuple[Coefficients, Memory]:
        """The remembered answer, or a fresh one in a new period: charged first, drawn after. Raises BudgetExceededError."""
        if self.answer is not None and period == self.period:
            return self.answer, self
        charged = self.ledger.charge_history(event)
        answer = fresh()
        return answer, Memory(charged, period, answer)


_CLICK = Guarantee(1.0, 0.5, "click", "replace")
