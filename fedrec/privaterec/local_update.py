"""LocalUpdate of Alg. 3, in three forms: what one round's users send.

`Behind` (variant `local`): the device releases its noised attention weights and, once for all rounds, a randomised answer
per impression; its gradient is a function of these, of the model and of the candidates, all public, so anybody could compute it.
Guarantee: that of the releases, per click replaced; the history reaches nothing else (`test_training_rounds` swaps it and compares bytes).

`Through` with a plan (variant `printed`): the gradient flows on through the noise into the history. NOT ESTABLISHED: it multiplies
activations that were never noised, and its rows name the clicked news. The labels are the paper's own, whose support tells the click.
Without a plan (variant `fedrec`): no privacy.

`NoisedGradients` (variant `dp-fedrec`): the whole gradient, clipped to theta, with noise on every one of its P numbers. Guarantee: mu-GDP,
mu = 2 theta / s, for any two data sets of a user, hence for one click replaced: both gradients lie in a ball of radius theta.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedrec.data.impressions import Impressions
from fedrec.encoders.basis import Release, exact, noised, relu_share
from fedrec.encoders.needed import needed_news
from fedrec.encoders.news_model import NewsModel
from fedrec.encoders.user_gradients import UserExamples, per_user_gradients
from fedrec.privacy import gaussian
from fedrec.privaterec import attention
from fedrec.privaterec.attention import GaussianAttention
from fedrec.privaterec.labels import LabelReports
from fedrec.privaterec.reports_training import padded_candidates, report_loss
from fedrec.streams import Streams, SystemStreams

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Float32s = npt.NDArray[np.float32]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Devices:
    """Everything on the devices, as tables: histories (n, H) and, for every impression, candidates (e, C) and the label as a set (e, C).

    rows: impressions of user k are `order[ptr[k]:ptr[k + 1]]`. weight: e^epsilon - 1 of the labels, infinite for bare ones.
    """

    history: npt.NDArray[np.int32]
    candidates: Int64s
    labels: Bools
    weight: float
    users: npt.NDArray[np.int32]
    order: Int64s
    ptr: Int64s

    @staticmethod
    def of(data: Impressions, *, history: int, labels: LabelReports | None) -> Devices:
        """With randomised labels, or with the clicks themselves where there are none."""
        candidates = padded_candidates(data)
        table = np.zeros(candidates.shape, np.bool_)
        table[candidates >= 0] = data.clicked if labels is None else labels.reported
        ptr = np.concatenate([[0], np.cumsum(np.bincount(data.users, minlength=data.num_users))]).astype(np.int64)
        order = np.argsort(data.users, kind="stable")
        return Devices(data.last_clicks(history), candidates, table, math.inf if labels is None else labels.weight, data.users, order, ptr)

    def rows_of(self, users: Int64s) -> Int64s:
        """Impressions of these users, by user."""
        return np.concatenate([self.order[self.ptr[k] : self.ptr[k + 1]] for k in users]) if len(users) else np.empty(0, np.int64)

    def with_few(self, negatives: int, *, rng: np.random.Generator) -> Devices:
        """The same with each impression cut to its label and so many others: the paper's k. Labels must be single."""
        C = self.candidates.shape[1]
        shuffled = np.argsort(np.where(self.labels, -1.0, np.where(self.candidates >= 0, rng.random(self.labels.shape), 2.0)), axis=1)
        kept = shuffled[:, : min(1 + negatives, C)]
        return replace(self, candidates=np.take_along_axis(self.candidates, kept, 1), labels=np.take_along_axis(self.labels, kept, 1))


@dataclass(frozen=True)
class Behind:
    """`local`: the gradient of what was released. `plan` prices one round's attention; padding hides clicks behind the anonymous news."""

    devices: Devices
    plan: GaussianAttention
    noise: Streams | SystemStreams

    def __call__(self, model: NewsModel, users: Int64s, round: int) -> tuple[Float32s, float]:
        """See `rounds.LocalUpdate`."""
        released = released_weights(model, self.devices.history[users], self.plan, key_of(self.noise, round), relu=True)
        return released_gradient(model, self.devices, users, released)


def key_of(noise: Streams | SystemStreams, round: int) -> tuple[bytes, bytes]:
    """For the padding and for the noise of a round."""
    return noise.key("news-padding", round=round), noise.key("news-attention", round=round)


def released_weights(
    model: NewsModel, history: npt.NDArray[np.integer], plan: GaussianAttention, keys: tuple[bytes, bytes], *, relu: bool
) -> Float32s:
    """(n, B) what leaves the devices with these histories (n, H), renormalised: Alg. 2. ReLU in training, SoftPlus under serving noise."""
    assert model.basis is not None
    with torch.no_grad():
        alpha = model.basis.attention(user_vectors(model, padded(model, history, plan.padding, keys[0])))
    weights, _ = attention.release(alpha.double().numpy(), plan, key=keys[1])
    renormalise = attention.renormalise_relu if relu or plan.noise_std == 0 else attention.renormalise_softplus
    return renormalise(weights).astype(np.float32)


def padded(model: NewsModel, history: npt.NDArray[np.integer], padding: float, key: bytes) -> npt.NDArray[np.integer]:
    """(n, H) with clicks hidden behind the anonymous news, each with probability `padding` (Alg. 2 l. 4)."""
    if not padding:
        return history
    hidden = attention.padded_clicks(*history.shape, padding=padding, key=key)
    return np.where(hidden & (history >= 0), model.news.anonymous, history)


def user_vectors(model: NewsModel, history: npt.NDArray[np.integer]) -> Tensor:
    """(n, d), a news encoded once."""
    step = needed_news(history, np.empty((0, 1), np.int64), num_news=model.news.anonymous)
    return model.encode_users(model.encode_news(step.items), torch.from_numpy(step.history))


def released_gradient(model: NewsModel, devices: Devices, users: Int64s, released: Float32s) -> tuple[Float32s, float]:
    """The mean gradient of users of whom only `released` (n, B) and randomised labels are known: a public function of these."""
    rows = devices.rows_of(users)
    owner = np.repeat(np.arange(len(users)), np.diff(devices.ptr)[users])
    nobody = np.empty((0, 1), np.int64)
    step = needed_news(nobody, devices.candidates[rows], num_news=model.news.anonymous)
    news = model.encode_news(step.items)
    assert model.basis is not None
    U = model.basis.reconstruct(torch.from_numpy(released))[torch.from_numpy(owner)]
    return _gradient(model, model.scores(U, news, torch.from_numpy(step.candidates)), devices, rows)


@dataclass(frozen=True)
class Through:
    """`printed` (with a plan) and `fedrec` (without): the gradient of everything."""

    devices: Devices
    plan: GaussianAttention | None
    noise: Streams | SystemStreams

    def __call__(self, model: NewsModel, users: Int64s, round: int) -> tuple[Float32s, float]:
        """See `rounds.LocalUpdate`."""
        history = self.devices.history[users]
        if self.plan is not None:
            history = np.asarray(padded(model, history, self.plan.padding, key_of(self.noise, round)[0]), np.int32)
        rows = self.devices.rows_of(users)
        owner = np.repeat(np.arange(len(users)), np.diff(self.devices.ptr)[users])
        step = needed_news(history, self.devices.candidates[rows], num_news=model.news.anonymous)
        news = model.encode_news(step.items)
        U = model.interests(model.encode_users(news, torch.from_numpy(step.history)), self._release(model, len(users), round))
        return _gradient(model, model.scores(U[torch.from_numpy(owner)], news, torch.from_numpy(step.candidates)), self.devices, rows)

    def _release(self, model: NewsModel, users: int, round: int) -> Release:
        if self.plan is None or model.basis is None or self.plan.noise_std == 0:
            return exact
        n, B = users, len(model.basis.vectors)
        zeros = np.zeros((n, B), np.int64)
        drawn = gaussian.add_to_rows(zeros, step=self.plan.step, std=self.plan.noise_std, key=key_of(self.noise, round)[1])
        return noised(torch.from_numpy(drawn.astype(np.float32)), radius=self.plan.theta, renormalise=relu_share)


@dataclass(frozen=True)
class NoisedGradients:
    """`dp-fedrec`: every user's gradient clipped to `clip`, with noise of std `noise_std` on each number, on the device.

    Simulated: the mean of n users' noises is drawn at once, as noise of std `noise_std` / sqrt(n).
    """

    devices: Devices
    clip: float
    noise_std: float
    noise: Streams | SystemStreams

    def __call__(self, model: NewsModel, users: Int64s, round: int) -> tuple[Float32s, float]:
        """See `rounds.LocalUpdate`."""
        total = np.zeros(len(model.parameters_vector()), np.float64)
        for gradient in per_user_gradients(model, user_examples(self.devices, users)):
            total += gradient * min(1.0, self.clip / max(float(np.linalg.norm(gradient)), 1e-30))
        std = self.noise_std / math.sqrt(len(users))
        step = 2.0 ** (math.floor(math.log2(std)) - 20) if std else 1.0
        drawn = gaussian.add_to_rows(
            np.zeros((1, len(total)), np.int64), step=step, std=std, key=self.noise.key("news-gradient", round=round)
        )
        return np.asarray(total / len(users) + drawn[0], np.float32), math.nan


def user_examples(devices: Devices, users: Int64s) -> UserExamples:
    """These users' data for `per_user_gradients`: labels are places, the first of a set."""
    most, C = int(np.diff(devices.ptr)[users].max(initial=1)), devices.candidates.shape[1]
    candidates, labels = np.full((len(users), most, C), -1, np.int64), np.full((len(users), most), -1, np.int64)
    for at, k in enumerate(users):
        rows = devices.order[devices.ptr[k] : devices.ptr[k + 1]]
        candidates[at, : len(rows)], labels[at, : len(rows)] = devices.candidates[rows], devices.labels[rows].argmax(1)
    return UserExamples(devices.history[users], candidates, labels)


def _gradient(model: NewsModel, scores: Tensor, devices: Devices, rows: Int64s) -> tuple[Float32s, float]:
    loss = report_loss(scores, torch.from_numpy(devices.labels[rows]), weight=devices.weight)
    model.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    return model.gradient_vector(), loss.item()
