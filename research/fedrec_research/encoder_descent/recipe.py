"""Noisy gradient descent on a linear encoder of public features, with item biases, users' own
means and an entry of its own for each item: `descent`, on clicks `dp_gd.clicks`.

AM-DPSGD, the method of the paper, is `am-dpsgd`: two layers, clipped examples, no biases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from scipy import sparse

from fedrec.data.kinds import KINDS, Kind
from fedrec.errors import SettingsError
from fedrec.factorization.descent import noisy_descent
from fedrec.federation.messages import ClientStep
from fedrec.preparing import Prepared, RecipeFacts
from fedrec.recipes.descent_choices import KEYS, descent
from fedrec.registry import RecipeSpec, whole_scenario
from fedrec.settings import RecipeScenario
from fedrec_research.dp_gd import choices, clicks
from fedrec_research.encoder_descent.descent import EncoderDescent, EncoderSettings
from fedrec_research.encoder_descent.descent import client_steps as encoder_steps
from fedrec_research.feature_rows import FeatureSettings, feature_rows


def build(scenario: RecipeScenario, facts: RecipeFacts) -> Prepared:
    """The recipe and its steps."""
    choices.require_clicks(scenario, facts.kind)
    if scenario.model.gradient_radius and not facts.rated:
        raise SettingsError(
            "model.gradient_radius has no effect on clicks, of which a gradient is no sum over "
            "a user's examples",
            "Leave model.gradient_radius out.",
        )
    settings, of_encoder = settings_of(scenario)
    rows = rows_of_items(scenario, facts, of_encoder.features)
    if not facts.rated:
        return choices.descent_of_clicks(click_settings(scenario), facts, rows)
    recipe = EncoderDescent(descent(settings, facts), of_encoder, rows)
    steps = encoder_steps(settings, of_encoder.gradient_radius)
    return Prepared(recipe, steps, recipe.plan)


def client_steps(
    scenario: RecipeScenario, kind: Kind | Literal["news"]
) -> Mapping[str, ClientStep]:
    """By the name a question gives."""
    if KINDS[kind].rated:
        settings, of_encoder = settings_of(scenario)
        return encoder_steps(settings, of_encoder.gradient_radius)
    return clicks.client_steps(click_settings(scenario))


def settings_of(
    scenario: RecipeScenario,
) -> tuple[noisy_descent.DescentSettings, EncoderSettings]:
    """The scenario's values."""
    chosen = scenario.model
    epsilon = scenario.privacy.epsilon
    of_descent = descent_settings(
        scenario,
        rate=0.3,
        item_ridge=60.0 if epsilon < 0.75 else 20.0 if epsilon < 3 else 10.0,
        start_std=0.02 if chosen.biases else 1.0,
        biases=chosen.biases,
    )
    return of_descent, EncoderSettings(
        chosen.encoder_steps or 1,
        FeatureSettings(
            least_share=0.0025 if chosen.own_vectors else 0.0,
            rarity=0.5,
            identity=0.7 * chosen.own_vectors,
        ),
        gradient_radius=chosen.gradient_radius,
    )


def descent_settings(
    scenario: RecipeScenario, *, rate: float, item_ridge: float, start_std: float, biases: bool
) -> noisy_descent.DescentSettings:
    """The scenario's values, as in `recipes.noisy_descent.settings_of`, with these where they are
    left open. Steps of all outer steps together are what is accounted."""
    chosen = scenario.model
    epsilon = scenario.privacy.epsilon
    return noisy_descent.DescentSettings(
        dimension=chosen.dimension or (1 if epsilon < 0.75 else 2 if epsilon < 15 else 3),
        steps=(chosen.encoder_steps or 1)
        * (chosen.steps or (6 if epsilon < 3 else 12 if epsilon < 15 else 16)),
        rate=chosen.learning_rate or rate,
        user_ridge=chosen.user_ridge or 2.0,
        item_ridge=chosen.item_ridge or item_ridge,
        start_std=start_std,
        biases=biases,
    )


def rows_of_items(
    scenario: RecipeScenario, facts: RecipeFacts, settings: FeatureSettings
) -> sparse.csr_matrix:
    """X (m, P): of public features, unless the scenario wants none."""
    features = facts.features if scenario.model.encoder != "id" and scenario.data.features else None
    return feature_rows(features, facts.num_items, settings)


def click_settings(scenario: RecipeScenario) -> clicks.ClickDescentSettings:
    """The values that all descent on clicks has, with T gradients between two solves of users,
    items weighed alike."""
    gradients = scenario.model.encoder_steps or 1
    chosen = choices.click_settings(scenario)
    return replace(chosen, gradients=gradients, steps=gradients * chosen.steps, exponent=0.0)


SPEC = RecipeSpec(
    name="encoder-descent",
    build=build,
    client_steps=client_steps,
    evaluates=True,
    read=whole_scenario,
    keys=KEYS | {"biases", "encoder_steps", "gradient_radius", "own_vectors", "user_radius"},
)
