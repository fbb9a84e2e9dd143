"""Choices that recipes of noisy descent share: keys of [model], the server's plain part, and
descent on clicks."""

from __future__ import annotations

from scipy import sparse

from fedrec.data.kinds import KINDS, Kind
from fedrec.errors import SettingsError
from fedrec.factorization.descent import click_descent, noisy_descent
from fedrec.preparing import Prepared, RecipeFacts
from fedrec.settings import RecipeScenario

KEYS = frozenset({"encoder", "dimension", "steps", "user_ridge", "item_ridge", "learning_rate"})
"""Of [model], of every recipe of noisy descent."""


def descent(
    settings: noisy_descent.DescentSettings, facts: RecipeFacts
) -> noisy_descent.DescentRecipe:
    """The server's part."""
    return noisy_descent.DescentRecipe(facts.plan(noisy_descent.shares(settings)), settings, facts)


def require_clicks(scenario: RecipeScenario, kind: Kind) -> None:
    """Raises SettingsError where ratings are given a key of clicks."""
    if scenario.model.user_radius and KINDS[kind].rated:
        raise SettingsError(
            f'model.user_radius has no effect with recipe = "{scenario.recipe}" on ratings, whose '
            "reports have norm 1",
            "Leave model.user_radius out.",
        )


def descent_of_clicks(
    settings: click_descent.ClickDescentSettings, facts: RecipeFacts, rows: sparse.csr_matrix
) -> Prepared:
    """Descent of item vectors that are these rows (m, P) times what is learnt."""
    plan = facts.plan(click_descent.shares(settings))
    recipe = click_descent.ClickDescent(plan, settings, facts, rows)
    return Prepared(recipe, click_descent.client_steps(settings), plan)


def click_settings(scenario: RecipeScenario) -> click_descent.ClickDescentSettings:
    """The scenario's values; plain ones where it leaves a choice open. There are no biases."""
    chosen = scenario.model
    return click_descent.ClickDescentSettings(
        dimension=chosen.dimension or 4,
        steps=chosen.steps or 6,
        rate=chosen.learning_rate or 0.5,
        user_ridge=chosen.user_ridge or 1.0,
        item_ridge=chosen.item_ridge or 10.0,
        radius=chosen.user_radius or 0.3,
        exponent=chosen.weight_exponent,
    )
