"""`fedrec account`: the plan of a scenario, from the scenario and public sizes alone."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from fedrec.data.features import PublicFeatures
from fedrec.data.kinds import assumed
from fedrec.errors import SettingsError
from fedrec.factorization.facts import PublicFacts
from fedrec.federation.releases import noise_stds
from fedrec.privacy.accounting import LARGEST_CHECKED
from fedrec.privacy.guarantee import compared
from fedrec.randomness import Streams
from fedrec.recipes import prepare
from fedrec.run import statement
from fedrec.run.data.datasets import load_dataset, load_split, public_facts
from fedrec.settings import Scenario
from fedrec.storage import finite


def describe(scenario: Scenario, *, users: int = 0, items: int = 0) -> dict[str, Any]:
    """The guarantee, three accountants, and every release with its share of mu^2 and its noise
    multiplier; for news, see `account_news`.

    A default of 0 users and items reads the data for its sizes. Raises SettingsError where only one
    is given, PrivacyError where no noise of the plan can be drawn, and what reading raises.
    """
    if scenario.learns_news:
        from fedrec.run import account_news  # brings torch

        return account_news.describe(scenario, users=users)
    facts = _planned(scenario, users, items) if users or items else _read(scenario)
    everything = facts
    # a plan depends on whether there are features, not on what they say: nothing is decomposed for
    # it
    facts = replace(facts, features=None if facts.features is None else PublicFeatures({}))
    plan = prepare(scenario, facts).plan
    if max((release.noise_multiplier for release in plan.releases), default=0.0) > _MUCH:
        _require_grid(scenario, everything)
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
        **statement.three_party(plan),
        **statement.personal(plan, scenario.privacy.limits),
    }
    return dict(finite(content))


_MUCH = 1e3
"""A noise multiplier that grids of integers hold; beyond it a question is asked for its grid."""


def _require_grid(scenario: Scenario, facts: PublicFacts) -> None:
    """Raises PrivacyError where training would, as the first question's noise is beyond its grid
    of integers."""
    known = facts.features if facts.features is not None and facts.features.bags else None
    made = prepare(scenario, replace(facts, features=known))
    if (question := made.recipe.ask(made.recipe.begin())) is not None:
        noise_stds(question, made.plan)


def _read(scenario: Scenario) -> PublicFacts:
    dataset = load_dataset(scenario)
    return public_facts(scenario, dataset, load_split(scenario, dataset))


def _planned(scenario: Scenario, users: int, items: int) -> PublicFacts:
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
    """The same for a terminal."""
    if "variant" in described:
        from fedrec.run import account_news

        return account_news.table(described)
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
    lines.append(f"plan {described['plan'][:16]}")
    return "\n".join(
        [*lines, *statement.three_party_lines(described), *statement.personal_lines(described)]
    )


def _number(value: float | str) -> str:
    return f"{value:>10}" if isinstance(value, str) else f"{value:10.5g}"
