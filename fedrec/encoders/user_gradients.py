"""The gradient of each user's loss, one user at a time, in bounded memory: what a client of
federated training computes.

Two cuts of the same gradient:

- `per_user_gradients`: in all parameters. A user's own news go through the text encoder once, forth
  and back.
- `seam_gradients`: in the vectors of the user's news and in the parameters of the user side (user
  encoder, basis), many users at a time by `torch.func.vmap`; the text encoder is not touched.
  `pull_back` then takes any sum of them through the text encoder, once for all users. Text encoder
  and news are public in a round, so if the sum was released privately, pulling it back is
  post-processing.

Neither is private by itself: clip, and add noise, before anything leaves a client. A gradient names
its news by what is not zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from fedrec.arrays import Float32s, Int64s
from fedrec.encoders.news_model import ABSENT, NeededNews, NewsModel, needed_news

Loss = Callable[[Tensor, Tensor], Tensor]
"""From one user's scores (E, C), -inf for absent candidates, and labels (E,), -1 where there is no
impression, to a number."""

# of one array of a batch of users at the seam: 16 MiB, and a dozen such arrays live at once
_MAX_NUMBERS = 1 << 22


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


@dataclass(frozen=True)
class SeamGradients:
    """K users. items: (K, S) their news, each once, -1 behind; news: (K, S, d) gradient in their
    vectors; users: (K, Q) in the parameters of the user side, ordered as in `parameters_vector`.
    """

    items: Int64s
    news: Float32s
    users: Float32s


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
        step = needed_news(
            _history(examples)[k], examples.candidates[k], num_news=model.news.anonymous
        )
        arrays = step.history[None], step.candidates, np.asarray(examples.labels[k], np.int64)
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


def seam_gradients(
    model: NewsModel, examples: UserExamples, *, loss: Loss = softmax_loss
) -> Iterator[SeamGradients]:
    """The users' gradients at the seam, in order, as many users at a time as fit in bounded memory.

    News are encoded once, for all users together. The loss must be one that `torch.func.vmap` can
    map.
    """
    history = _history(examples)
    m = model.news.anonymous
    step = needed_news(history, examples.candidates, num_news=m)
    with torch.no_grad():
        news = model.encode_news(step.items)
    side = {
        name: p.detach() for name, p in model.named_parameters() if not name.startswith("news.")
    }
    own = [
        needed_news(history[k], examples.candidates[k], num_news=m) for k in range(len(examples))
    ]
    for start, stop in pairwise(_pieces(own, model.news.width)):
        yield _batch(
            model, side, news, step.items, own[start:stop], _slice(examples, start, stop), loss
        )


def pull_back(model: NewsModel, items: npt.NDArray[np.integer], gradient: Float32s) -> Float32s:
    """(P - Q,) the gradient in the news encoder that `gradient` (u, d) in the vectors of `items`
    (u,) amounts to."""
    parameters = [p for name, p in model.named_parameters() if name.startswith("news.")]
    found = torch.autograd.grad(
        model.encode_news(items), parameters, torch.from_numpy(gradient), allow_unused=True
    )
    return _flat(
        [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]
    )


def _batch(
    model: NewsModel,
    side: dict[str, Tensor],
    news: Tensor,
    items: Int64s,
    own: list[NeededNews],
    users: UserExamples,
    loss: Loss,
) -> SeamGradients:
    """vmap over users of the gradient in (their news vectors, the user side)."""
    most = max(len(needed.items) for needed in own)
    mine = np.stack(
        [
            np.pad(needed.items, (0, most - len(needed.items)), constant_values=ABSENT)
            for needed in own
        ]
    )
    # (k, S, d)
    rows = news[torch.from_numpy(np.searchsorted(items, mine.clip(min=0)).clip(max=len(items) - 1))]
    places = [
        np.stack([needed.history for needed in own])[:, None],
        np.stack([needed.candidates for needed in own]),
    ]
    arrays = [torch.from_numpy(array) for array in (*places, np.asarray(users.labels, np.int64))]

    def value(
        vectors: Tensor,
        side: dict[str, Tensor],
        history: Tensor,
        candidates: Tensor,
        labels: Tensor,
        *released: Tensor,
    ) -> Tensor:
        scores: Tensor = functional_call(model, side, (vectors, history, candidates, *released))
        return loss(scores, labels)

    released = [] if users.released is None else [torch.from_numpy(users.released[:, None])]
    mapped = vmap(
        grad(value, argnums=(0, 1)), in_dims=(0, None, *[0] * (len(arrays) + len(released)))
    )
    vectors, sides = mapped(rows, side, *arrays, *released)
    return SeamGradients(
        mine,
        vectors.numpy(),
        torch.cat([g.reshape(len(own), -1) for g in sides.values()], 1).numpy(),
    )


def _history(examples: UserExamples) -> npt.NDArray[np.integer]:
    """Histories that are looked at: no columns where released weights stand for them, so that no
    gradient can name their news."""
    return examples.history if examples.released is None else examples.history[:, :0]


def _pieces(own: list[NeededNews], width: int) -> list[int]:
    """Bounds of batches whose arrays of user x place x width stay under the limit."""
    places = max((len(n.items) + n.candidates.size + 4 * n.history.size for n in own), default=1)
    size = max(1, _MAX_NUMBERS // (places * width))
    return [*range(0, len(own), size), len(own)]


def _slice(examples: UserExamples, start: int, stop: int) -> UserExamples:
    released = None if examples.released is None else examples.released[start:stop]
    return UserExamples(
        examples.history[start:stop],
        examples.candidates[start:stop],
        examples.labels[start:stop],
        released,
    )


def _flat(parts: list[Tensor]) -> Float32s:
    flat: Float32s = torch.cat([part.reshape(-1) for part in parts]).numpy()
    return flat
