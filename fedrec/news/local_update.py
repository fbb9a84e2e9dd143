"""LocalUpdate of Alg. 3, in three forms: what one round's users send.

`Behind` (variant `local`): the device releases its noised attention weights and, once for all
rounds, a randomised answer per impression; its gradient is a function of these, of the model and of
the candidates, all public, so anybody could compute it. Guarantee: that of the releases, per click
replaced; the history reaches nothing else (`test_training_rounds` swaps it and compares bytes).

`Through` with a plan (variant `printed`): the gradient flows on through the noise into the history.
NOT ESTABLISHED: it multiplies activations that were never noised, and its rows name the clicked
news. The labels are the paper's own, whose support tells the click. Without a plan (variant
`fedrec`): no privacy.

`NoisedGradients` (variant `dp-fedrec`): the whole gradient, clipped to theta, with noise on every
one of its P numbers. Guarantee: mu-GDP, mu = 2 theta / s, for any two data sets of a user, hence
for one click replaced: both gradients lie in a ball of radius theta.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedrec.arrays import Bools, Float32s, Float64s, Int64s
from fedrec.data.impressions import Impressions
from fedrec.encoders.news import NamlUsers
from fedrec.encoders.news_model import NewsModel, Release, exact, needed_news, noised, relu_share
from fedrec.encoders.user_gradients import UserExamples, per_user_gradients
from fedrec.news import attention
from fedrec.news.attention import LaplaceAttention, Plan
from fedrec.news.checkpoints import DeviceNoise
from fedrec.news.labels import LabelReports
from fedrec.news.reports_training import padded_candidates, report_loss
from fedrec.privacy import gaussian, laplace

_TOGETHER = 64  # news of the catalogue that are encoded at a time
_REFERENCE = 512  # news by which NAML's averages are centred


@dataclass(frozen=True)
class Devices:
    """Everything on the devices, as tables: histories (n, H) and, for every impression, candidates
    (e, C) and the label as a set (e, C).

    rows: impressions of user k are `order[ptr[k]:ptr[k + 1]]`. weight: e^epsilon - 1 of the labels,
    infinite for bare ones.
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
        weight = math.inf if labels is None else labels.weight
        return Devices(
            data.last_clicks(history),
            candidates,
            table,
            weight,
            data.users,
            *_by_user(data.users, data.num_users),
        )

    def rows_of(self, users: Int64s) -> Int64s:
        """Impressions of these users, by user."""
        return (
            np.concatenate([self.order[self.ptr[k] : self.ptr[k + 1]] for k in users])
            if len(users)
            else np.empty(0, np.int64)
        )

    def with_few(self, negatives: int, *, noise: DeviceNoise) -> Devices:
        """These devices with each impression cut to one of its labels, drawn, and so many that are
        none: the paper's k."""
        drawn = np.ones(self.labels.shape)
        for user in np.unique(self.users).tolist():
            rows = self.rows_of(np.array([user]))
            # drawn for what was shown: not how wide the table of all users is
            sizes = (self.candidates[rows] >= 0).sum(1)
            drawn[rows, : sizes.max()] = noise.numpy(user, "news-few").random(
                (len(rows), int(sizes.max()))
            )
        one = np.where(self.labels, drawn, 2.0).argmin(1)[:, None]
        order = np.where(self.labels | (self.candidates < 0), 2.0, drawn)
        np.put_along_axis(order, one, -1.0, 1)
        kept = np.argsort(order, axis=1)[:, : min(1 + negatives, order.shape[1])]
        shown = np.where(
            np.take_along_axis(order, kept, 1) < 2.0,
            np.take_along_axis(self.candidates, kept, 1),
            -1,
        )
        return replace(self, candidates=shown, labels=kept == one)


@dataclass(frozen=True)
class Behind:
    """`local`: the gradient of what was released.

    `plan` prices one round's attention; padding hides clicks behind the anonymous news."""

    devices: Devices
    plan: Plan
    noise: DeviceNoise

    def __call__(
        self, model: NewsModel, users: Int64s, round: int, question: str = ""
    ) -> tuple[Float32s, float]:
        """See `rounds.LocalUpdate`."""
        released = attention.renormalise_relu(self.released(model, users, round, question)).astype(
            np.float32
        )
        return released_gradient(model, self.devices, users, released)

    def released(self, model: NewsModel, users: Int64s, round: int, question: str = "") -> Float64s:
        """(n, B) what these users release of their histories in a round: all that anything of this
        round is a function of."""
        noise = replace(self.noise, question=question)
        keys = (
            noise.keys(users, "news-padding", round=round),
            noise.keys(users, "news-attention", round=round),
        )
        return released_weights(model, self.devices.history[users], self.plan, keys)

    def weight(self, users: Int64s) -> int:
        """Impressions: the gradient is a mean over them."""
        return len(self.devices.rows_of(users))


def released_weights(
    model: NewsModel,
    history: npt.NDArray[np.integer],
    plan: Plan,
    keys: tuple[Sequence[bytes], Sequence[bytes]],
) -> Float64s:
    """(n, B) what leaves the devices with these histories (n, H): Alg. 2 l. 2-9; each user's
    padding and noise under keys of its own.

    A server may have made the model: weights that are no numbers are released as zeros, like those
    of nobody.
    """
    assert model.basis is not None
    recentre(model)
    shown = padded(model, history, plan.padding, keys[0])
    alpha = np.zeros((len(shown), len(model.basis.vectors)))
    with torch.no_grad():
        news = _encoded(model, shown)
        for k, own in enumerate(shown):
            place = torch.from_numpy(np.where(own < 0, -1, np.arange(len(own))))[None]
            u = model.encode_users(news[torch.from_numpy(own.clip(min=0).astype(np.int64))], place)
            alpha[k] = model.basis.attention(u)[0].double().numpy()
    finite = np.nan_to_num(alpha, nan=0.0, posinf=0.0, neginf=0.0)
    return attention.release_each(finite, plan, keys=keys[1])


def recentre(model: NewsModel) -> None:
    """Keep NAML's averages apart while the news encoder is trained: their centre and spread from
    evenly spaced news of the public catalogue, by the encoder as it is now.

    Nothing where the model is as published: no basis, or a random one.
    """
    if not isinstance(model.users, NamlUsers) or float(model.users.scale) == 1:
        return
    m = model.news.anonymous
    some = np.unique(np.linspace(0, m - 1, min(m, _REFERENCE)).astype(np.int64))
    with torch.no_grad():
        model.users.recentre(model.encode_news(some))


def padded(
    model: NewsModel, history: npt.NDArray[np.integer], padding: float, keys: Sequence[bytes]
) -> npt.NDArray[np.integer]:
    """(n, H) with clicks hidden behind the anonymous news, each with probability `padding` (Alg. 2
    l. 4)."""
    if not padding or not len(history):
        return history
    hidden = np.concatenate(
        [attention.padded_clicks(1, history.shape[1], padding=padding, key=key) for key in keys]
    )
    return np.where(hidden & (history >= 0), model.news.anonymous, history)


def _encoded(model: NewsModel, history: npt.NDArray[np.integer]) -> Tensor:
    """(m + 1, d) vectors of the news of all blocks of the catalogue that the history names.

    A news is always encoded with the same others: were it with those that people here have clicked,
    one person's click would round the vectors of all others, which a model that a server chose
    makes as large as it likes."""
    m = model.news.anonymous
    found = torch.zeros((m + 1, model.news.width))
    for block in np.unique(history[history >= 0] // _TOGETHER):
        items = np.arange(block * _TOGETHER, min((block + 1) * _TOGETHER, m + 1))
        found[torch.from_numpy(items)] = model.encode_news(items)
    return found


def user_vectors(model: NewsModel, history: npt.NDArray[np.integer]) -> Tensor:
    """(n, d), a news encoded once."""
    step = needed_news(history, np.empty((0, 1), np.int64), num_news=model.news.anonymous)
    return model.encode_users(model.encode_news(step.items), torch.from_numpy(step.history))


def released_gradient(
    model: NewsModel, devices: Devices, users: Int64s, released: Float32s
) -> tuple[Float32s, float]:
    """The mean gradient of users of whom only `released` (n, B) and randomised labels are known: a
    public function of these."""
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
    """`printed` (with a plan) and `fedrec` (without): the gradient of everything.

    raw: scores are of the user vector itself, past the basis and its noise (Alg. 3, l. 20)."""

    devices: Devices
    plan: Plan | None
    noise: DeviceNoise
    renormalise: Release = relu_share
    raw: bool = False

    def __call__(
        self, model: NewsModel, users: Int64s, round: int, question: str = ""
    ) -> tuple[Float32s, float]:
        """See `rounds.LocalUpdate`."""
        history = self.devices.history[users]
        noise = replace(self.noise, question=question)
        if self.plan is not None:
            keys = noise.keys(users, "news-padding", round=round)
            history = np.asarray(padded(model, history, self.plan.padding, keys), np.int32)
        rows = self.devices.rows_of(users)
        owner = np.repeat(np.arange(len(users)), np.diff(self.devices.ptr)[users])
        step = needed_news(history, self.devices.candidates[rows], num_news=model.news.anonymous)
        news = model.encode_news(step.items)
        U = model.encode_users(news, torch.from_numpy(step.history))
        if not self.raw:
            keys = noise.keys(users, "news-attention", round=round)
            U = model.interests(U, self._release(model, keys))
        return _gradient(
            model,
            model.scores(U[torch.from_numpy(owner)], news, torch.from_numpy(step.candidates)),
            self.devices,
            rows,
        )

    def weight(self, users: Int64s) -> int:
        """Impressions: the gradient is a mean over them."""
        return len(self.devices.rows_of(users))

    def _release(self, model: NewsModel, keys: Sequence[bytes]) -> Release:
        if self.plan is None or model.basis is None or self.plan.noise_std == 0:
            return exact
        width = len(model.basis.vectors)
        step = self.plan.step
        if isinstance(self.plan, LaplaceAttention):
            parameter = self.plan.parameter / step
            whole = [laplace.sample(width, parameter=parameter, key=key) for key in keys]
            drawn = np.reshape(np.asarray(whole, np.float64) * step, (len(keys), width))
        else:
            drawn = gaussian.add_row_by_row(
                np.zeros((len(keys), width), np.int64),
                step=step,
                std=self.plan.noise_std,
                keys=keys,
            )
        return noised(
            torch.from_numpy(drawn.astype(np.float32)),
            radius=self.plan.theta,
            renormalise=self.renormalise,
        )


@dataclass(frozen=True)
class NoisedGradients:
    """`dp-fedrec`: every user's gradient clipped to `clip`, with noise of std `noise_std` on each
    number, drawn on that user's device."""

    devices: Devices
    clip: float
    noise_std: float
    noise: DeviceNoise

    def __call__(
        self, model: NewsModel, users: Int64s, round: int, question: str = ""
    ) -> tuple[Float32s, float]:
        """See `rounds.LocalUpdate`."""
        keys = replace(self.noise, question=question).keys(users, "news-gradient", round=round)
        step = 2.0 ** (math.floor(math.log2(self.noise_std)) - 20) if self.noise_std else 1.0
        total = np.zeros(len(model.parameters_vector()), np.float64)
        for key, gradient in zip(
            keys, per_user_gradients(model, user_examples(self.devices, users)), strict=True
        ):
            clipped = self._clipped(gradient.astype(np.float64))
            # towards zero on the grid of the noise: no gradient grows, and no gap of floating point
            # tells it
            if self.noise_std:
                grid = np.trunc(clipped / step).astype(np.int64)[None]
                clipped = gaussian.add_to_rows(grid, step=step, std=self.noise_std, key=key)[0]
            total += clipped
        return np.asarray(total / len(users), np.float32), math.nan

    def weight(self, users: Int64s) -> int:
        """Users."""
        return len(users)

    def _clipped(self, gradient: Float64s) -> Float64s:
        """One that is no number (a server may have made the model) counts as zero."""
        norm = float(np.linalg.norm(gradient))
        return (
            gradient * min(1.0, self.clip / max(norm, 1e-30))
            if math.isfinite(norm)
            else np.zeros_like(gradient)
        )


def user_examples(devices: Devices, users: Int64s) -> UserExamples:
    """These users' data for `per_user_gradients`: labels are places, the first of a set."""
    most = int(np.diff(devices.ptr)[users].max(initial=1))
    C = devices.candidates.shape[1]
    candidates = np.full((len(users), most, C), -1, np.int64)
    labels = np.full((len(users), most), -1, np.int64)
    for at, k in enumerate(users):
        rows = devices.order[devices.ptr[k] : devices.ptr[k + 1]]
        candidates[at, : len(rows)] = devices.candidates[rows]
        labels[at, : len(rows)] = devices.labels[rows].argmax(1)
    return UserExamples(devices.history[users], candidates, labels)


def _gradient(
    model: NewsModel, scores: Tensor, devices: Devices, rows: Int64s
) -> tuple[Float32s, float]:
    loss = report_loss(scores, torch.from_numpy(devices.labels[rows]), weight=devices.weight)
    model.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    return model.gradient_vector(), loss.item()


def _by_user(users: npt.NDArray[np.integer], count: int) -> tuple[Int64s, Int64s]:
    ptr = np.concatenate([[0], np.cumsum(np.bincount(users, minlength=count))]).astype(np.int64)
    return np.argsort(users, kind="stable"), ptr
