"""Noisy gradient descent on item vectors, the established sibling of `dpmf`; see
`factorization.descent.noisy_descent`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from fedrec.data.kinds import Kind
from fedrec.factorization.descent import noisy_descent
from fedrec.federation.messages import ClientStep
from fedrec.preparing import Prepared, RecipeFacts
from fedrec.recipes.descent_choices import KEYS, descent
from fedrec.registry import RecipeSpec
from fedrec.settings import RecipeScenario


def build(settings: noisy_descent.DescentSettings, facts: RecipeFacts) -> Prepared:
    """The recipe and its steps."""
    recipe = descent(settings, facts)
    return Prepared(recipe, noisy_descent.client_steps(settings), recipe.plan)


def client_steps(
    settings: noisy_descent.DescentSettings, kind: Kind | Literal["news"]
) -> Mapping[str, ClientStep]:
    """By the name a question gives."""
    return noisy_descent.client_steps(settings)


def settings_of(scenario: RecipeScenario) -> noisy_descent.DescentSettings:
    """The scenario's values; where it leaves a choice open, what was best on validation of one
    split of MovieLens 1M."""
    chosen = scenario.model
    epsilon = scenario.privacy.epsilon
    return noisy_descent.DescentSettings(
        dimension=chosen.dimension or 2,
        steps=chosen.steps or (3 if epsilon < 3 else 6 if epsilon < 15 else 12),
        rate=chosen.learning_rate or (0.7 if epsilon < 15 else 1.0),
        user_ridge=chosen.user_ridge or 4.0,
        item_ridge=chosen.item_ridge or 5.0,
    )


SPEC = RecipeSpec(
    name="noisy-descent",
    build=build,
    client_steps=client_steps,
    evaluates=True,
    kinds=("ratings",),
    read=settings_of,
    keys=KEYS,
)
