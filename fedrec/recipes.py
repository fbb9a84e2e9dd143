"""From a scenario's words to objects: the table of recipes, and the choices a scenario leaves to them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from fedrec.data.interactions import Kind
from fedrec.errors import SettingsError
from fedrec.factorization import clicks, default, gradient, noisy_descent, ssp
from fedrec.factorization.collective import CollectiveRecipe
from fedrec.factorization.facts import PublicFacts
from fedrec.factorization.model import Model
from fedrec.federation.rounds import ClientStep, Recipe, State
from fedrec.privacy.calibration import Plan, calibrate
from fedrec.privacy.conversions import am_ssp_plan
from fedrec.privacy.guarantee import Guarantee, non_private
from fedrec.public_sides import sides_of
from fedrec.settings import Scenario, validated


class TrainableRecipe(Recipe, Protocol):
    """A recipe whose states are models."""

    def model(self, state: State) -> Model:
        """The model of a state."""


@dataclass(frozen=True)
class Prepared:
    """A recipe, what runs on its devices, and the plan both obey."""

    recipe: TrainableRecipe
    steps: Mapping[str, ClientStep]
    plan: Plan


def prepare(scenario: Scenario, facts: PublicFacts) -> Prepared:
    """Everything public that a run needs. Raises SettingsError on combinations that cannot work."""
    return RECIPES[scenario.recipe](scenario, facts)


def client_recipe(scenario: Scenario) -> str:
    """The part of a scenario that decides what runs on a device, as canonical JSON: public, and sent to every client."""
    return json.dumps(scenario.model_dump(mode="json", include={"recipe", "model", "privacy"}), sort_keys=True)


def client_steps(recipe: str, kind: Kind | Literal["news"]) -> Mapping[str, ClientStep]:
    """What runs on a device, by the name a question gives. Raises SettingsError where `recipe` is not from `client_recipe`."""
    try:
        content = json.loads(recipe)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise SettingsError("the run's recipe is not a table", "Use the same version of fedrec everywhere.")
    scenario = validated(content, source="the run's recipe")
    if scenario.recipe == "privaterec":
        from fedrec.privaterec import central_client

        return central_client.client_steps(scenario.news.history)
    if scenario.recipe in {"published", "dp-cmf"}:
        return ssp.client_steps(published_settings(scenario))
    if scenario.recipe == "fast-dpmf":
        return noisy_descent.client_steps(noisy_descent_settings(scenario))
    return clicks.CLIENT_STEPS if kind == "clicks" else default.CLIENT_STEPS


def guarantee_of(scenario: Scenario) -> Guarantee:
    """What the scenario promises; example-level alternating minimisation is not established (see `factorization.ssp`)."""
    privacy = scenario.privacy
    if privacy.epsilon == float("inf"):
        return non_private(privacy.delta, privacy.unit)
    if privacy.unit == "example":
        note = "user vectors are refit on the example that is removed, which AM-SSP Theorem 1 leaves out"
        return Guarantee(privacy.epsilon, privacy.delta, "example", established=False, note=note)
    return Guarantee(privacy.epsilon, privacy.delta)


def _published(scenario: Scenario, facts: PublicFacts) -> Prepared:
    settings, guarantee = published_settings(scenario), guarantee_of(scenario)
    shares = ssp.shares(settings, facts.kind, count_share=_count_share(scenario))
    if scenario.privacy.accountant == "am-ssp" and guarantee.private:
        plan = am_ssp_plan(guarantee, shares, steps=settings.steps)
    else:
        plan = calibrate(guarantee, shares)
    recipe = ssp.PublishedRecipe.of(plan, settings, facts, with_features=scenario.model.encoder == "features" and scenario.data.features)
    return Prepared(recipe, ssp.client_steps(settings), plan)


def _collective(scenario: Scenario, facts: PublicFacts) -> Prepared:
    settings = published_settings(scenario)
    plan = calibrate(guarantee_of(scenario), ssp.shares(settings, facts.kind, count_share=_count_share(scenario)))
    private = ssp.PublishedRecipe.of(plan, settings, facts, with_features=False)
    recipe = CollectiveRecipe(private, sides_of(scenario.collective, facts), scenario.collective.start_passes)
    return Prepared(recipe, ssp.client_steps(settings), plan)


def _count_share(scenario: Scenario) -> float:
    """12% of the budget for counts at epsilon 1, 14% at 5, 20% at 20 (Ada-DPALS App. D.1)."""
    return scenario.model.count_share or (0.12 if scenario.privacy.epsilon < 3 else 0.14 if scenario.privacy.epsilon < 15 else 0.2)


def published_settings(scenario: Scenario) -> ssp.PublishedSettings:
    """The scenario's values, and the papers' kind of values where it leaves a choice open."""
    chosen = scenario.model
    descent = gradient.Descent(
        chosen.encoder_steps or 50, gradient.Constant(chosen.learning_rate or 0.005), batch_items=chosen.item_batch or None
    )
    return ssp.PublishedSettings(
        dimension=chosen.dimension or 4,
        steps=chosen.steps or 3,
        user_ridge=chosen.user_ridge or 1.0,
        item_ridge=chosen.item_ridge or 10.0,
        user_radius=chosen.user_radius or (0.5 if chosen.encoder == "features" and scenario.recipe == "published" else 1.0),
        target_radius=chosen.target_radius or 1.0,
        weights=chosen.weights,
        weight_exponent=chosen.weight_exponent,
        descent=descent,
        resamples=chosen.resamples,
        example_share=chosen.example_share,
        max_items=chosen.max_items_per_user,
        sampling=chosen.sampling,
        unit="example" if scenario.privacy.unit == "example" else "user",
    )


def _default(scenario: Scenario, facts: PublicFacts) -> Prepared:
    guarantee = guarantee_of(scenario)
    if facts.kind == "clicks":
        chosen = clicks.settings_for(guarantee, users=facts.num_users, items=facts.num_items)
        plan = calibrate(guarantee, chosen.shares)
        return Prepared(clicks.ClickRecipe(plan, chosen, facts), clicks.CLIENT_STEPS, plan)
    with_features = facts.features is not None and scenario.model.encoder == "features"
    settings = default.settings_for(guarantee, users=facts.num_users, items=facts.num_items, features=with_features)
    plan = calibrate(guarantee, settings.shares)
    content = default.public_content(facts, settings) if with_features else None
    return Prepared(default.DefaultRecipe(plan, settings, facts, content), default.CLIENT_STEPS, plan)


def _fast_dpmf(scenario: Scenario, facts: PublicFacts) -> Prepared:
    if facts.kind == "clicks":
        raise SettingsError('recipe = "fast-dpmf" fits ratings, but this data holds clicks', 'Set recipe = "default" or "published".')
    settings = noisy_descent_settings(scenario)
    plan = calibrate(guarantee_of(scenario), noisy_descent.shares(settings))
    return Prepared(noisy_descent.DescentRecipe(plan, settings, facts), noisy_descent.client_steps(settings), plan)


def noisy_descent_settings(scenario: Scenario) -> noisy_descent.DescentSettings:
    """The scenario's values; where it leaves a choice open, what was best on validation of one split of MovieLens 1M."""
    chosen, epsilon = scenario.model, scenario.privacy.epsilon
    return noisy_descent.DescentSettings(
        dimension=chosen.dimension or 2,
        steps=chosen.steps or (3 if epsilon < 3 else 6 if epsilon < 15 else 12),
        rate=chosen.learning_rate or (0.7 if epsilon < 15 else 1.0),
        user_ridge=chosen.user_ridge or 4.0,
        item_ridge=chosen.item_ridge or 5.0,
    )


RECIPES = {"published": _published, "dp-cmf": _collective, "fast-dpmf": _fast_dpmf, "default": _default}
