"""The gradient of each user's loss, one user at a time, in bounded memory: what a client of
federated training computes.

A user's own news go through the text encoder once, forth and back. The gradient is not private by
itself: clip, and add noise, before anything leaves a client. It names its news by what is not zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from fedrec.arrays import Float32s
from fedrec.encoders.news_model import ABSENT, NewsModel, needed_news

Loss = Callable[[Tensor, Tensor], Tensor]
"""From one user's scores (E, C), -inf for absent candidates, and labels (E,), -1 where there is no
impression, to a number."""


@dataclass(frozen=True)
class UserExamples:
    """K users' data, padded with -1. history: (K, H) news; candidates: (K, E, C) news; labels: (K,
    E) position of the click.

    released: (K, B) float32 weights that stand for the history, which is then not looked at
    (`history` may have no columns).
    """

    history: npt.NDArray[np.integer]
    candidates: npt.NDArray[np.integer]
    labels: npt.NDArray[np.integer]
    released: Float32s | None = None

    def __len__(self) -> int:
        return len(self.history)


def softmax_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Mean over the user's impressions of -log softmax(scores)[label] (PrivateRec Alg. 3, l. 21); 0
    for a user without any."""
    exists = labels != ABSENT
    # an impression that is not there has no finite score: zeros keep its part, and its gradient,
    # free of NaN
    safe = torch.where(exists.unsqueeze(-1), scores, torch.zeros_like(scores))
    each = (
        -functional.log_softmax(safe, -1).gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    )
    return torch.where(exists, each, torch.zeros_like(each)).sum() / exists.sum().clamp(min=1)


def per_user_gradients(
    model: NewsModel, examples: UserExamples, *, loss: Loss = softmax_loss
) -> Iterator[Float32s]:
    """(P,) gradient of each user's loss, in the order of `parameters_vector`, one user in memory at
    a time."""
    parameters = list(model.parameters())
    for k in range(len(examples)):
        # without padding: how much there is, others decide
        there = examples.candidates[k] >= 0
        size = 1 + int(np.nonzero(there)[1].max(initial=0))
        own = there.any(axis=1)
        step = needed_news(
            _history(examples)[k],
            examples.candidates[k][own, :size],
            num_news=model.news.anonymous,
        )
        arrays = step.history[None], step.candidates, np.asarray(examples.labels[k][own], np.int64)
        history, candidates, labels = (torch.from_numpy(array) for array in arrays)
        released = (
            None if examples.released is None else torch.from_numpy(examples.released[k : k + 1])
        )
        value = loss(
            model.forward(model.encode_news(step.items), history, candidates, released), labels
        )
        found = torch.autograd.grad(value, parameters, allow_unused=True)
        yield _flat(
            [
                torch.zeros_like(p) if g is None else g
                for p, g in zip(parameters, found, strict=True)
            ]
        )


def _history(examples: UserExamples) -> npt.NDArray[np.integer]:
    """Histories that are looked at: no columns where released weights stand for them, so that no
    gradient can name their news."""
    return examples.history if examples.released is None else examples.history[:, :0]


def _flat(parts: list[Tensor]) -> Float32s:
    flat: Float32s = torch.cat([part.reshape(-1) for part in parts]).numpy()
    return flat
