"""The papers' recipe, made sound: AM-SSP with features, Ada-DPALS and DPALS without; see
`factorization.ssp`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Literal

from fedrec.data.kinds import KINDS, Kind, assumed
from fedrec.errors import SettingsError
from fedrec.factorization.am_ssp import client as ssp_client
from fedrec.factorization.am_ssp import gradient
from fedrec.factorization.am_ssp import model as ssp_model
from fedrec.factorization.am_ssp import recipe as ssp
from fedrec.factorization.am_ssp import settings as ssp_settings
from fedrec.factorization.am_ssp.optimizers import Adam, GradientDescent
from fedrec.factorization.published_choices import Choice, steady
from fedrec.federation.messages import ClientStep
from fedrec.preparing import Prepared, RecipeFacts
from fedrec.privacy.conversions import am_ssp_plan
from fedrec.registry import RecipeSpec, whole_scenario
from fedrec.settings import RecipeScenario
from fedrec.settings_tables.training import ModelSettings

KEYS = frozenset(ModelSettings.model_fields) - {"loss", "click_weight", "biases", "own_vectors"}
"""Of [model]."""


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


def require_ratings(settings: ssp_settings.PublishedSettings, kind: Kind) -> None:
    """Raises SettingsError where users would have means of clicks."""
    if settings.own_means and not KINDS[kind].rated:
        raise SettingsError(
            "model.own_means is of ratings: a user's clicks have no mean",
            "Leave model.own_means out.",
        )


def client_steps(
    scenario: RecipeScenario, kind: Kind | Literal["news"]
) -> Mapping[str, ClientStep]:
    """What the server's settings say, since both are functions of the scenario and of the kind of
    data."""
    return ssp_client.client_steps(settings_of(scenario, assumed(kind)))


def count_share(scenario: RecipeScenario) -> float:
    """12% of the budget for counts at epsilon 1, 14% at 5, 20% at 20 (Ada-DPALS App. D.1)."""
    return scenario.model.count_share or (
        0.12 if scenario.privacy.epsilon < 3 else 0.14 if scenario.privacy.epsilon < 15 else 0.2
    )


def settings_of(scenario: RecipeScenario, kind: Kind) -> ssp_settings.PublishedSettings:
    """The scenario's values; of those that it leaves open, for ratings what the rule chooses by
    epsilon, else plain values of ours."""
    features = scenario.model.encoder == "features"
    rule = (
        steady(scenario.privacy.epsilon, features=features)
        if KINDS[kind].rated
        else plain(0.5 if features else 1.0)
    )
    return settings_by(rule, scenario)


def plain(user_radius: float) -> Choice:
    """Values for every epsilon."""
    return Choice(4, 3, 1.0, 10.0, user_radius, 1.0)


def settings_by(rule: Choice, scenario: RecipeScenario) -> ssp_settings.PublishedSettings:
    """What [model] says, and of values that it leaves at zero what the rule has."""
    chosen = scenario.model
    choice = replace(
        rule,
        **{field.name: value for field in fields(Choice) if (value := getattr(chosen, field.name))},
    )
    optimizer = Adam() if chosen.optimizer == "adam" else GradientDescent()
    descent = gradient.Descent(
        choice.encoder_steps,
        gradient.Constant(choice.learning_rate),
        optimizer,
        chosen.item_batch or None,
    )
    return ssp_settings.PublishedSettings(
        dimension=choice.dimension,
        steps=choice.steps,
        user_ridge=choice.user_ridge,
        item_ridge=choice.item_ridge,
        user_radius=choice.user_radius,
        target_radius=choice.target_radius,
        weights=chosen.weights,
        weight_exponent=chosen.weight_exponent,
        descent=descent,
        resamples=chosen.resamples,
        example_share=chosen.example_share,
        max_items=chosen.max_items_per_user,
        sampling=chosen.sampling,
        unit="example" if scenario.privacy.unit == "example" else "user",
        own_means=chosen.own_means,
        pseudo_inverse=chosen.solve == "pseudo-inverse",
    )


SPEC = RecipeSpec(
    name="published",
    build=build,
    client_steps=client_steps,
    models={"published": ssp_model.PublishedModel},
    read=whole_scenario,
    keys=KEYS,
    whole_users=False,
)
