"""`fedrec account`: the plan of a scenario, from the scenario and public sizes alone.

Of news: what each release of a variant costs, what training adds up to by unit, what serving costs,
and what all that is for a person. Nothing there needs the catalogue. How often a user answers
depends on the number of users where `news.rounds` is given: then, and only then, it is read from
the data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from fedrec.data.features import PublicFeatures
from fedrec.data.kinds import assumed
from fedrec.errors import SettingsError
from fedrec.factorization.facts import PublicFacts, public_facts
from fedrec.federation.releases import noise_stds
from fedrec.news import person as tables
from fedrec.news.answer_costs import answer_costs
from fedrec.news.person import training_costs
from fedrec.news.variant import Releases, of, promise, schedule_of
from fedrec.privacy import person
from fedrec.privacy.accounting import LARGEST_CHECKED, GaussianEvent, opinions
from fedrec.privacy.click_accounting import serving_epsilon
from fedrec.privacy.guarantee import compared
from fedrec.privacy.mixtures import Event, epsilon_of_events
from fedrec.privacy.selection import PureEvent
from fedrec.randomness import Streams
from fedrec.recipes import prepare
from fedrec.run import statement
from fedrec.run.data.datasets import load_dataset, load_split
from fedrec.run.data.news import load_news
from fedrec.run.news_run import answer_promise
from fedrec.run.traffic import bytes_of_a_person
from fedrec.settings import DataScenario, NewsScenario, Scenario
from fedrec.storage import finite

_MUCH = 1e3
"""A noise multiplier that grids of integers hold; beyond it a question is asked for its grid."""
ANSWERS = (1, 10, 50, 100)
"""Fresh answers to one user whose serving epsilons are added up."""


def describe(
    scenario: Scenario, *, users: int = 0, items: int = 0, traffic: bool = False
) -> dict[str, Any]:
    """The guarantee, three accountants, and every release with its share of mu^2 and its noise
    multiplier; for news also totals of training by what pays them, answers of serving, and what
    all that is for a person.

    A default of 0 users and items reads the data for its sizes. traffic: also bytes of a person, of
    ratings and clicks. Raises SettingsError where only one is given, or traffic of news,
    PrivacyError where no noise of the plan can be drawn, and what reading raises.
    """
    if scenario.learns_news:
        if traffic:
            raise SettingsError("--bytes is of ratings and clicks", "Leave it out.")
        return dict(finite(_describe_news(scenario, users)))
    if users or items:
        facts = _planned(scenario, users, items)
    else:
        dataset = load_dataset(scenario)
        facts = public_facts(scenario.seed, dataset, load_split(scenario, dataset))
    known = facts.features if facts.features is not None and facts.features.bags else None
    everything = replace(facts, features=known)
    if facts.rated:
        # a plan of ratings depends on whether there are features, not on what they say: nothing is
        # decomposed for it
        facts = replace(facts, features=None if facts.features is None else PublicFeatures({}))
    else:
        facts = everything
    plan = prepare(scenario, facts).plan
    if max((release.noise_multiplier for release in plan.releases), default=0.0) > _MUCH:
        # refused where training would be, as the first question's noise is beyond its grid
        made = prepare(scenario, everything)
        if (question := made.recipe.ask(made.recipe.begin())) is not None:
            noise_stds(question, made.plan)
    releases = [
        {**asdict(release), "noise_multiplier": release.noise_multiplier}
        for release in plan.releases
    ]
    content = {
        "guarantee": {**asdict(plan.guarantee), "words": str(plan.guarantee)},
        "accountants": asdict(plan.opinions()),
        "releases": releases,
        "training": {
            "users": facts.num_users,
            "items": facts.num_items,
            "kind": facts.kind,
            "features": facts.features is not None,
        },
        "plan": plan.digest(),
        **({"bytes": bytes_of_a_person(scenario, facts)} if traffic else {}),
        **statement.three_party(plan),
        **statement.personal(plan, scenario.privacy.limits),
    }
    return dict(finite(content))


def _planned(scenario: DataScenario, users: int, items: int) -> PublicFacts:
    """Facts of data that is not there yet; features are expected unless the scenario forbids
    them."""
    if users < 1 or items < 1:
        raise SettingsError(
            f"--users {users} --items {items}: both must be at least 1",
            "Give both, or neither to read the data's.",
        )
    kind = assumed(scenario.data.kind)
    scale = scenario.data.rating_range or (1.0, 5.0)
    return PublicFacts(
        users,
        items,
        kind,
        scale,
        PublicFeatures({}) if scenario.data.features else None,
        Streams(scenario.seed),
    )


def table(described: dict[str, Any]) -> str:
    """Return the description as a table for a terminal."""
    if "variant" in described:
        return _table_of_news(described)
    said = described["accountants"]
    unit = compared(described["guarantee"]["unit"], described["guarantee"]["neighbours"])
    facts = described["training"]
    sizes = f"trained on {facts['kind']} of {facts['users']:,} users and {facts['items']:,} items"
    lines = [
        described["guarantee"]["words"],
        sizes,
        "",
        f"{'release':24} {'share':>8} {'mu':>10} {'noise std / sensitivity':>24}",
    ]
    lines += [
        (
            f"{release['name']:24} {release['share']:8.1%} {_number(release['mu'])} "
            f"{_number(release['noise_multiplier']):>24}"
        )
        for release in described["releases"]
    ]
    names = {"gdp": "exact Gaussian", "pld": "privacy loss distribution", "rdp": "Renyi"}
    late = said["gdp"] != "inf" and said["gdp"] > LARGEST_CHECKED
    why = (
        f"above epsilon = {LARGEST_CHECKED:g}"
        if late
        else f"at delta = {described['guarantee']['delta']:g}"
    )
    shown = {
        key: f"not computed {why}" if value == "inf" != said["gdp"] else _number(value)
        for key, value in said.items()
    }
    lines += [
        "",
        *(f"epsilon {unit} by {names[key]}: {value.strip()}" for key, value in shown.items()),
    ]
    if moved := described.get("bytes"):
        lines.append(
            f"a person sends {moved['sent'] / 1e3:,.3g} kB and receives "
            f"{moved['received'] / 1e3:,.3g} kB in {moved['rounds']} rounds (measured on planted "
            "people)"
        )
    lines.append(f"plan {described['plan'][:16]}")
    return "\n".join(
        [*lines, *statement.three_party_lines(described), *statement.personal_lines(described)]
    )


def _number(value: float | str) -> str:
    return f"{value:>10}" if isinstance(value, str) else f"{value:10.5g}"


# --- news ---


def _as_dict(one: Releases, delta: float) -> dict[str, Any]:
    """Return releases as an object for people and JSON; noise_multiplier is noise std / L2
    sensitivity, and None for answers, which have no such thing."""
    mu = None if isinstance(one.event, PureEvent) else one.event.mu
    each = epsilon_of_events([one.event], delta)
    numbers = {
        "times": one.times,
        "mu": mu,
        "epsilon": each,
        "noise_multiplier": None if mu is None else 1 / mu,
    }
    return {"name": one.event.name, "seen_by": one.seen_by, **numbers}


def _describe_news(scenario: NewsScenario, users: int) -> dict[str, Any]:
    """Releases, totals of training by what pays them, and answers of serving. users: 0 reads the
    data where the plan needs their number.

    Raises SettingsError and what reading raises.
    """
    # read only where the number of answers depends on it, and it was not given
    needed = scenario.news.rounds and not users
    users = max(load_news(scenario).log.train.num_users if needed else users, 1)
    found = of(scenario)
    releases = _releases(scenario, users)
    plan = found.plan(scenario) if found.plan is not None else None
    guarantee = promise(scenario) if plan is None else plan.guarantee
    return {
        "guarantee": {**asdict(guarantee), "words": str(guarantee)},
        "variant": scenario.news.variant,
        "releases": [_as_dict(one, guarantee.delta) for one in releases],
        "training": _totals(scenario, releases),
        "accountants": _second_opinions(releases, guarantee.delta),
        "serving": [_serving(scenario, epsilon) for epsilon in scenario.news.serving_epsilons],
        "person": _person(scenario, users),
        **({} if plan is None else statement.three_party(plan)),
    }


def releases_of(scenario: NewsScenario, users: int) -> list[Event]:
    """Every release that one training makes, to whoever pays it: together an upper bound for any
    one unit."""
    return [one.event for one in _releases(scenario, users) for _ in range(one.times)]


def _totals(scenario: NewsScenario, releases: tuple[Releases, ...]) -> dict[str, float]:
    """Epsilon of everything that each kind of unit pays."""
    delta = scenario.privacy.delta
    totals = dict[str, float]()
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


def _serving(scenario: NewsScenario, epsilon: float) -> dict[str, Any]:
    guarantee = answer_promise(epsilon, scenario)

    def together(k: int) -> float:
        if not guarantee.private:
            return math.inf
        if scenario.news.serving_noise == "gaussian":
            return serving_epsilon(k, guarantee)
        return epsilon_of_events(answer_costs(scenario, guarantee, k).history, guarantee.delta)

    answers = {str(k): together(k) for k in ANSWERS}
    return {
        "epsilon": epsilon,
        "unit": guarantee.unit,
        "neighbours": guarantee.neighbours,
        "fresh_answers": answers,
    }


def _person(scenario: NewsScenario, users: int) -> dict[str, Any]:
    """Per user (replace): training by clicks and labels, where it is priced per click; serving by
    clicks and fresh answers."""
    delta = scenario.privacy.delta
    clicks = shown_clicks(scenario)
    training = None
    if of(scenario).unit != person.UNIT:
        costs = training_costs(scenario, users=users)
        training = {
            str(c): {
                str(k): person.epsilon_of_person(costs, delta, clicks=c, labels=k)
                for k in tables.LABELS
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


def shown_clicks(scenario: NewsScenario) -> tuple[int, ...]:
    """Numbers of clicks that tables show: up to a full history, which is always the last."""
    return (*(c for c in tables.CLICKS if c < scenario.news.history), scenario.news.history)


def served_person(scenario: NewsScenario, epsilon: float) -> dict[str, dict[str, float]]:
    """Epsilon per user (replace) of fresh answers at `epsilon` per click each, by clicks of the
    history and by answers."""
    each = answer_promise(epsilon, scenario)
    prices = {k: answer_costs(scenario, each, k) for k in tables.ANSWERS}
    return {
        str(c): {
            str(k): person.epsilon_of_person(costs, scenario.privacy.delta, clicks=c)
            for k, costs in prices.items()
        }
        for c in shown_clicks(scenario)
    }


def _releases(scenario: NewsScenario, users: int) -> tuple[Releases, ...]:
    """Return the releases of the variant, which alone knows its prices."""
    found = of(scenario)
    return found.releases(
        scenario,
        schedule_of(scenario, max(users, 1)).passes if found.in_rounds else 1,
    )


def _table_of_news(described: dict[str, Any]) -> str:
    """What `_describe_news` found, for a terminal."""
    promise = described["guarantee"]
    lines = [f"{described['variant']}: {promise['words']}", ""]
    lines += [
        (
            f"{'release':14} {'paid by':24} {'times':>5} {'mu':>10} {'epsilon each':>13} "
            f"{'noise std / sensitivity':>24}"
        )
    ]
    for one in described["releases"]:
        mu, each, multiplier = (_short(one[key]) for key in ("mu", "epsilon", "noise_multiplier"))
        lines.append(
            f"{one['name']:14} {one['seen_by']:24} {one['times']:5} {mu:>10} {each:>13} "
            f"{multiplier:>24}"
        )
    delta = f"at delta {promise['delta']:g}"
    lines += [
        "",
        *(
            f"training, {unit}: epsilon {_short(value)} {delta}"
            for unit, value in described["training"].items()
        ),
    ]
    if described["accountants"]:
        names = {"gdp": "exact Gaussian", "pld": "privacy loss distribution", "rdp": "Renyi"}
        lines += [
            f"    by {names[key]}: epsilon {_short(value)}"
            for key, value in described["accountants"].items()
        ]
    lines += [
        "",
        f"{'serving, per click (replace)':30}" + "".join(f"{f'{k} fresh':>12}" for k in ANSWERS),
    ]
    for served in described["serving"]:
        cells = "".join(f"{_short(value):>12}" for value in served["fresh_answers"].values())
        lines.append(f"  an answer at epsilon {_short(served['epsilon']):<8}{cells}")
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
            f"{f'labels: {k}':>12}" for k in tables.LABELS
        )
        for clicks, row in said["training"].items():
            yield f"  {clicks:>32}" + "".join(f"{_short(value):>12}" for value in row.values())
    for served in said["serving"]:
        if served["epsilon"] in ("inf", math.inf):
            continue
        head = f"serving at {_short(served['epsilon'])}, clicks"
        yield f"  {head:32}" + "".join(f"{f'{k} fresh':>12}" for k in tables.ANSWERS)
        for clicks, row in served["clicks"].items():
            yield f"  {clicks:>32}" + "".join(f"{_short(value):>12}" for value in row.values())


def _short(value: float | str | None) -> str:
    return "-" if value is None else value if isinstance(value, str) else f"{value:.5g}"
