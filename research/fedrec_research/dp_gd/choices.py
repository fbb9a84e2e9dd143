"""Choices that descent on clicks shares: keys that need clicks, the recipe of given rows, and plain
values of its settings."""

from __future__ import annotations

from scipy import sparse

from fedrec.data.kinds import KINDS, Kind
from fedrec.errors import SettingsError
from fedrec.preparing import Prepared, RecipeFacts
from fedrec.settings import RecipeScenario
from fedrec_research.dp_gd import clicks


def require_clicks(scenario: RecipeScenario, kind: Kind) -> None:
    """Raises SettingsError where ratings are given a key of clicks."""
    if scenario.model.user_radius and KINDS[kind].rated:
        raise SettingsError(
            f'model.user_radius has no effect with recipe = "{scenario.recipe}" on ratings, whose '
            "reports have norm 1",
            "Leave model.user_radius out.",
        )


def descent_of_clicks(
    settings: clicks.ClickDescentSettings, facts: RecipeFacts, rows: sparse.csr_matrix
) -> Prepared:
    """Descent of item vectors that are these rows (m, P) times what is learnt."""
    plan = facts.plan(clicks.shares(settings))
    recipe = clicks.ClickDescent(plan, settings, facts, rows)
    return Prepared(recipe, clicks.client_steps(settings), plan)


def click_settings(scenario: RecipeScenario) -> clicks.ClickDescentSettings:
    """The scenario's values; plain ones where it leaves a choice open. There are no biases."""
    chosen = scenario.model
    return clicks.ClickDescentSettings(
        dimension=chosen.dimension or 4,
        steps=chosen.steps or 6,
        rate=chosen.learning_rate or 0.5,
        user_ridge=chosen.user_ridge or 1.0,
        item_ridge=chosen.item_ridge or 10.0,
        radius=chosen.user_radius or 0.3,
        exponent=chosen.weight_exponent,
    )
