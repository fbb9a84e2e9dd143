"""Price for a whole person of releases that are priced per click: by the distance of their two
furthest inputs, composed exactly.

Unit "user", neighbours "replace": the clicks of one person, at most c in a history and those of l
impressions, exchanged for any others, no more of them, or for none. That somebody has an account,
how many impressions they were shown, and when they ask, is the same in both.

Proof, release by release (`of_person`); a click-level release says (epsilon, delta) of one place,
and this of c of them. - A mean of public rows (`additive`): c terms of the sum change, each by at
most the table's diameter S, so c mu by the triangle inequality. Reached: c clicks on one item
against c on another that is S away. So group privacy (Dong, Roth, Su 2022, Thm 2.14) is exact here.
c <= H: a window has H places. - Attention weights (`attention`): any two histories are at most
sqrt2 theta apart, however many clicks differ: mu. With padding p, all c changed clicks are hidden
with probability p^c, and then nothing differs; else each output is a mixture of Gaussian releases
no further apart, also from the hidden one. So `padding`'s proof holds with p^c in the place of p. -
A gradient (`local_update.NoisedGradients`): any two data sets of a user are 2 theta apart: mu. -
Answers of labels: an impression's answer is epsilon-private whatever changes in it, so l
impressions are l pure releases. Any other Gaussian release is taken as the first, which holds for
all of them. What one person's data sees is composed exactly (`privacy.mixtures`), each release
chosen after those before.
"""

from __future__ import annotations

import math
from dataclasses import replace

from fedrec.privacy.accounting import GaussianEvent
from fedrec.privacy.click_accounting import Costs
from fedrec.privacy.guarantee import Neighbours, Unit
from fedrec.privacy.mixtures import Event, PaddedEvent, epsilon_of_events
from fedrec.privacy.selection import PureEvent

UNIT: Unit = "user"
NEIGHBOURS: Neighbours = "replace"
_BOUNDED = frozenset({"attention", "gradient"})
_NEVER_HIDDEN = 1e-9
"""Probability below which padding is priced as none."""


def of_person(event: Event, clicks: int) -> Event:
    """One release's price to a person, of whose clicks it sees so many, from its price to one
    click. Raises ValueError on 0 clicks."""
    if clicks < 1:
        raise ValueError(f"a release that sees {clicks} clicks costs nothing: leave it out")
    if isinstance(event, PureEvent):
        return replace(event, unit=UNIT)
    if isinstance(event, PaddedEvent):
        hidden = event.padding**clicks
        bare = GaussianEvent(event.name, event.mu, UNIT, NEIGHBOURS)
        return (
            PaddedEvent(event.name, event.mu, hidden, UNIT, NEIGHBOURS)
            if hidden > _NEVER_HIDDEN
            else bare
        )
    mu = event.mu if event.name in _BOUNDED else clicks * event.mu
    return GaussianEvent(event.name, mu, UNIT, NEIGHBOURS)


def of_any_history(event: Event, noise_std: float) -> Event:
    """One served answer's price to a person, whatever the histories held and however long they may
    be.

    Any two means of rows no longer than 1 are at most 2 apart, and any two vectors of clipped
    attention sqrt2. noise_std: of each entry.
    """
    furthest = (
        event.mu if isinstance(event, PaddedEvent) else 2 / noise_std if noise_std else math.inf
    )
    return GaussianEvent(event.name, furthest, UNIT, NEIGHBOURS)


def of_own_history(event: Event, noise_std: float, clicks: int) -> Event:
    """One served answer's price to a person with so many clicks: at most `of_any_history`."""
    own = of_person(event, clicks)
    any_history = of_any_history(event, noise_std)
    return any_history if isinstance(own, GaussianEvent) and own.mu > any_history.mu else own  # type: ignore[union-attr]


def events_of_person(costs: Costs, *, clicks: int, labels: int = 0) -> list[Event]:
    """What a training costs a person with so many clicks in the history and so many labels."""
    history = [of_person(event, clicks) for event in costs.history] if clicks else []
    told = [of_person(event, 1) for event in costs.labels if isinstance(event, PureEvent)] * labels
    # releases that see the history too
    whole = [of_person(event, 1) for event in costs.labels if not isinstance(event, PureEvent)]
    return [*history, *told, *(whole if labels and not history else [])]


def epsilon_of_person(costs: Costs, delta: float, *, clicks: int, labels: int = 0) -> float:
    """Epsilon at `delta` per user (replace) of all releases together."""
    return epsilon_of_events(events_of_person(costs, clicks=clicks, labels=labels), delta)
