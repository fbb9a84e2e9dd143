"""Ways to train and serve a news recommender, by name, behind one pair of roles: what trains, and what ranks for those who ask.

| variant       | what leaves a client                                               | unit, neighbours |
|---------------|--------------------------------------------------------------------|------------------|
| `additive`    | noised topic coefficients and randomised labels, once              | click, replace   |
| `central`     | clipped gradients, to an aggregator that adds noise to their sum   | user, add/remove |
| `local`       | gradients behind noised attention and randomised labels            | click, replace   |
| `printed`     | the paper's gradients: NOT ESTABLISHED                             | click, replace   |
| `dp-fedrec`   | whole gradients, clipped and noised on the device                  | click, replace   |
| `fedrec`      | whole gradients, bare                                              | none             |
| `centralized` | the data                                                           | none             |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedrec.data.impressions import Impressions, News
from fedrec.privacy.accounting import mu_for
from fedrec.privacy.guarantee import Guarantee, non_private
from fedrec.privaterec import reports_training, topics
from fedrec.privaterec.additive import TopicTable, noise_std
from fedrec.privaterec.report_model import ReportModelSettings
from fedrec.privaterec.spending import plan_training
from fedrec.settings import NEWS_UNITS, Scenario
from fedrec.streams import Streams, SystemStreams

Float32s = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Catalogue:
    """What is public: the news and a vector for each, (m, p) float32."""

    news: News
    vectors: Float32s


class Recommender(Protocol):
    """A released model."""

    def serve(self, asked: Impressions, *, guarantee: Guarantee, key: bytes) -> Float32s:
        """Scores aligned with the candidates. Every user sends one answer of `guarantee` (click, replace) and no more."""
        ...


@dataclass(frozen=True)
class Progress:
    """One step of training done, of `steps`, in words."""

    step: int
    steps: int
    words: str


@dataclass(frozen=True)
class Sent:
    """One kind of thing that leaves a client: its shape and content in words, mean bytes over the whole training, and its noise."""

    name: str
    shape: str
    contains: str
    bytes: float
    noise_std: float


@dataclass(frozen=True)
class TrainedNews:
    """A finished training. `spent`: epsilon of the dearest unit by the ledger; rounds: how often a client was asked, at most."""

    recommender: Recommender
    guarantee: Guarantee
    spent: float
    rounds: int
    sent: tuple[Sent, ...]
    bytes_down: float
    parameters: dict[str, Float32s]

    @property
    def bytes_up(self) -> float:
        """Mean bytes a client sends over the whole training."""
        return sum(part.bytes for part in self.sent)


Training = Callable[[Scenario, Catalogue, Impressions], Iterator[Progress | TrainedNews]]


def train_news(scenario: Scenario, catalogue: Catalogue, train: Impressions) -> Iterator[Progress | TrainedNews]:
    """Train the scenario's variant, yielding progress and, last, the trained model. Raises PrivacyError where a ledger refuses."""
    return VARIANTS[scenario.news.variant](scenario, catalogue, train)


def promised(scenario: Scenario) -> Guarantee:
    """What training promises, in the unit of the variant."""
    privacy, unit = scenario.privacy, NEWS_UNITS[scenario.news.variant]
    neighbours = "add/remove" if unit == "user" else "replace"
    if privacy.epsilon == float("inf"):
        return non_private(privacy.delta, unit, neighbours)  # type: ignore[arg-type]
    return Guarantee(privacy.epsilon, privacy.delta, unit, neighbours)  # type: ignore[arg-type]


def noise_of(scenario: Scenario) -> Streams | SystemStreams:
    """Where noise comes from."""
    return Streams(scenario.seed) if scenario.privacy.noise == "seeded" else SystemStreams()


def topics_of(scenario: Scenario, catalogue: Catalogue) -> TopicTable:
    """The public topics of the scenario."""
    if scenario.news.topics == "categories":
        return topics.category_topics(catalogue.news)[0]
    wanted = min(scenario.news.basis or DEFAULT_TOPICS, len(catalogue.vectors))
    return topics.text_topics(catalogue.vectors, topics=wanted, rng=Streams(scenario.seed).numpy("news-topics"))


DEFAULT_TOPICS = 32


@dataclass(frozen=True)
class AdditiveRecommender:
    """Ranks from one noised report per user."""

    trained: reports_training.Trained

    def serve(self, asked: Impressions, *, guarantee: Guarantee, key: bytes) -> Float32s:
        """See `Recommender`."""
        return reports_training.serve(self.trained, asked, mu=mu_for(guarantee.epsilon, guarantee.delta), key=key).scores


def additive(scenario: Scenario, catalogue: Catalogue, train: Impressions) -> Iterator[Progress | TrainedNews]:
    """The default; `reports_training` proves its guarantee."""
    table, news, guarantee = topics_of(scenario, catalogue), scenario.news, promised(scenario)
    plan, settings = plan_training(guarantee), _report_settings(scenario)
    got = reports_training.collect(train, table, plan, history=news.history, noise=noise_of(scenario))
    serving = [noise_std(table, news.history, mu=mu_for(e, scenario.privacy.delta)) for e in news.serving_epsilons]
    levels = reports_training.NoiseLevels.of(got.coefficients.noise_std, serving)
    streams = Streams(scenario.seed)
    for done in reports_training.fit(got, table, catalogue.vectors, settings, history=news.history, levels=levels, streams=streams):
        if isinstance(done, reports_training.EpochDone):
            yield Progress(done.epoch, settings.epochs, f"epoch {done.epoch}/{settings.epochs}: loss {done.loss:.4f}")
            continue
        B, answers = table.topics, len(train) / max(train.num_users, 1)
        sent = (
            Sent("coefficients", f"{B} numbers", "the mean of the history's topics, noised on the device", 4.0 * B, got.coefficients.noise_std),
            Sent("labels", f"{answers:.1f} answers", "which candidate was clicked, randomised on the device", got.bytes_up - 4.0 * B, 0.0),
        )
        arrays = {name: p.detach().numpy() for name, p in done.model.named_parameters()}
        spent = got.ledger.epsilon if guarantee.private else guarantee.epsilon
        yield TrainedNews(AdditiveRecommender(done), guarantee, spent, 1, sent, 0.0, arrays)


def _report_settings(scenario: Scenario) -> ReportModelSettings:
    chosen = {"epochs": scenario.news.epochs, "learning_rate": scenario.news.learning_rate}
    return ReportModelSettings(**{name: value for name, value in chosen.items() if value})  # type: ignore[arg-type]


VARIANTS: dict[str, Training] = {"additive": additive}
