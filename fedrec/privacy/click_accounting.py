"""Cost of each click of one client, role by role: a ledger that is charged before an answer leaves,
and refuses.

A click has one role at a time. In a history it is seen by every report on that history; as a label
it is seen by the one answer of its impression. Roles are places in a public schedule, so replacing
a click changes what one role's releases see and no other's: parallel composition. Proof: let the
clicks be divided by place into parts seen by mechanisms M_1, M_2, .. with independent randomness.
Neighbours differ in one place, hence in one part; the other mechanisms' outputs have the same law
given the first's, so the joint divergence is that of the one. The price of training is therefore
the larger of report and label, not their sum. That a later question is chosen by what was released
changes nothing.

When label clicks join the history, as before serving, later reports see them too: these clicks
carry their label's price and all later reports', composed exactly (`privacy.mixtures`). A ledger
keeps one cohort per sequence of events and is as dear as its dearest. Over several trainings the
same click may be a label in one and part of the history in another: `dearest_click` takes, of all
ways to give it one role in each, the dearest.

Serving: a client remembers a noised answer for a public period. Repeating it costs nothing;
refreshing when the history changes would tell when a click happened, so it is refreshed by date.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from fedrec.errors import BudgetExceededError
from fedrec.privacy.accounting import GaussianEvent, mu_for
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.mixtures import Event, epsilon_of_events
from fedrec.privacy.selection import PureEvent

Role = Literal["history", "label"]

_ROUNDING = 1e-9  # relative; a calibrated release reaches the limit up to the last bits
_MOST_CHOICES = 256  # each is one composition, of milliseconds
_CLICK = Guarantee(1.0, 0.5, "click", "replace")


@dataclass(frozen=True)
class TrainingPlan:
    """One report on the history, mu-GDP, and one answer per impression, pure: each uses the whole
    guarantee, by parallel composition.

    no_click: whether an impression without a click answers too, and all with one symbol more.
    """

    guarantee: Guarantee
    report_mu: float
    label_epsilon: float
    no_click: bool = False

    @property
    def report(self) -> GaussianEvent:
        """The price of the report, to each click of the history."""
        return GaussianEvent("report", self.report_mu, "click", "replace")

    @property
    def costs(self) -> Costs:
        """What the whole training costs one client.

        The label is priced as a coin of its epsilon, which dominates every mechanism."""
        return Costs((self.report,), (PureEvent("label", self.label_epsilon),))


def plan_training(guarantee: Guarantee, *, no_click: bool = False) -> TrainingPlan:
    """(epsilon, delta) per click replaced for all of training.

    Raises UnitMismatchError for another unit."""
    guarantee.require_same_unit(_CLICK)
    return TrainingPlan(
        guarantee, mu_for(guarantee.epsilon, guarantee.delta), guarantee.epsilon, no_click
    )


def serving_epsilon(answers: int, guarantee: Guarantee) -> float:
    """Epsilon of so many fresh answers of `guarantee` each on one history, at its delta,
    exactly."""
    event = GaussianEvent(
        "answer", mu_for(guarantee.epsilon, guarantee.delta), guarantee.unit, guarantee.neighbours
    )
    return epsilon_of_events([event] * answers, guarantee.delta)


@dataclass(frozen=True)
class Cohort:
    """Clicks that were seen by the same releases."""

    role: Role
    events: tuple[Event, ...]


@dataclass(frozen=True)
class ClickAccountant:
    """Cohorts of one client's clicks against `limit`; `answered` impressions have given their one
    answer."""

    limit: Guarantee
    cohorts: tuple[Cohort, ...] = (Cohort("history", ()),)
    answered: frozenset[int] = field(default=frozenset())

    def __post_init__(self) -> None:
        self.limit.require_same_unit(_CLICK)

    @property
    def epsilon(self) -> float:
        """Epsilon of the dearest click, at the limit's delta."""
        return max(epsilon_of_events(cohort.events, self.limit.delta) for cohort in self.cohorts)

    def charge_history(self, event: Event) -> ClickAccountant:
        """The accountant after one more report, which all clicks of the history see.

        Raises BudgetExceededError past the limit."""
        seen = tuple(
            replace(c, events=(*c.events, event)) if c.role == "history" else c
            for c in self.cohorts
        )
        return self._within(replace(self, cohorts=seen), event)

    def charge_label(self, impression: int, event: PureEvent) -> ClickAccountant:
        """The accountant after the answer of one impression.

        Raises BudgetExceededError past the limit, and on a second answer."""
        if impression in self.answered:
            raise BudgetExceededError(
                f"impression {impression} has been answered",
                "Use the first answer again: it costs nothing.",
            )
        added = Cohort("label", (event,))
        cohorts = self.cohorts if added in self.cohorts else (*self.cohorts, added)
        return self._within(
            replace(self, cohorts=cohorts, answered=self.answered | {impression}), event
        )

    def _within(self, after: ClickAccountant, event: Event) -> ClickAccountant:
        self.limit.require_same_unit(Guarantee(1.0, 0.5, event.unit, event.neighbours))
        if after.epsilon > self.limit.epsilon * (1 + _ROUNDING):
            raise BudgetExceededError(
                (
                    f"release {event.name!r} would bring a click to epsilon {after.epsilon:.4g}; "
                    f"the limit is {self.limit}"
                ),
                "Stop here, or repeat an earlier answer: that costs nothing.",
            )
        return after


@dataclass(frozen=True)
class Costs:
    """What a whole training costs one client: releases that every click of its history sees, and
    releases that each label click sees."""

    history: tuple[Event, ...]
    labels: tuple[Event, ...]

    def charged(self, limit: Guarantee) -> float:
        """Epsilon of the dearest click; infinite without privacy.

        Raises BudgetExceededError past a private `limit`."""
        if not limit.private:
            return limit.epsilon
        epsilon = dearest_click([self], limit)
        if epsilon > limit.epsilon * (1 + _ROUNDING):
            raise BudgetExceededError(
                f"the training would bring a click to epsilon {epsilon:.4g}; the limit is {limit}",
                "Train with less, or raise the limit.",
            )
        return epsilon


def dearest_click(trainings: Sequence[Costs], limit: Guarantee) -> float:
    """Epsilon at the limit's delta of the dearest click after all of them, whichever role it had in
    each.

    Equal trainings are interchangeable, so that a choice is how often a click was a label in each
    kind. Where there are more than `_MOST_CHOICES` choices, a click pays for both roles in all of
    them: never too little.
    """
    kinds = [(kind, times) for kind, times in Counter(trainings).items()]
    if math.prod(times + 1 for _, times in kinds) > _MOST_CHOICES:
        both = tuple(event for costs in trainings for event in (*costs.history, *costs.labels))
        return ClickAccountant(limit, (Cohort("history", both),)).epsilon
    cohorts = []
    for chosen in itertools.product(*(range(times + 1) for _, times in kinds)):
        roles = zip(kinds, chosen, strict=True)
        seen = [
            kind.labels * labels + kind.history * (times - labels)
            for (kind, times), labels in roles
        ]
        cohorts.append(Cohort("history", tuple(itertools.chain.from_iterable(seen))))
    return ClickAccountant(limit, tuple(dict.fromkeys(cohorts))).epsilon
