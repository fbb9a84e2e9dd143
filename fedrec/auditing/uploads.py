"""Uploads of one client in a round, by the registered variant's own code and schedule
(`fedrec.news.variant`).

A round with one user is that user's upload. Noise belongs to the round, so that another round is
another draw, and the same round with another history is the same noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from fedrec.arrays import Float32s, Int64s
from fedrec.data.impressions import Impressions
from fedrec.encoders.news_model import NewsModel
from fedrec.news.checkpoints import DeviceNoise
from fedrec.news.local_update import Behind, NoisedGradients, Through
from fedrec.news.models import news_model
from fedrec.news.trained import Catalogue
from fedrec.news.variant import costs_of, promise, rounds_of, schedule_of
from fedrec.privacy.click_accounting import Costs
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams
from fedrec.settings import NewsScenario

Gradient = dict[str, Float32s]
"""By the name of the parameter, in its shape."""
Update = Behind | Through | NoisedGradients


@dataclass(frozen=True)
class Clients:
    """A fresh model and the devices that answer it. `claim`: what the variant promises for all it
    sends; `costs`: what it charges for it; passes: how often each user answers."""

    model: NewsModel
    update: Update
    claim: Guarantee
    costs: Costs
    passes: int

    @property
    def texts(self) -> npt.NDArray[np.int64] | None:
        """(m, L) word ids of each news, where the model reads words."""
        found = [
            buffer
            for name, buffer in self.model.named_buffers()
            if name in {"news.titles", "news.abstracts"}
        ]
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
        """Return the same clients with another history (H,) of one user."""
        table = self.update.devices.history.copy()
        table[user] = history
        return replace(
            self, update=replace(self.update, devices=replace(self.update.devices, history=table))
        )

    def with_labels(self, user: int) -> Clients:
        """Return the same clients with each label of one user on the candidate after it."""
        devices = self.update.devices
        labels = devices.labels.copy()
        rows = devices.rows_of(np.array([user]))
        shown = (devices.candidates[rows] >= 0).sum(1)
        labels[rows] = False
        labels[rows, (devices.labels[rows].argmax(1) + 1) % shown] = True
        return replace(self, update=replace(self.update, devices=replace(devices, labels=labels)))

    def upload(self, user: int, draw: int) -> Gradient:
        """What the user sends in round `draw`."""
        flat = self.update(self.model, np.array([user]), draw)[0]
        shapes = [(name, p.shape) for name, p in self.model.named_parameters()]
        ends = np.cumsum([shape.numel() for _, shape in shapes])
        return {
            name: part.reshape(shape)
            for (name, shape), part in zip(shapes, np.split(flat, ends[:-1]), strict=True)
        }


def clients_of(scenario: NewsScenario, catalogue: Catalogue, train: Impressions) -> Clients:
    """Those of the scenario's variant.

    Raises SettingsError where it does not train in rounds on devices."""
    form = rounds_of(scenario)
    passes = schedule_of(scenario, train.num_users).passes
    model = news_model(scenario, catalogue.news, catalogue.vectors, basis=form.basis(scenario))
    update = form.device(
        scenario, train, passes, DeviceNoise.numbered(Streams(scenario.seed), train.num_users)
    )
    assert isinstance(update, Behind | Through | NoisedGradients)
    return Clients(model, update, promise(scenario), costs_of(scenario, passes), passes)


def told_labels(scenario: NewsScenario, shown: Impressions, seed: int) -> npt.NDArray[np.bool_]:
    """(n, C) which candidates the variant's devices name as clicked in these impressions, one user
    each, all of one size. seed: of their noise."""
    form = rounds_of(scenario)
    passes = schedule_of(scenario, shown.num_users).passes
    update = form.device(
        scenario, shown, passes, DeviceNoise.numbered(Streams(seed), shown.num_users)
    )
    assert isinstance(update, Behind | Through | NoisedGradients)
    return update.devices.labels


def gradient_distance(clients: Clients, user: int, other: Clients) -> float:
    """mu of one answer of a user whose data are those of `other`, for whole gradients with noise on
    the device; infinite without."""
    update = clients.update
    assert isinstance(update, NoisedGradients)
    if update.noise_std == 0:
        return math.inf
    flat = [_bare(each, user) for each in (clients, other)]
    return float(np.linalg.norm(flat[0] - flat[1])) / update.noise_std


def _bare(clients: Clients, user: int) -> npt.NDArray[np.float64]:
    assert isinstance(clients.update, NoisedGradients)
    return replace(clients.update, noise_std=0.0)(clients.model, np.array([user]), 1)[0].astype(
        np.float64
    )
