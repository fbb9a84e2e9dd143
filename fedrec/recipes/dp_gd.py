"""Noisy gradient descent with rare items weighed up; see `factorization.weighted_descent`, and of
clicks `factorization.click_descent`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from scipy import sparse

from fedrec.data.kinds import KINDS, Kind
from fedrec.errors import SettingsError
from fedrec.factorization.am_ssp.model import PublishedModel
from fedrec.factorization.descent import click_descent, noisy_descent, weighted_descent
from fedrec.federation.messages import ClientStep
from fedrec.preparing import Prepared, RecipeFacts
from fedrec.recipes import noisy_descent as unweighted
from fedrec.registry import RecipeSpec, whole_scenario
from fedrec.settings import RecipeScenario


def build(scenario: RecipeScenario, facts: RecipeFacts) -> Prepared:
    """The recipe and its steps."""
    require_clicks(scenario, facts.kind)
    if not facts.rated:
        of_clicks = click_settings(scenario)
        rows = sparse.csr_matrix(sparse.identity(facts.num_items))
        return descent_of_clicks(of_clicks, facts, rows)
    settings = settings_of(scenario)
    recipe = weighted_descent.WeightedDescent(
        unweighted.descent(settings, facts), scenario.model.weight_exponent
    )
    return Prepared(recipe, weighted_descent.client_steps(settings), recipe.plan)


def client_steps(
    scenario: RecipeScenario, kind: Kind | Literal["news"]
) -> Mapping[str, ClientStep]:
    """By the name a question gives."""
    if KINDS[kind].rated:
        return weighted_descent.client_steps(settings_of(scenario))
    return click_descent.client_steps(click_settings(scenario))


def settings_of(scenario: RecipeScenario) -> noisy_descent.DescentSettings:
    """The scenario's values, as in `recipes.noisy_descent.settings_of`.

    Without biases, the paper's model (`ada-dpgd`), vectors alone must learn what popular items
    have in common: in many steps, and with users who follow them little. Best of 12 settings on
    validation ratings of MovieLens 100K and planted ones, and of four on those of MovieLens 1M, at
    epsilon 1, 5 and 20."""
    chosen = scenario.model
    epsilon = scenario.privacy.epsilon
    if not chosen.biases:
        return noisy_descent.DescentSettings(
            dimension=chosen.dimension or 2,
            steps=chosen.steps or 24,
            rate=chosen.learning_rate or 1.5,
            user_ridge=chosen.user_ridge or 20.0,
            item_ridge=chosen.item_ridge or 10.0,
            start_std=1.0,
            biases=False,
        )
    return noisy_descent.DescentSettings(
        dimension=chosen.dimension or (1 if epsilon < 3 else 2),
        steps=chosen.steps or (6 if epsilon < 7 else 12 if epsilon < 15 else 24),
        rate=chosen.learning_rate or (0.7 if epsilon < 15 else 0.5),
        user_ridge=chosen.user_ridge or 2.0,
        item_ridge=chosen.item_ridge or (60.0 if epsilon < 0.75 else 30.0 if epsilon < 3 else 10.0),
        start_std=0.05,
    )


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


SPEC = RecipeSpec(
    name="dp-gd",
    build=build,
    client_steps=client_steps,
    models={"published": PublishedModel},
    read=whole_scenario,
    keys=unweighted.KEYS | {"biases", "user_radius", "weight_exponent"},
)
