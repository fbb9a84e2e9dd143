"""From a scenario's words to objects: the table of recipes, and the choices a scenario leaves to them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal, Protocol

from fedrec.data.interactions import Kind
from fedrec.errors import DataError, SettingsError
from fedrec.extensions import BUILT_IN, extension
from fedrec.factorization import (
    am_dpsgd,
    clicks,
    convex_ssp,
    default,
    dp_bias,
    dp_item_item,
    dp_popularity,
    gradient,
    noisy_descent,
    public_people,
    ssp,
    weighted_descent,
)
from fedrec.factorization.collective import CollectiveRecipe
from fedrec.factorization.convex_losses import LOSSES, Loss
from fedrec.factorization.default_settings import settings_for
from fedrec.factorization.facts import PublicFacts
from fedrec.factorization.model import Model
from fedrec.factorization.published_choices import Choice, choice_for
from fedrec.federation.rounds import ClientStep, Recipe, State
from fedrec.privacy.calibration import Plan, among_three, calibrate
from fedrec.privacy.conversions import am_ssp_plan
from fedrec.privacy.guarantee import Guarantee, non_private, with_sound_delta
from fedrec.public_sides import clicks_of_people, metadata_of, people_of, sides_of
from fedrec.settings import Scenario, validated
from fedrec.settings_tables import CollectiveSettings
from fedrec.storage import finite


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
    """Everything public that a run needs. Raises SettingsError on combinations that cannot work, DataError where there is no choice."""
    if facts.num_items < 2:
        raise DataError(f"a catalogue of {facts.num_items} item leaves nothing to choose among", "Train on data of two items or more.")
    if scenario.recipe in RECIPES:
        return RECIPES[scenario.recipe](scenario, facts)
    return _of_extension(scenario, facts)


@dataclass(frozen=True, kw_only=True)
class RecipeFacts(PublicFacts):
    """What the builder of an extension knows: the public facts, what is to be promised, and how to divide it over releases."""

    guarantee: Guarantee
    aggregation: Callable[[Plan], Plan] = lambda plan: plan

    def plan(self, shares: Mapping[str, float]) -> Plan:
        """The guarantee divided over releases by their shares of mu^2, which sum to 1: only a calibrated plan runs."""
        return self.aggregation(calibrate(self.guarantee, shares))


def _of_extension(scenario: Scenario, facts: PublicFacts) -> Prepared:
    known, privacy = extension(scenario.recipe), scenario.privacy
    assert known is not None
    if facts.kind not in known.kinds:
        raise SettingsError(
            f'recipe = "{known.name}" learns from {" or ".join(known.kinds)}, but this data holds {facts.kind}', "Choose another recipe."
        )
    public = {field.name: getattr(facts, field.name) for field in fields(facts)}
    whole = RecipeFacts(**public, guarantee=guarantee_of(scenario, users=facts.num_users))
    if privacy.aggregation != "trusted":
        whole = replace(whole, aggregation=lambda plan: among_three(plan, calibrated_for=privacy.calibrate_for))
    made = known.build(known.settings.model_validate(scenario.own), whole)
    if not isinstance(made, Prepared):
        raise SettingsError(f'the builder of recipe "{known.name}" returned a {type(made).__name__}', "Return fedrec.Prepared(...).")
    return made


def client_recipe(scenario: Scenario) -> str:
    """The part of a scenario that decides what runs on a device, as canonical JSON: public, and sent to every client."""
    tables = {"recipe", "model", "privacy"} | ({"own"} if scenario.own else set())
    content = scenario.model_dump(mode="json", include=tables, exclude={"privacy": scenario.unsaid})
    return json.dumps(finite(content), sort_keys=True)


def client_steps(recipe: str, kind: Kind | Literal["news"]) -> Mapping[str, ClientStep]:
    """What runs on a device, by the name a question gives. Raises SettingsError where `recipe` is not from `client_recipe`."""
    try:
        content = json.loads(recipe)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise SettingsError("the run's recipe is not a table", "Use the same version of fedrec everywhere.")
    scenario = validated(content, source="the run's recipe")
    if scenario.recipe not in BUILT_IN:
        known = extension(scenario.recipe)
        if known is None or known.client_steps is None:
            raise SettingsError(
                f'recipe "{scenario.recipe}" names no client_steps', "Register it with client_steps=..., or use one process."
            )
        steps: Mapping[str, ClientStep] = known.client_steps(known.settings.model_validate(scenario.own), kind)
        return steps
    if scenario.recipe == "privaterec":
        from fedrec.news import central_client

        return central_client.client_steps(scenario.news.history)
    if scenario.recipe in {"published", "dp-cmf"}:
        return ssp.client_steps(published_settings(scenario, "clicks" if kind == "clicks" else "ratings"))
    if scenario.recipe == "fast-dpmf":
        return noisy_descent.client_steps(noisy_descent_settings(scenario))
    if scenario.recipe == "dp-gd":
        return weighted_descent.client_steps(weighted_descent_settings(scenario))
    if scenario.recipe == "am-dpsgd":
        return am_dpsgd.client_steps(encoder_descent_settings(scenario)[0])
    if scenario.recipe == "dp-bias":
        return dp_bias.CLIENT_STEPS
    if scenario.recipe == "dp-popularity":
        return dp_popularity.CLIENT_STEPS
    if scenario.recipe == "dp-item-item":
        return clicks.CLIENT_STEPS
    if scenario.recipe == "convex-ssp":
        return convex_ssp.client_steps(_loss(scenario))
    return clicks.CLIENT_STEPS if kind == "clicks" else default.CLIENT_STEPS


def guarantee_of(scenario: Scenario, *, users: int = 0) -> Guarantee:
    """What the scenario promises to so many users (0: not known yet); example-level alternating minimisation is not established
    (see `factorization.ssp`). Raises PrivacyError where delta promises nothing among so many (`with_sound_delta`)."""
    privacy = scenario.privacy
    if privacy.epsilon == float("inf"):
        return non_private(privacy.delta, privacy.unit)
    promised = Guarantee(privacy.epsilon, privacy.delta)
    if privacy.unit == "example":
        note = "user vectors are refit on the example that is removed, which AM-SSP Theorem 1 leaves out"
        promised = Guarantee(privacy.epsilon, privacy.delta, "example", established=False, note=note)
    return with_sound_delta(promised, users, allowed=privacy.allow_large_delta)


def _planned(scenario: Scenario, guarantee: Guarantee, shares: Mapping[str, float]) -> Plan:
    """The guarantee divided over releases, for whoever aggregates. A recipe's own choices follow from the scenario's epsilon either way."""
    plan, privacy = calibrate(guarantee, shares), scenario.privacy
    return plan if privacy.aggregation == "trusted" else among_three(plan, calibrated_for=privacy.calibrate_for)


def _published(scenario: Scenario, facts: PublicFacts) -> Prepared:
    settings, guarantee = published_settings(scenario, facts.kind), guarantee_of(scenario, users=facts.num_users)
    shares = ssp.shares(settings, facts.kind, count_share=_count_share(scenario))
    if scenario.privacy.accountant == "am-ssp" and guarantee.private:
        plan = am_ssp_plan(guarantee, shares, steps=settings.steps)
    else:
        plan = _planned(scenario, guarantee, shares)
    recipe = ssp.PublishedRecipe.of(plan, settings, facts, with_features=scenario.model.encoder == "features" and scenario.data.features)
    return Prepared(recipe, ssp.client_steps(settings), plan)


def _collective(scenario: Scenario, facts: PublicFacts) -> Prepared:
    settings = published_settings(scenario, facts.kind)
    shares = ssp.shares(settings, facts.kind, count_share=_count_share(scenario))
    plan = _planned(scenario, guarantee_of(scenario, users=facts.num_users), shares)
    private = ssp.PublishedRecipe.of(plan, settings, facts, with_features=False)
    recipe = CollectiveRecipe(private, sides_of(scenario.collective, facts), scenario.collective.start_passes)
    return Prepared(recipe, ssp.client_steps(settings), plan)


def _count_share(scenario: Scenario) -> float:
    """12% of the budget for counts at epsilon 1, 14% at 5, 20% at 20 (Ada-DPALS App. D.1)."""
    return scenario.model.count_share or (0.12 if scenario.privacy.epsilon < 3 else 0.14 if scenario.privacy.epsilon < 15 else 0.2)


def _choice(scenario: Scenario, kind: Kind) -> Choice:
    """What [model] says, and of values it leaves at zero what the rule has: for ratings by epsilon, else plain values of ours."""
    chosen = scenario.model
    if scenario.recipe == "published" and kind == "ratings":
        rule = choice_for(scenario.privacy.epsilon, features=chosen.encoder == "features")
    else:
        radius = 0.5 if chosen.encoder == "features" and scenario.recipe == "published" else 1.0
        rule = Choice(4, 3, 1.0, 10.0, radius, 1.0)
    said = {field.name: value for field in fields(Choice) if (value := getattr(chosen, field.name))}
    return replace(rule, **said)


def published_settings(scenario: Scenario, kind: Kind) -> ssp.PublishedSettings:
    """What runs on devices and on the server: functions of the scenario and of the kind of data, which both know."""
    chosen, choice = scenario.model, _choice(scenario, kind)
    descent = gradient.Descent(choice.encoder_steps, gradient.Constant(choice.learning_rate), batch_items=chosen.item_batch or None)
    return ssp.PublishedSettings(
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
    )


def _default(scenario: Scenario, facts: PublicFacts) -> Prepared:
    guarantee = guarantee_of(scenario, users=facts.num_users)
    if facts.kind == "clicks":
        chosen = clicks.default_settings(guarantee, users=facts.num_users, items=facts.num_items)
        plan = _planned(scenario, guarantee, chosen.shares)
        people = clicks_of_people(scenario.collective, facts)
        return Prepared(clicks.ClickRecipe(plan, chosen, facts, people), clicks.CLIENT_STEPS, plan)
    sides = scenario.collective
    if sides.users_values == "binary" or sides.users_threshold != CollectiveSettings().users_threshold:
        raise SettingsError("collective.users_values and users_threshold make clicks of ratings, but these are ratings", "Leave them out.")
    features = metadata_of(sides, facts.features) if scenario.model.encoder == "features" else None
    with_people, earlier = "public-users" in sides.sides, facts.earlier
    known = with_people or earlier is not None
    settings = settings_for(guarantee, users=facts.num_users, items=facts.num_items, features=features is not None, people=known)
    plan = _planned(scenario, guarantee, settings.shares)
    content = default.public_content(replace(facts, features=features), settings)

    def start() -> State:
        if earlier is not None and not with_people:
            return earlier.start(num_users=facts.num_users, weight=default.EARLIER)
        return public_people.learned(people_of(sides, facts), facts, content) if with_people else {}

    return Prepared(default.DefaultRecipe(plan, settings, facts, content, start), default.CLIENT_STEPS, plan)


def _fast_dpmf(scenario: Scenario, facts: PublicFacts) -> Prepared:
    settings = noisy_descent_settings(scenario)
    recipe = _descent(scenario, facts, settings)
    return Prepared(recipe, noisy_descent.client_steps(settings), recipe.plan)


def _weighted_descent(scenario: Scenario, facts: PublicFacts) -> Prepared:
    settings = weighted_descent_settings(scenario)
    recipe = weighted_descent.WeightedDescent(_descent(scenario, facts, settings), scenario.model.weight_exponent)
    return Prepared(recipe, weighted_descent.client_steps(settings), recipe.plan)


def _am_dpsgd(scenario: Scenario, facts: PublicFacts) -> Prepared:
    settings, of_encoder = encoder_descent_settings(scenario)
    features = facts.features if scenario.model.encoder == "features" and scenario.data.features else None
    rows = am_dpsgd.feature_rows(features, facts.num_items, of_encoder)
    recipe = am_dpsgd.EncoderDescent(_descent(scenario, facts, settings), of_encoder, rows)
    return Prepared(recipe, am_dpsgd.client_steps(settings), recipe.plan)


def _descent(scenario: Scenario, facts: PublicFacts, settings: noisy_descent.DescentSettings) -> noisy_descent.DescentRecipe:
    if facts.kind == "clicks":
        named = f'recipe = "{scenario.recipe}"'
        raise SettingsError(f"{named} fits ratings, but this data holds clicks", 'Set recipe = "default" or "published".')
    plan = _planned(scenario, guarantee_of(scenario, users=facts.num_users), noisy_descent.shares(settings))
    return noisy_descent.DescentRecipe(plan, settings, facts)


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


def weighted_descent_settings(scenario: Scenario) -> noisy_descent.DescentSettings:
    """As `noisy_descent_settings`."""
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


def encoder_descent_settings(scenario: Scenario) -> tuple[noisy_descent.DescentSettings, am_dpsgd.EncoderSettings]:
    """As `noisy_descent_settings`; steps of all outer steps together are what is accounted."""
    chosen, epsilon = scenario.model, scenario.privacy.epsilon
    gradients = chosen.encoder_steps or 1
    descent = noisy_descent.DescentSettings(
        dimension=chosen.dimension or (1 if epsilon < 0.75 else 2 if epsilon < 15 else 3),
        steps=gradients * (chosen.steps or (6 if epsilon < 3 else 12 if epsilon < 15 else 16)),
        rate=chosen.learning_rate or 0.3,
        user_ridge=chosen.user_ridge or 2.0,
        item_ridge=chosen.item_ridge or (60.0 if epsilon < 0.75 else 20.0 if epsilon < 3 else 10.0),
        start_std=0.02 if chosen.biases else 1.0,
        biases=chosen.biases,
    )
    return descent, am_dpsgd.EncoderSettings(gradients, least_share=0.0025, rarity=0.5, identity=0.7)


def _convex(scenario: Scenario, facts: PublicFacts) -> Prepared:
    if facts.kind == "ratings":
        raise SettingsError('recipe = "convex-ssp" fits clicks, but this data holds ratings', 'Set data.kind = "clicks".')
    settings = convex_settings(scenario, facts)
    plan = _planned(scenario, guarantee_of(scenario, users=facts.num_users), settings.shares)
    return Prepared(convex_ssp.ConvexRecipe(plan, settings, facts), convex_ssp.client_steps(settings.loss), plan)


def convex_settings(scenario: Scenario, facts: PublicFacts) -> convex_ssp.ConvexSettings:
    """The scenario's values; where it leaves a choice open, the logistic loss's best on validation of yelp2018. A start as by default."""
    chosen, guarantee = scenario.model, guarantee_of(scenario)
    start = clicks.settings_for(guarantee, users=facts.num_users, items=facts.num_items)
    low, middle = guarantee.epsilon < 3, guarantee.epsilon < 15
    width = chosen.dimension or max(int(0.6 * start.width), 2)
    return convex_ssp.ConvexSettings(
        loss=_loss(scenario),
        start=replace(start, width=min(width, start.heads[0]), steps=()),
        steps=chosen.steps or (1 if low else 2 if middle else 3 if guarantee.epsilon < 100 else 4),
        user_ridge=chosen.user_ridge or (0.1 if low else 1.0 if middle else 0.3),
        item_ridge=chosen.item_ridge or (30.0 if low else 10.0 if middle else 1.0),
        user_radius=chosen.user_radius or 1.0,
    )


def _dp_bias(scenario: Scenario, facts: PublicFacts) -> Prepared:
    if facts.kind == "clicks":
        raise SettingsError('recipe = "dp-bias" fits ratings, but this data holds clicks', 'Set recipe = "dp-popularity" or "default".')
    settings = dp_bias.BiasSettings()
    plan = _planned(scenario, guarantee_of(scenario, users=facts.num_users), settings.shares)
    return Prepared(dp_bias.BiasRecipe(plan, settings, facts), dp_bias.CLIENT_STEPS, plan)


def _dp_popularity(scenario: Scenario, facts: PublicFacts) -> Prepared:
    if facts.kind == "ratings":
        raise SettingsError('recipe = "dp-popularity" counts clicks, but this data holds ratings', 'Set data.kind = "clicks".')
    plan = _planned(scenario, guarantee_of(scenario, users=facts.num_users), dp_popularity.SHARES)
    return Prepared(dp_popularity.PopularityRecipe(plan, facts), dp_popularity.CLIENT_STEPS, plan)


def _dp_item_item(scenario: Scenario, facts: PublicFacts) -> Prepared:
    if facts.kind == "ratings":
        raise SettingsError('recipe = "dp-item-item" counts clicks, but this data holds ratings', 'Set data.kind = "clicks".')
    guarantee = guarantee_of(scenario, users=facts.num_users)
    settings = dp_item_item.settings_for(guarantee, users=facts.num_users, items=facts.num_items)
    plan = _planned(scenario, guarantee, settings.shares)
    return Prepared(dp_item_item.ItemItemRecipe(plan, settings, facts), clicks.CLIENT_STEPS, plan)


def _loss(scenario: Scenario) -> Loss:
    return LOSSES[scenario.model.loss](scenario.model.click_weight)


RECIPES = {
    "published": _published,
    "dp-cmf": _collective,
    "fast-dpmf": _fast_dpmf,
    "dp-gd": _weighted_descent,
    "am-dpsgd": _am_dpsgd,
    "convex-ssp": _convex,
    "dp-bias": _dp_bias,
    "dp-popularity": _dp_popularity,
    "dp-item-item": _dp_item_item,
    "default": _default,
}
