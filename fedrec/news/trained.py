"""The roles that every variant plays: public catalogue in, progress and a trained recommender out,
with what it sent and cost."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from fedrec.arrays import Float32s
from fedrec.data.features import PublicFeatures
from fedrec.data.impressions import Impressions, News
from fedrec.news import text_topics, topics
from fedrec.news.sensitivity import opened
from fedrec.privacy.bounded_mean import TopicTable
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams
from fedrec.settings import NewsScenario

DEFAULT_TOPICS = 32  # by judgement, not fitted


@dataclass(frozen=True)
class Catalogue:
    """What is public: the news and a vector for each, (m, p) float32."""

    news: News
    vectors: Float32s


def item_vectors(scenario: NewsScenario, news: News, features: PublicFeatures) -> Float32s:
    """(m, p) of a scenario: what features and texts say, and `news.entity_vectors` beside it.

    Raises DataError on a file without them."""
    vectors = topics.public_vectors(news, features, seed=scenario.seed)
    if scenario.news.entity_vectors:
        vectors = np.hstack(
            [vectors, topics.entity_vectors(news, Path(scenario.news.entity_vectors))]
        )
    return vectors


class Recommender(Protocol):
    """A released model."""

    def serve(self, asked: Impressions, *, guarantee: Guarantee, key: bytes) -> Float32s:
        """Scores aligned with the candidates.

        Every user sends one answer of `guarantee` (click, replace) and no more."""
        ...


@dataclass(frozen=True)
class Progress:
    """One step of training done, of `steps`, in words."""

    step: int
    steps: int
    words: str


@dataclass(frozen=True)
class Sent:
    """One kind of thing that leaves a client: its shape and content in words, mean bytes over the
    whole training, and its noise."""

    name: str
    shape: str
    contains: str
    bytes: float
    noise_std: float


@dataclass(frozen=True)
class TrainedNews:
    """A finished training.

    `spent`: epsilon of the dearest unit by the ledger; rounds: how often a client was asked, at
    most."""

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


def topics_of(scenario: NewsScenario, catalogue: Catalogue) -> TopicTable:
    """The public topics of the scenario, those of open categories apart.

    Raises SettingsError on a category that no item has."""
    return opened(
        public_table(scenario.news.topics, scenario, catalogue),
        catalogue.news,
        scenario.news.open_categories,
    )


def public_table(kind: str, scenario: NewsScenario, catalogue: Catalogue) -> TopicTable:
    """The public rows of a value of `news.topics`, whichever the scenario has."""
    return _PUBLIC_TABLES[kind](scenario, catalogue)


def _categories(scenario: NewsScenario, catalogue: Catalogue) -> TopicTable:
    return topics.category_topics(catalogue.news)[0]


def _directions(scenario: NewsScenario, catalogue: Catalogue) -> TopicTable:
    wanted = scenario.news.basis or DEFAULT_TOPICS
    return text_topics.directions(catalogue.vectors, width=min(wanted, catalogue.vectors.shape[1]))


def _text(scenario: NewsScenario, catalogue: Catalogue) -> TopicTable:
    return text_topics.text_topics(
        catalogue.vectors,
        topics=min(scenario.news.basis or DEFAULT_TOPICS, len(catalogue.vectors)),
        rng=Streams(scenario.seed).numpy("news-topics"),
    )


_PUBLIC_TABLES = {"categories": _categories, "directions": _directions, "text": _text}
"""By the value of `news.topics`."""
