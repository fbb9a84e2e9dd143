"""Noisy gradient descent with rare items weighed up; see `factorization.weighted_descent`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from fedrec.data.interactions import Kind
from fedrec.factorization import noisy_descent, weighted_descent
from fedrec.federation.rounds import ClientStep
from fedrec.preparing import Prepared, RecipeFacts
from fedrec.recipes import fast_dpmf
from fedrec.registry import RecipeSpec, whole_scenario
from fedrec.settings import Scenario


def build(scenario: Scenario, facts: RecipeFacts) -> Prepared:
    """The recipe and its steps."""
    settings = settings_of(scenario)
    recipe = weighted_descent.WeightedDescent(
        fast_dpmf.descent(settings, facts), scenario.model.weight_exponent
    )
    return Prepared(recipe, weighted_descent.client_steps(settings), recipe.plan)


def client_steps(scenario: Scenario, kind: Kind | Literal["news"]) -> Mapping[str, ClientStep]:
    """By the name a question gives."""
    return weighted_descent.client_steps(settings_of(scenario))


def settings_of(scenario: Scenario) -> noisy_descent.DescentSettings:
    """As `fast_dpmf.settings_of`."""
    chosen, epsilon = scenario.model, scenario.privacy.epsilon
    return noisy_descent.DescentSettings(
        dimension=chosen.dimension or (3 if not chosen.biases else 1 if epsilon < 3 else 2),
        steps=chosen.steps or (6 if epsilon < 7 else 12 if epsilon < 15 else 24),
        rate=chosen.learning_rate or (0.7 if epsilon < 15 else 0.5),
        user_ridge=chosen.user_ridge or 2.0,
        item_ridge=chosen.item_ridge or (60.0 if epsilon < 0.75 else 30.0 if epsilon < 3 else 10.0),
        start_std=0.05 if chosen.biases else 1.0,
        biases=chosen.biases,
    )


SPEC = RecipeSpec(
    name="dp-gd",
    build=build,
    client_steps=client_steps,
    kinds=("ratings",),
    read=whole_scenario,
    keys=fast_dpmf.KEYS | {"biases", "weight_exponent"},
)
