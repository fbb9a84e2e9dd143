"""Clicks by a convex loss through quadratic statistics; see `factorization.convex_ssp`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from fedrec.data.kinds import Kind
from fedrec.factorization.convex import recipe as convex_ssp
from fedrec.factorization.convex.client import LOSSES, Loss
from fedrec.factorization.default_clicks import settings as click_settings
from fedrec.federation.messages import ClientStep
from fedrec.preparing import Prepared, RecipeFacts
from fedrec.registry import RecipeSpec, whole_scenario
from fedrec.settings import RecipeScenario


def build(scenario: RecipeScenario, facts: RecipeFacts) -> Prepared:
    """The recipe and its steps."""
    settings = settings_of(scenario, facts)
    plan = facts.plan(settings.shares)
    return Prepared(
        convex_ssp.ConvexRecipe(plan, settings, facts), convex_ssp.client_steps(settings.loss), plan
    )


def client_steps(
    scenario: RecipeScenario, kind: Kind | Literal["news"]
) -> Mapping[str, ClientStep]:
    """By the name a question gives."""
    return convex_ssp.client_steps(loss_of(scenario))


def settings_of(scenario: RecipeScenario, facts: RecipeFacts) -> convex_ssp.ConvexSettings:
    """The scenario's values; where it leaves a choice open, the logistic loss's best on validation
    of yelp2018. A start as by default."""
    chosen = scenario.model
    guarantee = facts.guarantee
    start = click_settings.settings_for(guarantee, users=facts.num_users, items=facts.num_items)
    low = guarantee.epsilon < 3
    middle = guarantee.epsilon < 15
    width = chosen.dimension or max(int(0.6 * start.width), 2)
    return convex_ssp.ConvexSettings(
        loss=loss_of(scenario),
        start=replace(start, width=min(width, facts.num_items), steps=()),
        steps=chosen.steps or (1 if low else 2 if middle else 3 if guarantee.epsilon < 100 else 4),
        user_ridge=chosen.user_ridge or (0.1 if low else 1.0 if middle else 0.3),
        item_ridge=chosen.item_ridge or (30.0 if low else 10.0 if middle else 1.0),
        user_radius=chosen.user_radius or 1.0,
    )


def loss_of(scenario: RecipeScenario) -> Loss:
    """What a click and its absence cost."""
    return LOSSES[scenario.model.loss](scenario.model.click_weight)


SPEC = RecipeSpec(
    name="convex-ssp",
    build=build,
    client_steps=client_steps,
    kinds=("clicks",),
    models={"convex-ssp": convex_ssp.ConvexModel},
    read=whole_scenario,
    keys=frozenset(
        {
            "encoder",
            "loss",
            "click_weight",
            "dimension",
            "steps",
            "user_ridge",
            "item_ridge",
            "user_radius",
        }
    ),
)
