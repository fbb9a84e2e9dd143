"""`centralized`: the clicks themselves are collected. No privacy, the ceiling of the others.

Training on collected clicks without privacy: the ceiling of what is trained on devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedrec.arrays import Int64s
from fedrec.encoders.news_model import NewsModel, needed_news
from fedrec.news.checkpoints import Kept
from fedrec.news.clients import NewsClients
from fedrec.news.federated import recommender_of
from fedrec.news.local_update import Devices
from fedrec.news.models import news_model
from fedrec.news.reports_training import report_loss
from fedrec.news.trained import Catalogue, Progress, Sent, TrainedNews
from fedrec.news.trainer_state import Progressing, fresh_dropout
from fedrec.news.variant import ENCODER, LEARNING_RATE, NewsVariant, promised
from fedrec.privacy.accounting import GaussianEvent
from fedrec.privacy.click_accounting import Costs
from fedrec.randomness import Streams
from fedrec.settings import NewsScenario

if TYPE_CHECKING:
    from fedrec.news.clients import NewsClients

_BATCH = 64  # users of a step: whole ones, so that each is encoded once


def train(
    scenario: NewsScenario, catalogue: Catalogue, clients: NewsClients, kept: Kept
) -> Iterator[Progress | TrainedNews]:
    """See `news.collected`."""

    return centralized(scenario, catalogue, clients, kept)


def costs(scenario: NewsScenario, passes: int) -> Costs:
    """Everything, once."""
    return Costs((GaussianEvent("data", math.inf, "click", "replace"),), ())


VARIANT = NewsVariant(
    name="centralized",
    train=train,
    noise_on="nothing",
    costs=costs,
    on_devices=False,
    keys=ENCODER,
)


def centralized(
    scenario: NewsScenario, catalogue: Catalogue, clients: NewsClients, kept: Kept
) -> Iterator[Progress | TrainedNews]:
    """Adam on the collected data: the ceiling of the federated ones. No privacy."""
    train = clients.data()
    epochs = scenario.news.epochs or 4
    streams = Streams(scenario.seed)
    model = news_model(scenario, catalogue.news, catalogue.vectors, basis=scenario.news.basis)
    devices = Devices.of(train, history=scenario.news.history, labels=None)
    optimiser = torch.optim.Adam(
        model.parameters(), lr=scenario.news.learning_rate or LEARNING_RATE
    )
    at = Progressing(model, optimiser, None, fresh_dropout(0.2, streams), np.random.default_rng(0))
    told = np.unique(train.users).astype(np.int64)
    count = max(1, len(told) // _BATCH)
    begun = at.restored(kept.latest())
    for epoch in range(begun, epochs):
        for number, users in enumerate(
            np.array_split(streams.numpy("news-batches", round=epoch).permutation(told), count),
            start=1,
        ):
            loss = at.step(_loss(model, devices, users, at))
            yield Progress(
                epoch * count + number,
                epochs * count,
                f"step {epoch * count + number}/{epochs * count}: loss {loss:.4f}",
            )
        kept.save(at.arrays(epoch + 1), step=epoch + 1)
    clicks = (len(train.history) + train.clicked.sum()) / max(train.num_users, 1)
    sent = (Sent("data", f"{clicks:.0f} clicks", "the history and every click", 4.0 * clicks, 0.0),)
    parameters = {"parameters": model.parameters_vector()}
    yield TrainedNews(
        recommender_of(scenario, model), promised(scenario), math.inf, 1, sent, 0.0, parameters
    )


def _loss(model: NewsModel, devices: Devices, users: Int64s, at: Progressing) -> torch.Tensor:
    rows = devices.rows_of(users)
    owner = torch.from_numpy(np.repeat(np.arange(len(users)), np.diff(devices.ptr)[users]))
    step = needed_news(
        devices.history[users], devices.candidates[rows], num_news=model.news.anonymous
    )
    news = model.encode_news(step.items, at.dropout)
    U = model.interests(model.encode_users(news, torch.from_numpy(step.history), at.dropout))
    scores = model.scores(U[owner], news, torch.from_numpy(step.candidates))
    return report_loss(scores, torch.from_numpy(devices.labels[rows]), weight=math.inf)
