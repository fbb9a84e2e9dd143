"""`central`: clipped gradients as two vectors, summed with everybody's at an aggregator, which adds
the noise; see `news.central`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from fedrec.arrays import Float32s
from fedrec.federation.messages import ClientStep
from fedrec.news import central, central_client
from fedrec.news.checkpoints import Kept
from fedrec.news.trained import Catalogue, Progress, TrainedNews, topics_of
from fedrec.news.variant import NewsVariant, Summed, promised
from fedrec.privacy.bounded_mean import TopicTable
from fedrec.privacy.calibration import Plan, among_three
from fedrec.settings import NewsScenario

if TYPE_CHECKING:
    from fedrec.news.clients import NewsClients


def train(
    scenario: NewsScenario, catalogue: Catalogue, clients: NewsClients, kept: Kept
) -> Iterator[Progress | TrainedNews]:
    """See `central`."""
    recipe = recipe_of(scenario, *public_of(scenario, catalogue))

    def told(done: central.SummedDone[central.CentralModel]) -> central.Told:
        shape = f"{recipe.topics.topics + 1} and {done.model.W.shape[1]} numbers"
        words = "a gradient as two vectors; bounded, summed with everybody's, then noised"
        return shape, words, done.noise_stds["gradient/1"]

    return central.by_clients(recipe, clients, kept, told)


def public_of(scenario: NewsScenario, catalogue: Catalogue) -> tuple[TopicTable, Float32s]:
    """What the server knows of the items."""
    return topics_of(scenario, catalogue), catalogue.vectors


def recipe_of(
    scenario: NewsScenario, topics: TopicTable, vectors: Float32s
) -> central.CentralRecipe:
    """The server's side."""
    return central.CentralRecipe.of(
        plan_of(scenario), settings_of(scenario), topics, vectors, scenario.news.history
    )


def steps_of(scenario: NewsScenario) -> Mapping[str, ClientStep]:
    """The devices' side."""
    return central_client.client_steps(scenario.news.history)


def plan_of(scenario: NewsScenario) -> Plan:
    """Plan of all releases, for whoever aggregates."""
    plan = central.plan_of(promised(scenario), settings_of(scenario))
    privacy = scenario.privacy
    return (
        plan
        if privacy.aggregation == "trusted"
        else among_three(plan, calibrated_for=privacy.calibrate_for)
    )


def settings_of(scenario: NewsScenario) -> central.CentralSettings:
    """What the scenario chooses, the rest as `central` has it."""
    news = scenario.news
    chosen = {"rounds": news.rounds, "clip": news.clip, "learning_rate": news.learning_rate}
    return replace(
        central.CentralSettings(),
        **{name: value for name, value in chosen.items() if value},  # type: ignore[arg-type]
    )


VARIANT = NewsVariant(
    name="central",
    train=train,
    unit="user",
    noise_on="sums",
    plan=plan_of,
    summed=Summed(public_of, recipe_of, steps_of),
    encoders=False,
)
