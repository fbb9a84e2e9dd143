"""`central`: clipped gradients as two vectors, summed with everybody's at an aggregator, which adds
the noise; see `news.central`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedrec.federation.rounds import ClientStep
from fedrec.news import central, central_client
from fedrec.news.checkpoints import Kept
from fedrec.news.trained import Catalogue, Progress, Sent, TrainedNews, topics_of
from fedrec.news.variant import NewsVariant, Summed, promised
from fedrec.privacy.calibration import Plan, among_three
from fedrec.settings import Scenario

if TYPE_CHECKING:
    from fedrec.news.clients import NewsClients


def train(
    scenario: Scenario, catalogue: Catalogue, fleet: NewsClients, kept: Kept
) -> Iterator[Progress | TrainedNews]:
    """See `central`."""
    recipe, done = recipe_of(scenario, catalogue), None
    plan = recipe.plan
    guarantee = plan.guarantee
    for done in central.over(recipe, fleet.link(plan, central.released(plan, kept.latest())), kept):
        yield Progress(done.round, done.rounds, f"round {done.round}/{done.rounds}")
    assert done is not None
    shape = f"{recipe.topics.topics + 1} and {done.model.W.shape[1]} numbers"
    words = "a gradient as two vectors; bounded, summed with everybody's, then noised"
    sent = (
        Sent("gradient, every round", shape, words, done.bytes_up, done.noise_stds["gradient/1"]),
    )
    spent = done.ledger.epsilon if guarantee.private else guarantee.epsilon
    yield TrainedNews(
        done.model,
        guarantee,
        spent,
        done.rounds + 1,
        sent,
        done.bytes_down,
        {"W": done.model.W.astype(np.float32)},
    )


def recipe_of(scenario: Scenario, catalogue: Catalogue) -> central.CentralRecipe:
    """The server's side."""
    return central.CentralRecipe.of(
        plan_of(scenario),
        settings_of(scenario),
        topics_of(scenario, catalogue),
        catalogue.vectors,
        scenario.news.history,
    )


def steps_of(scenario: Scenario) -> Mapping[str, ClientStep]:
    """The devices' side."""
    return central_client.client_steps(scenario.news.history)


def plan_of(scenario: Scenario) -> Plan:
    """Plan of all releases, for whoever aggregates."""
    plan, privacy = central.plan_of(promised(scenario), settings_of(scenario)), scenario.privacy
    return (
        plan
        if privacy.aggregation == "trusted"
        else among_three(plan, calibrated_for=privacy.calibrate_for)
    )


def settings_of(scenario: Scenario) -> central.CentralSettings:
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
    summed=Summed(recipe_of, steps_of),
    encoders=False,
)
