"""`fedrec account`: the plan of a scenario, from the scenario alone."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fedrec.checkpoint import finite
from fedrec.data.features import PublicFeatures
from fedrec.factorization.facts import PublicFacts
from fedrec.settings import Scenario
from fedrec.streams import Streams
from fedrec_simulations.recipes import prepare


def describe(scenario: Scenario) -> dict[str, Any]:
    """The guarantee, three accountants, and every release with its share of mu^2 and its noise multiplier.

    The plan is divided before any data is seen, so placeholder sizes stand for the data's.
    """
    facts = PublicFacts(
        1,
        1,
        "clicks" if scenario.data.kind == "clicks" else "ratings",
        scenario.data.rating_range or (1.0, 5.0),
        PublicFeatures({}),
        Streams(scenario.seed),
    )
    plan = prepare(scenario, facts).plan
    releases = [{**asdict(release), "noise_multiplier": release.noise_multiplier} for release in plan.releases]
    content = {"guarantee": {**asdict(plan.guarantee), "words": str(plan.guarantee)}, "accountants": asdict(plan.opinions())}
    return dict(finite({**content, "releases": releases, "plan": plan.digest()}))


def table(described: dict[str, Any]) -> str:
    """The same for a terminal."""
    said = described["accountants"]
    unit = f"per {described['guarantee']['unit']} ({described['guarantee']['neighbours']})"
    lines = [described["guarantee"]["words"], "", f"{'release':24} {'share':>8} {'mu':>10} {'noise std / sensitivity':>24}"]
    lines += [
        f"{release['name']:24} {release['share']:8.1%} {_number(release['mu'])} {_number(release['noise_multiplier']):>24}"
        for release in described["releases"]
    ]
    names = {"gdp": "exact Gaussian", "pld": "privacy loss distribution", "rdp": "Renyi"}
    lines += ["", *(f"epsilon {unit} by {names[key]}: {_number(value).strip()}" for key, value in said.items())]
    return "\n".join([*lines, f"plan {described['plan'][:16]}"])


def _number(value: float | str) -> str:
    return f"{value:>10}" if isinstance(value, str) else f"{value:10.5g}"
