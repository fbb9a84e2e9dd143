"""What one client would upload in a round, by the very code of the variants that train in rounds (`fedrec.privaterec.local_update`).

A round with one user is that user's upload. Noise belongs to the round, so that another round is another draw, and the same round
with another history is the same noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from fedrec.data.impressions import Impressions
from fedrec.encoders.news_model import NewsModel
from fedrec.privacy.accounting import mu_for
from fedrec.privacy.guarantee import Guarantee
from fedrec.privaterec import attention, federated, labels
from fedrec.privaterec.local_update import Behind, Devices, NoisedGradients, Through
from fedrec.privaterec.models import news_model
from fedrec.privaterec.trained import Catalogue, promised
from fedrec.settings import Scenario
from fedrec.streams import Streams

Float32s = npt.NDArray[np.float32]
Int64s = npt.NDArray[np.int64]
Gradient = dict[str, Float32s]
"""By the name of the parameter, in its shape."""
Update = Behind | Through | NoisedGradients


@dataclass(frozen=True)
class Clients:
    """A fresh model and the devices that answer it. `claim`: what the variant promises for all it sends."""

    model: NewsModel
    update: Update
    claim: Guarantee

    @property
    def texts(self) -> npt.NDArray[np.int64] | None:
        """(m, L) word ids of each news, where the model reads words."""
        found = [buffer for name, buffer in self.model.named_buffers() if name in {"news.titles", "news.abstracts"}]
        return np.asarray(torch.cat(found, 1).numpy()[:-1], np.int64) if found else None

    @property
    def vectors(self) -> Float32s:
        """(m, p) public vectors that a model without words begins with."""
        return np.asarray(dict(self.model.named_buffers())["news.vectors"].numpy()[:-1], np.float32)

    @property
    def first_layer(self) -> str:
        """The parameter that an attack on support or row space reads."""
        return "news.dense" if self.texts is None else "news.words"

    def with_history(self, user: int, history: Int64s) -> Clients:
        """The same with another history (H,) of one user."""
        table = self.update.devices.history.copy()
        table[user] = history
        return replace(self, update=replace(self.update, devices=replace(self.update.devices, history=table)))

    def upload(self, user: int, draw: int) -> Gradient:
        """What the user sends in round `draw`."""
        flat = self.update(self.model, np.array([user]), draw)[0]
        shapes = [(name, p.shape) for name, p in self.model.named_parameters()]
        ends = np.cumsum([shape.numel() for _, shape in shapes])
        return {name: part.reshape(shape) for (name, shape), part in zip(shapes, np.split(flat, ends[:-1]), strict=True)}


def clients_of(scenario: Scenario, catalogue: Catalogue, train: Impressions) -> Clients:
    """Those of the scenario's variant, in their first pass. Raises KeyError where it does not train in rounds on devices."""
    return _CLIENTS[scenario.news.variant](scenario, catalogue, train)


def _local(scenario: Scenario, catalogue: Catalogue, train: Impressions) -> Clients:
    claim, streams, news = promised(scenario), Streams(scenario.seed), scenario.news
    plan = attention.gaussian_plan(claim, theta=news.clip or federated.THETA, padding=news.padding)
    told = labels.report_clicks(train, epsilon=claim.epsilon, key=streams.key("audit/labels"))
    update = Behind(Devices.of(train, history=news.history, labels=told), plan, streams)
    return Clients(_model(scenario, catalogue, news.basis or federated.BASIS), update, claim)


def _printed(scenario: Scenario, catalogue: Catalogue, train: Impressions) -> Clients:
    claim, news = replace(promised(scenario), established=False, note="as printed"), scenario.news
    plan = attention.gaussian_plan_as_printed(claim, theta=news.clip or federated.THETA, padding=news.padding) if claim.private else None
    update = Through(federated.as_printed_devices(train, scenario), plan, Streams(scenario.seed))
    return Clients(_model(scenario, catalogue, news.basis or federated.BASIS), update, claim)


def _fedrec(scenario: Scenario, catalogue: Catalogue, train: Impressions) -> Clients:
    devices = Devices.of(train, history=scenario.news.history, labels=None)
    return Clients(_model(scenario, catalogue, scenario.news.basis), Through(devices, None, Streams(scenario.seed)), promised(scenario))


def _dp_fedrec(scenario: Scenario, catalogue: Catalogue, train: Impressions) -> Clients:
    claim, streams, clip = promised(scenario), Streams(scenario.seed), scenario.news.clip or federated.GRADIENT_CLIP
    devices = Devices.of(train, history=scenario.news.history, labels=None)
    devices = devices.with_few(federated.NEGATIVES, rng=streams.numpy("audit/few"))
    std = 2 * clip / mu_for(claim.epsilon, claim.delta) if claim.private else 0.0
    return Clients(_model(scenario, catalogue, 0), NoisedGradients(devices, clip, std, streams), claim)


def _model(scenario: Scenario, catalogue: Catalogue, basis: int) -> NewsModel:
    return news_model(scenario, catalogue.news, catalogue.vectors, basis=basis)


_CLIENTS: dict[str, Callable[[Scenario, Catalogue, Impressions], Clients]] = {
    "local": _local,
    "printed": _printed,
    "fedrec": _fedrec,
    "dp-fedrec": _dp_fedrec,
}


def gradient_distance(clients: Clients, user: int, history: Int64s) -> float:
    """mu of one user's history exchanged for another, for whole gradients with noise on the device; infinite without noise."""
    update = clients.update
    assert isinstance(update, NoisedGradients)
    if update.noise_std == 0:
        return math.inf
    bare = replace(clients, update=replace(update, noise_std=0.0))
    flat = [each.update(bare.model, np.array([user]), 1)[0].astype(np.float64) for each in (bare, bare.with_history(user, history))]
    return float(np.linalg.norm(flat[0] - flat[1])) / update.noise_std
