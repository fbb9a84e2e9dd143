"""DP-CMF: private ratings or clicks factorised together with public matrices; see
`factorization.collective`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from fedrec.data.kinds import Kind
from fedrec.factorization.am_ssp import client as ssp_client
from fedrec.factorization.am_ssp import client as ssp_settings
from fedrec.factorization.am_ssp import recipe as ssp
from fedrec.factorization.collective import CollectiveRecipe
from fedrec.federation.messages import ClientStep
from fedrec.preparing import Prepared, RecipeFacts
from fedrec.public_sides import sides_of
from fedrec.recipes.ssp_choices import KEYS, count_share, plain, require_ratings, settings_by
from fedrec.registry import RecipeSpec, whole_scenario
from fedrec.settings import RecipeScenario

_ENCODER = {
    "encoder",
    "encoder_steps",
    "learning_rate",
    "item_batch",
    "resamples",
    "example_share",
    "optimizer",
}


def build(scenario: RecipeScenario, facts: RecipeFacts) -> Prepared:
    """The sides are public, so the plan is that of the private ratings alone."""
    settings = settings_of(scenario)
    require_ratings(settings, facts.kind)
    plan = facts.plan(ssp_settings.shares(settings, facts.kind, count_share=count_share(scenario)))
    private = ssp.PublishedRecipe.of(plan, settings, facts, with_features=False)
    recipe = CollectiveRecipe(
        private, sides_of(scenario.collective, facts), scenario.collective.start_passes
    )
    return Prepared(recipe, ssp_client.client_steps(settings), plan)


def client_steps(
    scenario: RecipeScenario, kind: Kind | Literal["news"]
) -> Mapping[str, ClientStep]:
    """The published recipe's."""
    return ssp_client.client_steps(settings_of(scenario))


def settings_of(scenario: RecipeScenario) -> ssp_settings.PublishedSettings:
    """The scenario's values; plain ones where it leaves a choice open."""
    return settings_by(plain(1.0), scenario)


def check(scenario: RecipeScenario) -> str:
    """Contradictions among the sides, and keys of an item encoder."""
    if found := scenario.collective.contradiction():
        return found
    if ignored := scenario.model.chosen() & _ENCODER:
        return (
            f'model.{min(ignored)} is of an item encoder trained by gradient: "dp-cmf" solves '
            "item vectors in closed form"
        )
    if scenario.model.solve != "projected":
        return (
            'model.solve is of recipe = "published": beside public sides "dp-cmf" projects the '
            "private statistics, then solves"
        )
    if not scenario.data.features:
        return (
            'data.features = false leaves "dp-cmf" without public data: choose what it uses with '
            "collective.sides"
        )
    return ""


SPEC = RecipeSpec(
    name="dp-cmf",
    build=build,
    client_steps=client_steps,
    evaluates=True,
    read=whole_scenario,
    keys=KEYS,
    collective=True,
    check=check,
)
