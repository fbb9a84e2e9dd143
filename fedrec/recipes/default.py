"""The default recipe, which chooses its settings from public numbers: for ratings
`factorization.default_ratings`, for clicks `factorization.default_clicks`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedrec.data.interactions import Interactions
from fedrec.data.kinds import KINDS, Kind, assumed
from fedrec.data.public_sources import ITEM_VECTORS, SIMILAR_ITEMS
from fedrec.errors import SettingsError
from fedrec.factorization.default_clicks import recipe as clicks
from fedrec.factorization.default_clicks import settings as click_settings
from fedrec.factorization.default_clicks import stream
from fedrec.factorization.default_ratings import recipe as default
from fedrec.factorization.default_ratings.public_directions import (
    together,
)
from fedrec.factorization.default_ratings.settings import settings_for
from fedrec.factorization.facts import PublicFacts
from fedrec.federation.messages import ClientStep, State, train
from fedrec.in_process import Loopback
from fedrec.preparing import Prepared, RecipeFacts
from fedrec.privacy.accounting import Ledger
from fedrec.privacy.calibration import calibrate
from fedrec.privacy.guarantee import non_private
from fedrec.public_sides import clicks_of_people, people_of
from fedrec.recipes.public_directions import directions, public_sources, with_metadata
from fedrec.registry import NoSettings, RecipeSpec, reading, require, whole_scenario
from fedrec.settings import RecipeScenario, Scenario
from fedrec.settings_tables.collective import CollectiveSettings

_KEPT = ("mean", "phi", "public_phi", "rest", "bias", "variance", "variances")
_STEPS: Mapping[str, Mapping[str, ClientStep]] = {
    "ratings": default.CLIENT_STEPS,
    "clicks": {**clicks.CLIENT_STEPS, **stream.CLIENT_STEPS},
}


def learned(
    people: Interactions, facts: PublicFacts, content: npt.NDArray[np.float64] | None
) -> State:
    """A state of `default.DefaultRecipe` before its first question.

    people_counts: (m,) counts expected of the private users, were they like these people.
    people_observed, people_precision: (m, d + 1) of the bias and the first d deviations of phi.

    Public people's ratings teach the recipe: it is trained on them alone, without noise.

    It leaves a model, which is where the private steps start, and for every number of it an
    observation with a variance: an item that few of them rated is hardly observed. The private
    observations of later steps are weighed beside it (`earlier.beside_known`).

    Guarantee: none is needed and none is spent. Everything here is a function of public data, and
    no private user may be among these people: see `data.public_sources`.
    """
    nothing_private = non_private(1e-5, "user")
    settings = settings_for(
        nothing_private,
        users=people.num_users,
        items=people.num_items,
        features=content is not None,
    )
    plan = calibrate(nothing_private, settings.shares)
    recipe = default.DefaultRecipe(
        plan, settings, replace(facts, num_users=people.num_users), content
    )
    link = Loopback(people, default.CLIENT_STEPS, plan, facts.streams, Ledger(nothing_private))
    *_, last = train(recipe, link, recipe.begin())
    state = last.state
    counts = np.asarray(state["counts"], np.float64) * (facts.num_users / people.num_users)
    observed = {
        "people_observed": state["observed"],
        "people_precision": 1 / np.asarray(state["observed_variance"], np.float64),
    }
    return {name: state[name] for name in _KEPT} | observed | {"people_counts": counts}


def build(scenario: RecipeScenario, facts: RecipeFacts) -> Prepared:
    """Either algorithm, by the kind of data."""
    return (_of_ratings if facts.rated else _of_clicks)(scenario, facts)


def _of_clicks(scenario: RecipeScenario, facts: RecipeFacts) -> Prepared:
    if facts.horizon:  # steps follow the model, and no prefix sum does
        made: Prepared = require("dp-item-item").build(NoSettings(), facts)
        return made
    content, public = public_sources(scenario, facts)
    chosen = click_settings.default_settings(
        facts.guarantee,
        users=facts.num_users,
        items=facts.num_items,
        public=bool(public),
        timed=facts.timed,
    )
    plan = facts.plan(chosen.shares)
    people = clicks_of_people(scenario.collective, facts)
    recipe = clicks.ClickRecipe(plan, chosen, facts, people, content, public)
    return Prepared(recipe, clicks.CLIENT_STEPS, plan)


def _of_ratings(scenario: RecipeScenario, facts: RecipeFacts) -> Prepared:
    if facts.horizon:
        raise SettingsError(
            "privacy.horizon is of clicks: no sum of ratings is released as a stream yet",
            'Read clicks (data.kind = "clicks"), or leave the horizon out.',
        )
    sides = scenario.collective
    if (
        sides.users_values == "binary"
        or sides.users_threshold != CollectiveSettings().users_threshold
    ):
        raise SettingsError(
            (
                "collective.users_values and users_threshold make clicks of ratings, but these "
                "are ratings"
            ),
            "Leave them out.",
        )
    with_people = "public-users" in sides.sides
    earlier = facts.earlier
    known = with_people or earlier is not None
    settings = settings_for(
        facts.guarantee,
        users=facts.num_users,
        items=facts.num_items,
        features=_tells_items(scenario, facts),
        people=known,
    )
    plan = facts.plan(settings.shares)
    dimension = settings.feature_dimension
    content, *others = directions(scenario, facts, dimension)
    several = tuple(P for P in (content, *others) if P is not None)
    if content is None or len(several) > 1:
        content = together(several, dimension=dimension)

    def start() -> State:
        if earlier is not None and not with_people:
            return earlier.start(num_users=facts.num_users, weight=default.EARLIER)
        return learned(people_of(sides, facts), facts, content) if with_people else {}

    return Prepared(
        default.DefaultRecipe(plan, settings, facts, content, start, several),
        default.CLIENT_STEPS,
        plan,
    )


def _tells_items(scenario: RecipeScenario, facts: PublicFacts) -> bool:
    """Whether a plan of ratings counts on public sides of items, whatever they say: a release for
    first directions is then not needed."""
    known = facts.features
    if scenario.model.encoder != "features" or known is None:
        return False
    linked = bool({SIMILAR_ITEMS, ITEM_VECTORS} & known.bags.keys())
    return linked or with_metadata(scenario, facts).features is not None


def client_steps(
    scenario: RecipeScenario, kind: Kind | Literal["news"]
) -> Mapping[str, ClientStep]:
    """Client steps of either algorithm."""
    return _STEPS[kind]


def check(scenario: Scenario) -> str:
    """Checks a scenario. [collective] may say whose ratings are public and which metadata counts;
    how much it counts, the recipe finds itself."""
    sides = scenario.collective
    compared = scenario.compare.published
    if found := sides.contradiction() or sides.unknown_to_default():
        return found
    if sides.chosen() and not scenario.data.features:
        return (
            "data.features = false leaves out all public data, public users too: choose with "
            "collective.sides"
        )
    if sides.chosen() and compared:
        return "compare.published knows nothing of collective.*: leave one of them out"
    if not compared and (ignored := scenario.model.chosen() - {"encoder"}):
        return (
            f"model.{min(ignored)} needs recipe = {reading(min(ignored))}: the default recipe "
            "chooses it from public numbers"
        )
    if compared and not KINDS[assumed(scenario.data.kind)].rated:
        return (
            "compare.published is for ratings: no rule was found that chooses the papers' "
            "settings for clicks fairly"
        )
    return ""


SPEC = RecipeSpec(
    name="default",
    build=build,
    client_steps=client_steps,
    evaluates=True,
    cohorts=("ratings",),
    streams=("clicks",),
    read=whole_scenario,
    keys=frozenset({"encoder"}),
    collective=True,
    compares_published=True,
    check=check,
)
