"""`central-encoder`: a user encoder's clipped gradients, summed with everybody's at an aggregator,
which adds the noise; see `news.central_encoder`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from fedrec.arrays import Float32s
from fedrec.federation.messages import ClientStep
from fedrec.news import central, central_encoder
from fedrec.news.central_encoder import EncoderSettings
from fedrec.news.checkpoints import Kept
from fedrec.news.trained import Catalogue, Progress, TrainedNews, topics_of
from fedrec.news.variant import NewsVariant, Summed, promised
from fedrec.privacy.bounded_mean import TopicTable
from fedrec.privacy.calibration import Plan, among_three
from fedrec.settings import NewsScenario

if TYPE_CHECKING:  # they load PyTorch
    from fedrec.news.central_encoder import EncoderModel, EncoderRecipe
    from fedrec.news.clients import NewsClients


def train(
    scenario: NewsScenario, catalogue: Catalogue, clients: NewsClients, kept: Kept
) -> Iterator[Progress | TrainedNews]:
    """See `news.central_encoder`."""

    def told(done: central.SummedDone[EncoderModel]) -> central.Told:
        std = done.noise_stds[f"gradient/{done.rounds}"]
        words = "a gradient of the user encoder; bounded, summed with everybody's, then noised"
        return f"{len(done.model.parameters):,} numbers", words, std

    return central.by_clients(
        recipe_of(scenario, *public_of(scenario, catalogue)), clients, kept, told
    )


def public_of(scenario: NewsScenario, catalogue: Catalogue) -> tuple[TopicTable, Float32s]:
    """What the server knows of the items."""
    width = settings_of(scenario).width
    return topics_of(scenario, catalogue), _news_vectors(scenario, catalogue, width)


def recipe_of(scenario: NewsScenario, topics: TopicTable, vectors: Float32s) -> EncoderRecipe:
    """The server's side."""
    from fedrec.news.central_encoder import EncoderRecipe

    return EncoderRecipe.of(
        plan_of(scenario), settings_of(scenario), topics, vectors, scenario.news.history
    )


def steps_of(scenario: NewsScenario) -> Mapping[str, ClientStep]:
    """The devices' side."""
    from fedrec.news import central_client, encoder_client

    history = scenario.news.history
    return {**central_client.client_steps(history), **encoder_client.client_steps(history)}


def plan_of(scenario: NewsScenario) -> Plan:
    """Plan of all releases, for whoever aggregates."""
    plan = central_encoder.plan_of(promised(scenario), settings_of(scenario))
    privacy = scenario.privacy
    return (
        plan
        if privacy.aggregation == "trusted"
        else among_three(plan, calibrated_for=privacy.calibrate_for)
    )


def settings_of(scenario: NewsScenario) -> EncoderSettings:
    """What the scenario chooses, the rest as `encoder_plan` has it."""
    news = scenario.news
    chosen = {
        "rounds": news.rounds,
        "clip": news.clip,
        "learning_rate": news.learning_rate,
        "bands": news.bands,
    }
    return replace(
        EncoderSettings(),
        **{name: value for name, value in chosen.items() if value},  # type: ignore[arg-type]
    )


def _news_vectors(scenario: NewsScenario, catalogue: Catalogue, width: int) -> Float32s:
    """(m, width) public vectors of the news: the leading coordinates of the catalogue's for PLM-NR,
    or of what NRMS's news encoder says of the texts before any training.

    No click is looked at."""
    if scenario.news.model == "plm-nr" and not scenario.news.language_model:
        return catalogue.vectors[:, :width]
    from fedrec.news.models import untrained_news
    from fedrec.news.topics import leading

    return leading(untrained_news(scenario, catalogue.news, catalogue.vectors), width=width)


VARIANT = NewsVariant(
    name="central-encoder",
    train=train,
    unit="user",
    noise_on="sums",
    plan=plan_of,
    summed=Summed(public_of, recipe_of, steps_of),
    encoders=False,  # its noised answers are those of `additive`
    models=frozenset({"nrms", "plm-nr"}),
    keys=frozenset({"bands", "word_vectors", "language_model"}),
)
