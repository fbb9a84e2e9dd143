"""Noisy gradient descent on an item encoder; see `factorization.am_dpsgd`, and of clicks
`factorization.click_descent`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from fedrec.data.kinds import KINDS, Kind
from fedrec.errors import SettingsError
from fedrec.factorization.descent import am_dpsgd, click_descent, noisy_descent, two_layer
from fedrec.federation.messages import ClientStep
from fedrec.preparing import Prepared, RecipeFacts
from fedrec.recipes import dp_gd
from fedrec.recipes import noisy_descent as unweighted
from fedrec.registry import RecipeSpec, whole_scenario
from fedrec.settings import RecipeScenario


def build(scenario: RecipeScenario, facts: RecipeFacts) -> Prepared:
    """The recipe and its steps."""
    dp_gd.require_clicks(scenario, facts.kind)
    if scenario.model.gradient_radius and not facts.rated:
        raise SettingsError(
            "model.gradient_radius has no effect on clicks, of which a gradient is no sum over "
            "a user's examples",
            "Leave model.gradient_radius out.",
        )
    settings, of_encoder = settings_of(scenario)
    two_layers = scenario.model.encoder == "two-layer"
    features = facts.features if scenario.model.encoder != "id" and scenario.data.features else None
    if two_layers and (features is None or not features.bags or not facts.rated):
        raise SettingsError(
            'model.encoder = "two-layer" is of ratings with public features of the items',
            "Leave model.encoder out, or give such data.",
        )
    rows = am_dpsgd.feature_rows(features, facts.num_items, of_encoder)
    if not facts.rated:
        return dp_gd.descent_of_clicks(click_settings(scenario), facts, rows)
    if two_layers:
        layers = two_layer_settings(scenario)
        descent = two_layer.TwoLayerDescent(unweighted.descent(settings, facts), layers, rows)
        return Prepared(descent, two_layer.client_steps(settings, layers), descent.plan)
    recipe = am_dpsgd.EncoderDescent(unweighted.descent(settings, facts), of_encoder, rows)
    steps = am_dpsgd.client_steps(settings, of_encoder.gradient_radius)
    return Prepared(recipe, steps, recipe.plan)


def client_steps(
    scenario: RecipeScenario, kind: Kind | Literal["news"]
) -> Mapping[str, ClientStep]:
    """By the name a question gives."""
    if KINDS[kind].rated:
        settings, of_encoder = settings_of(scenario)
        if scenario.model.encoder == "two-layer":
            return two_layer.client_steps(settings, two_layer_settings(scenario))
        return am_dpsgd.client_steps(settings, of_encoder.gradient_radius)
    return click_descent.client_steps(click_settings(scenario))


def settings_of(
    scenario: RecipeScenario,
) -> tuple[noisy_descent.DescentSettings, am_dpsgd.EncoderSettings]:
    """The scenario's values, as in `recipes.noisy_descent.settings_of`; steps of all outer steps
    together are what is accounted."""
    chosen = scenario.model
    epsilon = scenario.privacy.epsilon
    gradients = chosen.encoder_steps or 1
    two_layers = chosen.encoder == "two-layer"
    descent = noisy_descent.DescentSettings(
        dimension=chosen.dimension or (1 if epsilon < 0.75 else 2 if epsilon < 15 else 3),
        steps=gradients * (chosen.steps or (6 if epsilon < 3 else 12 if epsilon < 15 else 16)),
        rate=chosen.learning_rate or (3.0 if two_layers else 0.3),
        user_ridge=chosen.user_ridge or 2.0,
        item_ridge=chosen.item_ridge or (0.01 if two_layers else _ridge(epsilon)),
        start_std=0.02 if chosen.biases and not two_layers else 1.0,
        biases=chosen.biases and not two_layers,
    )
    own = chosen.own_vectors and not two_layers
    return descent, am_dpsgd.EncoderSettings(
        gradients,
        least_share=0.0025 if own else 0.0,
        rarity=0.5,
        identity=0.7 * own,
        gradient_radius=chosen.gradient_radius,
    )


def _ridge(epsilon: float) -> float:
    return 60.0 if epsilon < 0.75 else 20.0 if epsilon < 3 else 10.0


def two_layer_settings(scenario: RecipeScenario) -> two_layer.TwoLayerSettings:
    """Gamma_g 1 and all examples where the scenario leaves them open."""
    chosen = scenario.model
    return two_layer.TwoLayerSettings(
        chosen.encoder_steps or 1, chosen.gradient_radius or 1.0, chosen.example_share
    )


def click_settings(scenario: RecipeScenario) -> click_descent.ClickDescentSettings:
    """The scenario's values for clicks, as in `dp_gd.click_settings`, with T gradients between two
    solves of users, items weighed alike."""
    gradients = scenario.model.encoder_steps or 1
    chosen = dp_gd.click_settings(scenario)
    return replace(chosen, gradients=gradients, steps=gradients * chosen.steps, exponent=0.0)


SPEC = RecipeSpec(
    name="am-dpsgd",
    build=build,
    client_steps=client_steps,
    read=whole_scenario,
    keys=unweighted.KEYS
    | {"biases", "encoder_steps", "example_share", "gradient_radius", "own_vectors", "user_radius"},
)
