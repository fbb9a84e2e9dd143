"""`fedrec account` for news: what each release of a variant costs, what training adds up to by
unit, what serving costs, and what all that is for a person.

Nothing here needs the catalogue. How often a user answers depends on the number of users where
`news.rounds` is given: then, and only then, it is read from the data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from fedrec.news import person
from fedrec.news.person_plans import answer_costs, training_costs
from fedrec.news.schedule import schedule_of
from fedrec.news.variant import Releases, of, promise
from fedrec.privacy.accounting import GaussianEvent, opinions
from fedrec.privacy.click_accounting import serving_epsilon
from fedrec.privacy.mixtures import Event, epsilon_of_events
from fedrec.privacy.selection import PureEvent
from fedrec.run import statement
from fedrec.run.data.news import load_news
from fedrec.run.news_run import serving_guarantee
from fedrec.settings import Scenario
from fedrec.storage import finite

ANSWERS = (1, 10, 50, 100)
"""Fresh answers to one user whose serving epsilons are added up."""


def _as_dict(one: Releases, delta: float) -> dict[str, Any]:
    """For people and JSON; noise_multiplier is noise std / L2 sensitivity, and None for answers,
    which have no such thing."""
    mu = None if isinstance(one.event, PureEvent) else one.event.mu
    each = epsilon_of_events([one.event], delta)
    numbers = {
        "times": one.times,
        "mu": mu,
        "epsilon": each,
        "noise_multiplier": None if mu is None else 1 / mu,
    }
    return {"name": one.event.name, "seen_by": one.seen_by, **numbers}


def describe(scenario: Scenario, *, users: int = 0) -> dict[str, Any]:
    """Releases, totals of training by what pays them, and answers of serving. users: 0 reads the
    data where the plan needs their number.

    Raises SettingsError and what reading raises.
    """
    found, releases = of(scenario), _releases(scenario, users)
    plan = found.plan(scenario) if found.plan is not None else None
    guarantee = promise(scenario) if plan is None else plan.guarantee
    content = {
        "guarantee": {**asdict(guarantee), "words": str(guarantee)},
        "variant": scenario.news.variant,
        "releases": [_as_dict(one, guarantee.delta) for one in releases],
        "training": _totals(scenario, releases),
        "accountants": _second_opinions(releases, guarantee.delta),
        "serving": [_serving(scenario, epsilon) for epsilon in scenario.news.serving_epsilons],
        "person": _person(scenario, users),
        **({} if plan is None else statement.three_party(plan)),
    }
    return dict(finite(content))


def releases_of(scenario: Scenario, users: int) -> list[Event]:
    """Every release that one training makes, to whoever pays it: together an upper bound for any
    one unit."""
    return [one.event for one in _releases(scenario, users) for _ in range(one.times)]


def _totals(scenario: Scenario, releases: tuple[Releases, ...]) -> dict[str, float]:
    """Epsilon of everything that each kind of unit pays."""
    delta, totals = scenario.privacy.delta, dict[str, float]()
    for seen_by in dict.fromkeys(one.seen_by for one in releases):
        totals[seen_by] = epsilon_of_events(
            [one.event for one in releases if one.seen_by == seen_by for _ in range(one.times)],
            delta,
        )
    return totals


def _second_opinions(releases: tuple[Releases, ...], delta: float) -> dict[str, float] | None:
    """Three accountants, where all releases are Gaussian, private, and paid by the same unit."""
    events = [one.event for one in releases for _ in range(one.times)]
    gaussian = [
        event for event in events if isinstance(event, GaussianEvent) and event.mu < math.inf
    ]
    alike = len(gaussian) == len(events) and len({one.seen_by for one in releases}) == 1
    return asdict(opinions(gaussian, delta)) if alike else None


def _serving(scenario: Scenario, epsilon: float) -> dict[str, Any]:
    guarantee = serving_guarantee(epsilon, scenario.privacy.delta)
    answers = {
        str(k): serving_epsilon(k, guarantee) if guarantee.private else math.inf for k in ANSWERS
    }
    return {
        "epsilon": epsilon,
        "unit": guarantee.unit,
        "neighbours": guarantee.neighbours,
        "fresh_answers": answers,
    }


def _person(scenario: Scenario, users: int) -> dict[str, Any]:
    """Per user (replace): training by clicks and labels, where it is priced per click; serving by
    clicks and fresh answers."""
    delta, clicks = scenario.privacy.delta, shown_clicks(scenario)
    training = None
    if of(scenario).unit != person.UNIT:
        costs = training_costs(scenario, users=_told_users(scenario, users))
        training = {
            str(c): {
                str(k): person.epsilon_of_person(costs, delta, clicks=c, labels=k)
                for k in person.LABELS
            }
            for c in clicks
        }
    serving = [
        {"epsilon": e, "clicks": served_person(scenario, e)} for e in scenario.news.serving_epsilons
    ]
    return {
        "unit": person.UNIT,
        "neighbours": person.NEIGHBOURS,
        "delta": delta,
        "training": training,
        "serving": serving,
    }


def shown_clicks(scenario: Scenario) -> tuple[int, ...]:
    """Numbers of clicks that tables show: up to a full history, which is always the last."""
    return (*(c for c in person.CLICKS if c < scenario.news.history), scenario.news.history)


def served_person(scenario: Scenario, epsilon: float) -> dict[str, dict[str, float]]:
    """Epsilon per user (replace) of fresh answers at `epsilon` per click each, by clicks of the
    history and by answers."""
    each = serving_guarantee(epsilon, scenario.privacy.delta)
    prices = {k: answer_costs(scenario, each, k) for k in person.ANSWERS}
    return {
        str(c): {
            str(k): person.epsilon_of_person(costs, scenario.privacy.delta, clicks=c)
            for k, costs in prices.items()
        }
        for c in shown_clicks(scenario)
    }


def _releases(scenario: Scenario, users: int) -> tuple[Releases, ...]:
    """Of the variant, which alone knows its prices."""
    found = of(scenario)
    return found.releases(
        scenario,
        schedule_of(scenario, _told_users(scenario, users)).passes if found.in_rounds else 1,
    )


def _told_users(scenario: Scenario, users: int) -> int:
    """Their number, read from the data only where the number of answers depends on it and it was
    not given."""
    needed = scenario.news.rounds and not users
    return max(load_news(scenario).log.train.num_users if needed else users, 1)


def table(described: dict[str, Any]) -> str:
    """The same for a terminal."""
    promise = described["guarantee"]
    lines = [f"{described['variant']}: {promise['words']}", ""]
    lines += [
        (
            f"{'release':14} {'paid by':24} {'times':>5} {'mu':>10} {'epsilon each':>13} "
            f"{'noise std / sensitivity':>24}"
        )
    ]
    for one in described["releases"]:
        mu, each, multiplier = (_number(one[key]) for key in ("mu", "epsilon", "noise_multiplier"))
        lines.append(
            f"{one['name']:14} {one['seen_by']:24} {one['times']:5} {mu:>10} {each:>13} "
            f"{multiplier:>24}"
        )
    delta = f"at delta {promise['delta']:g}"
    lines += [
        "",
        *(
            f"training, {unit}: epsilon {_number(value)} {delta}"
            for unit, value in described["training"].items()
        ),
    ]
    if described["accountants"]:
        names = {"gdp": "exact Gaussian", "pld": "privacy loss distribution", "rdp": "Renyi"}
        lines += [
            f"    by {names[key]}: epsilon {_number(value)}"
            for key, value in described["accountants"].items()
        ]
    lines += [
        "",
        f"{'serving, per click (replace)':30}" + "".join(f"{f'{k} fresh':>12}" for k in ANSWERS),
    ]
    for served in described["serving"]:
        cells = "".join(f"{_number(value):>12}" for value in served["fresh_answers"].values())
        lines.append(f"  an answer at epsilon {_number(served['epsilon']):<8}{cells}")
    lines.append("  a repeated answer costs nothing: it is remembered until a public date")
    return "\n".join(
        [*lines, "", *_person_lines(described["person"]), *statement.three_party_lines(described)]
    )


def _person_lines(said: dict[str, Any]) -> Iterator[str]:
    """What the same comes to for somebody's whole data: a table of training, and one of serving for
    each epsilon."""
    per = (
        f"per {said['unit']} ({said['neighbours']}), all clicks of one person exchanged for "
        f"others, at delta {said['delta']:g}"
    )
    yield f"what that is for a person: epsilon {per}"
    if said["training"] is None:
        yield "  training: as above, it is promised per user"
    else:
        yield f"  {'training, clicks in the history':32}" + "".join(
            f"{f'labels: {k}':>12}" for k in person.LABELS
        )
        for clicks, row in said["training"].items():
            yield f"  {clicks:>32}" + "".join(f"{_number(value):>12}" for value in row.values())
    for served in said["serving"]:
        if served["epsilon"] in ("inf", math.inf):
            continue
        head = f"serving at {_number(served['epsilon'])}, clicks"
        yield f"  {head:32}" + "".join(f"{f'{k} fresh':>12}" for k in person.ANSWERS)
        for clicks, row in served["clicks"].items():
            yield f"  {clicks:>32}" + "".join(f"{_number(value):>12}" for value in row.values())


def _number(value: float | str | None) -> str:
    return "-" if value is None else value if isinstance(value, str) else f"{value:.5g}"
