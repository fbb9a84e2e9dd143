"""The papers' recipe, made sound: AM-SSP with features, Ada-DPALS and DPALS without
(`factorization.am_ssp`), with values by epsilon where a scenario leaves them open, and the papers'
own conversions on request."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from fedrec.data.kinds import KINDS, Kind, assumed
from fedrec.factorization.am_ssp import client as ssp_client
from fedrec.factorization.am_ssp import client as ssp_settings
from fedrec.factorization.am_ssp import recipe as ssp
from fedrec.federation.messages import ClientStep
from fedrec.preparing import Prepared, RecipeFacts
from fedrec.privacy.accounting import epsilon_of
from fedrec.privacy.calibration import Plan, PlannedRelease
from fedrec.privacy.guarantee import Guarantee
from fedrec.recipes.ssp_choices import (
    KEYS,
    count_share,
    plain,
    require_ratings,
    settings_by,
    steady,
)
from fedrec.registry import RecipeSpec, whole_scenario
from fedrec.settings import RecipeScenario


def am_ssp_plan(guarantee: Guarantee, shares: Mapping[str, float], *, steps: int) -> Plan:
    """The plan of AM-SSP Thm 2 to the letter: every outer step's pair (A, b) gets the whole nominal
    epsilon.

    A pair with sigma / w_bar = s is two releases of mu = 1 / s, so a step has mu^2 = epsilon^2 / (4
    log(1/delta)) and the run `steps` times that. `shares` divide it as in `calibrate`. Raises
    ValueError for an infinite epsilon: nothing to convert.

    AM-SSP Thm 2 takes sigma = w_bar sqrt(8 log(1/delta)) / epsilon. It needs epsilon <
    log(1/delta), and covers ONE item update: S outer steps spend sqrt(S) times as much. The
    resulting plan says "not established" and what exact accounting gives.
    """
    if not guarantee.private:
        raise ValueError("no privacy needs no conversion")
    mu = math.sqrt(steps / (4 * math.log(1 / guarantee.delta))) * guarantee.epsilon
    true = epsilon_of(mu, guarantee.delta)
    note = (
        f"the paper's Theorem 2 covers one of {steps} item updates; exact accounting of all "
        f"releases gives epsilon {true:.4g}"
    )
    total = math.fsum(shares.values())
    releases = tuple(
        PlannedRelease(name, part / total, mu * math.sqrt(part / total))
        for name, part in shares.items()
    )
    note = "; ".join(filter(None, (guarantee.note, note)))
    return Plan(replace(guarantee, established=False, note=note), releases)


def build(scenario: RecipeScenario, facts: RecipeFacts) -> Prepared:
    """Its plan by the paper's own conversion where `privacy.accountant` says so."""
    settings = settings_of(scenario, facts.kind)
    require_ratings(settings, facts.kind)
    shares = ssp_settings.shares(settings, facts.kind, count_share=count_share(scenario))
    if scenario.privacy.accountant == "am-ssp" and facts.guarantee.private:
        plan = am_ssp_plan(facts.guarantee, shares, steps=settings.steps)
    else:
        plan = facts.plan(shares)
    recipe = ssp.PublishedRecipe.of(
        plan,
        settings,
        facts,
        with_features=scenario.model.encoder == "features" and scenario.data.features,
    )
    return Prepared(recipe, ssp_client.client_steps(settings), plan)


def client_steps(
    scenario: RecipeScenario, kind: Kind | Literal["news"]
) -> Mapping[str, ClientStep]:
    """What the server's settings say, since both are functions of the scenario and of the kind of
    data."""
    return ssp_client.client_steps(settings_of(scenario, assumed(kind)))


def settings_of(scenario: RecipeScenario, kind: Kind) -> ssp_settings.PublishedSettings:
    """The scenario's values; of those that it leaves open, for ratings what the rule chooses by
    epsilon, else plain values of ours."""
    features = scenario.model.encoder == "features"
    rule = (
        steady(scenario.privacy.epsilon, features=features, own_means=scenario.model.own_means)
        if KINDS[kind].rated
        else plain(0.5 if features else 1.0)
    )
    return settings_by(rule, scenario)


SPEC = RecipeSpec(
    name="published",
    build=build,
    client_steps=client_steps,
    evaluates=True,
    read=whole_scenario,
    keys=KEYS,
    whole_users=False,
)
