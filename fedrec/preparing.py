"""Objects for a scenario's words: the recipe that it names, prepared for public facts, and what of
it runs on devices."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Protocol, cast

from fedrec.data.kinds import Kind
from fedrec.errors import DataError, SettingsError
from fedrec.factorization.facts import PublicFacts
from fedrec.factorization.held_out import RELEASE, EvaluatedRecipe, evaluated_steps
from fedrec.factorization.rankers import Model
from fedrec.federation.hostile_clients import on_checked_grid
from fedrec.federation.messages import ClientStep, Curated, Question, Recipe, State
from fedrec.federation.releases import Limits, mean_weight, with_limits
from fedrec.privacy.calibration import Plan, among_three, calibrate
from fedrec.privacy.guarantee import Guarantee, non_private, with_sound_delta
from fedrec.registry import fitting, require
from fedrec.settings import Scenario, validated
from fedrec.settings_tables.training import PrivacySettings
from fedrec.storage import finite, told_json

# of [model]; clients of version 1 refuse them, so defaults are left out
LATER_KEYS = ("gradient_radius", "optimizer", "own_means", "own_vectors", "ridge_exponent", "solve")
_AS_KIND = {
    "ratings": "Read ratings: data.columns.rating and data.rating_range (rating= and rating_range= "
    "of Dataset.from_frame)",
    "clicks": 'Read clicks: data.kind = "clicks" (Dataset.from_frame without rating=, or with '
    "click_threshold=)",
}
"""How the same rows are read as another kind of data."""


class TrainableRecipe(Recipe, Protocol):
    """A recipe whose states are models."""

    def model(self, state: State) -> Model:
        """The model of a state."""


@dataclass(frozen=True)
class Prepared:
    """A recipe, what runs on its devices, and the plan both obey.

    Args:
        recipe: The server's half, a state machine over releases.
        steps: The devices' half: from a question and a person's events to a report, by the
            step's name.
        plan: The guarantee, divided over releases.
        curated: Of a recipe that needs everybody's data in one place, what its curator computes
            in place of devices.

    >>> from fedrec.factorization.facts import PublicFacts
    >>> from fedrec.randomness import Streams
    >>> from fedrec.settings import validated
    >>> facts = PublicFacts(300, 120, "clicks", (1.0, 1.0), None, Streams(1))
    >>> made = prepare(validated({"recipe": "dp-popularity"}, source="example"), facts)
    >>> [release.name for release in made.plan.releases], list(made.steps)
    (['counts'], ['popularity/counts'])
    """

    recipe: TrainableRecipe
    steps: Mapping[str, ClientStep]
    plan: Plan
    curated: Curated | None = None


@dataclass(frozen=True, kw_only=True)
class RecipeFacts(PublicFacts):
    """What the builder of a recipe knows: the public facts, what is to be promised, and how to
    divide it over releases.

    Args:
        num_users: How many take part.
        num_items: Of the catalogue.
        kind: "ratings" or "clicks".
        value_range: Lowest and highest value.
        features: What is public of items, if anything.
        streams: Of the run's public seed.
        earlier: What an earlier training on other events released.
        timed: Whether events have times, and lists are of what follows all of them.
        serving: A released model of the same items, which people compare the new one with.
        period: First and last time of the events, between which a stream counts weeks.
        guarantee: What is to be promised.
        three: Of three aggregators, whom epsilon is calibrated for; None where one is trusted.
        hostile_clients: Whether three check clients.
        limits: Shares of users by their personal epsilon.
        evaluation_share: Of mu^2, for what people say of the model at the end.
        horizon: Weeks of a stream; 0 for one training.

    >>> from fedrec.privacy.guarantee import Guarantee
    >>> from fedrec.randomness import Streams
    >>> promised = Guarantee(5.0, 1e-5, "user")
    >>> facts = RecipeFacts(300, 120, "clicks", (1.0, 1.0), None, Streams(1), guarantee=promised)
    >>> plan = facts.plan({"a": 0.8, "b": 0.2})
    >>> [round(release.noise_multiplier, 2) for release in plan.releases]
    [1.0, 1.99]
    """

    guarantee: Guarantee
    three: Literal["one-corrupt", "outsiders"] | None = None
    hostile_clients: Literal["trusted-sites", "checked"] = "trusted-sites"
    limits: Limits = field(default_factory=dict)
    evaluation_share: float = 0.0
    horizon: int = 0

    def plan(self, shares: Mapping[str, float]) -> Plan:
        """The guarantee divided over releases by their shares of mu^2, which sum to 1: only a
        calibrated plan runs.

        A recipe's own choices follow from epsilon alike, whoever aggregates.

        Args:
            shares: By the name of a release.

        Returns:
            The plan, each release of which has its mu.

        Raises:
            ValueError: A share is not positive and finite, or there is none.
        """
        if told := self.evaluation_share:
            left = (1 - told) / math.fsum(shares.values())
            shares = {name: left * share for name, share in shares.items()} | {RELEASE: told}
        plan = replace(calibrate(self.guarantee, shares), horizon=self.horizon)
        return (
            plan
            if self.three is None
            else among_three(plan, calibrated_for=self.three, hostile_clients=self.hostile_clients)
        )


def until(recipe: TrainableRecipe, week: int) -> TrainableRecipe:
    """The recipe of a stream, which asks for so many weeks and no more."""
    shorter: TrainableRecipe = replace(cast(Any, recipe), weeks=min(week, recipe.plan.horizon))
    return shorter


def prepare(scenario: Scenario, facts: PublicFacts) -> Prepared:
    """Everything public that a run needs.

    Args:
        scenario: The run's settings.
        facts: Numbers of users and items, kind, scale and public features.

    Returns:
        The server's half, the steps of its devices, and the plan.

    Raises:
        SettingsError: The combination cannot work.
        DataError: There is no choice between items.

    >>> from fedrec.factorization.facts import PublicFacts
    >>> from fedrec.randomness import Streams
    >>> from fedrec.settings import validated
    >>> facts = PublicFacts(300, 120, "clicks", (1.0, 1.0), None, Streams(1))
    >>> made = prepare(validated({"recipe": "dp-popularity"}, source="example"), facts)
    >>> made.plan.guarantee.epsilon
    5.0
    """
    if facts.num_items < 2:
        raise DataError(
            f"a catalogue of {facts.num_items} item leaves nothing to choose among",
            "Train on data of two items or more.",
        )
    known = require(scenario.recipe)
    privacy = scenario.privacy
    if facts.kind not in known.kinds:
        raise SettingsError(
            (
                f'recipe = "{known.name}" fits {" or ".join(known.kinds)}, but this data holds '
                f"{facts.kind}"
            ),
            (f"{_AS_KIND[known.kinds[0]]}, or set recipe = one of {fitting(facts.kind)}."),
        )
    promised = guarantee_of(privacy, users=facts.num_users)
    limits = privacy.limits
    # what sums of weighted reports are divided by
    counted = max(1, round(facts.num_users * mean_weight(limits, promised)))
    whole = RecipeFacts(
        **{one.name: getattr(facts, one.name) for one in fields(PublicFacts)}
        | {"num_users": counted},
        guarantee=promised,
        three=None if privacy.aggregation == "trusted" else privacy.calibrate_for,
        hostile_clients=privacy.hostile_clients,
        limits=limits,
        evaluation_share=privacy.evaluation_share,
        horizon=privacy.horizon,
    )
    made = known.build(known.chosen(scenario), whole)
    if not isinstance(made, Prepared):
        raise SettingsError(
            f'the builder of recipe "{known.name}" returned a {type(made).__name__}',
            "Return fedrec.Prepared(...).",
        )
    if privacy.evaluation_share:
        evaluated = EvaluatedRecipe(made.recipe, made.plan, facts, facts.serving)
        made = replace(made, recipe=evaluated, steps=evaluated_steps(made.steps))
    if limits:
        made = replace(
            made,
            steps={name: with_limits(step, limits, promised) for name, step in made.steps.items()},
        )
    return replace(made, recipe=_OnCheckedGrid(made.recipe)) if made.plan.checked else made


@dataclass(frozen=True)
class _OnCheckedGrid:
    """A recipe whose questions are on a grid on which what clients share can be checked; else the
    recipe itself."""

    recipe: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.recipe, name)

    def ask(self, state: State) -> Question | None:
        """The recipe's."""
        question = self.recipe.ask(state)
        return None if question is None else on_checked_grid(question, self.recipe.plan)


def client_recipe(scenario: Scenario) -> str:
    """The part of a scenario that decides what runs on a device, as canonical JSON: public, and
    sent to every client."""
    tables = {"recipe", "model", "privacy"} | ({"own"} if scenario.own else set())
    fields = type(scenario.model).model_fields
    plain = {name for name in LATER_KEYS if getattr(scenario.model, name) == fields[name].default}
    content = scenario.model_dump(
        mode="json", include=tables, exclude={"privacy": scenario.unsaid, "model": plain}
    )
    return json.dumps(finite(content), sort_keys=True)


def client_steps(recipe: str, kind: Kind | Literal["news"]) -> Mapping[str, ClientStep]:
    """What runs on a device, by the name a question gives.

    Raises SettingsError where `recipe` is not from `client_recipe`, or fits other data."""
    try:
        content = told_json(recipe)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise SettingsError(
            "the run's recipe is not a table", "Use the same version of fedrec everywhere."
        )
    scenario = validated(content, source="the run's recipe")
    known = require(scenario.recipe)
    if known.client_steps is None:
        raise SettingsError(
            f'recipe "{known.name}" names no client_steps',
            "Register it with client_steps=..., or use one process.",
        )
    if kind not in known.kinds:
        raise SettingsError(
            f'the run\'s recipe "{known.name}" fits {" or ".join(known.kinds)}, but the run is '
            f"about {kind}",
            "The server's operator must correct it.",
        )
    steps: Mapping[str, ClientStep] = known.client_steps(known.chosen(scenario), kind)
    return evaluated_steps(steps) if scenario.privacy.evaluation_share else steps


def guarantee_of(privacy: PrivacySettings, *, users: int = 0) -> Guarantee:
    """What is promised to so many users (0: not known yet); example-level alternating
    minimisation is not established (see `am_ssp.recipe`). Raises PrivacyError where delta
    promises nothing among so many (`with_sound_delta`)."""
    if privacy.epsilon == float("inf"):
        return non_private(privacy.delta, privacy.unit)
    promised = Guarantee(privacy.epsilon, privacy.delta)
    if privacy.unit == "example":
        note = (
            "user vectors are refit on the example that is removed, which AM-SSP Theorem 1 "
            "leaves out"
        )
        promised = Guarantee(
            privacy.epsilon, privacy.delta, "example", established=False, note=note
        )
    return with_sound_delta(promised, users, allowed=privacy.allow_large_delta)
