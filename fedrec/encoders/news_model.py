"""A news model: a news encoder, a user encoder, their dot product, and perhaps a basis between user
and score.

    news = model.encode_news(step.items)                       # text work, once per news
    users = model.encode_users(news, step.history)             # look-ups
    scores = model.scores(users, news, step.candidates)        # look-ups

A model is one vector of parameters to its server: `parameters_vector` and `load_vector`, in the
order news, users, basis.

A step of a few hundred impressions names tens of thousands of news and a few thousand different
ones, so text work is done on each once (`needed`).

With a basis a user vector is a mixture of B public basis vectors: a user sends B weights, and the
server rebuilds d numbers (PrivateRec Sec. 3.2.2).

This is the differentiable side. The mechanisms themselves, their noise and their guarantees are in
`fedrec.news`; what happens to the weights between a user and the server is a `Release` handed in:

- `exact`: nothing, no privacy.
- `stopped(mechanism)`: the noise of a mechanism, and no gradient through it. What follows is a
  function of what was released and of public things: post-processing. This is where training under
  a local guarantee must stop (SOUND form of Alg. 3).
- `noised(noise, ...)`: the paper's own, with a gradient through clipping, noise and
  renormalisation. That gradient multiplies activations that were not noised, so nothing is
  guaranteed about it: NOT ESTABLISHED, for reproduction and attack only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedrec.arrays import Float32s, Float64s, Int64s
from fedrec.encoders.news import (
    Dropout,
    NamlNews,
    NamlUsers,
    NewsEncoder,
    NrmsNews,
    NrmsUsers,
    PlmNews,
    UserEncoder,
)
from fedrec.encoders.tokens import NewsTokens

Release = Callable[[Tensor], Tensor]
"""From weights (n, B) to the weights (n, B) that leave the device."""
ABSENT = -1
"""In place of a news: there is none."""


class Basis(nn.Module):
    """b: B public vectors (B, d), trained with the model. B = 3, 5, 10 or 32 in the experiments."""

    def __init__(self, size: int, width: int, *, rng: np.random.Generator) -> None:
        super().__init__()
        if size < 1:
            raise ValueError(f"a basis needs at least one vector, found {size}")
        rows = rng.standard_normal((size, width))
        self.vectors = nn.Parameter(torch.from_numpy(rows.astype(np.float32)))

    def attention(self, users: Tensor) -> Tensor:
        """(n, B) softmax(u b' / sqrt d) of user vectors (n, d): positive, rows of sum 1 (Alg. 2, l.
        7)."""
        return functional.softmax(users @ self.vectors.T / math.sqrt(self.vectors.shape[1]), -1)

    def reconstruct(self, weights: Tensor) -> Tensor:
        """(n, d) mixtures sum_i w_i b_i of weights (n, B) (Alg. 1, l. 3)."""
        return weights @ self.vectors

    def decompose(self, users: Tensor, release: Release) -> Tensor:
        """(n, d) user vectors as the server rebuilds them from what `release` lets out of their
        attention."""
        return self.reconstruct(release(self.attention(users)))


def exact(weights: Tensor) -> Tensor:
    """The weights as they are: no privacy."""
    return weights


def stopped(mechanism: Callable[[Float64s], npt.NDArray[np.floating]]) -> Release:
    """The release of `mechanism`, float64 (n, B) to (n, B), as a constant: no gradient flows back
    to the history.

    The guarantee is the mechanism's; whatever is computed from the result and public things keeps
    it.
    """

    def release(weights: Tensor) -> Tensor:
        released = mechanism(weights.detach().double().numpy())
        return torch.from_numpy(np.asarray(released, np.float32)).to(weights.dtype)

    return release


def noised(noise: Tensor, *, radius: float, renormalise: Release) -> Release:
    """Clip to L2 norm `radius`, add the drawn `noise` (n, B), renormalise (Alg. 2, l. 8-10), all
    with gradient: NOT ESTABLISHED."""
    return lambda weights: renormalise(clipped(weights, radius) + noise)


def clipped(weights: Tensor, radius: float) -> Tensor:
    """Rows scaled down to L2 norm `radius` where longer (Alg. 2, l. 8)."""
    norms = torch.linalg.vector_norm(weights, dim=-1, keepdim=True)
    return weights / torch.clamp(norms / radius, min=1.0)


def relu_share(weights: Tensor) -> Tensor:
    """ReLU(w_i) / sum_j ReLU(w_j) (Sec. 3.3: training); equal shares where no weight is positive,
    which the paper leaves open."""
    positive = functional.relu(weights)
    total = positive.sum(-1, keepdim=True)
    return torch.where(
        total > 0, positive / torch.where(total > 0, total, 1.0), 1 / weights.shape[-1]
    )


def softplus_share(weights: Tensor) -> Tensor:
    """SoftPlus(w_i) / sum_j SoftPlus(w_j) (Alg. 2, l. 10)."""
    positive = functional.softplus(weights)
    return positive / positive.sum(-1, keepdim=True)


@dataclass(frozen=True)
class NeededNews:
    """items: (u,) int64 ascending, each once; the anonymous news alone where none is named, so that
    u >= 1.

    history, candidates: int64, as given, with positions in `items`; absent ones stay -1.
    """

    items: Int64s
    history: Int64s
    candidates: Int64s


def needed_news(
    history: npt.NDArray[np.integer], candidates: npt.NDArray[np.integer], *, num_news: int
) -> NeededNews:
    """Collect the news of `history` and `candidates`, any shapes, ids in [0, num_news] (num_news is
    the anonymous one) or -1.

    Raises ValueError for other ids.
    """
    lowest, highest = (
        f(
            part.max(initial=-1) if f is max else part.min(initial=0)
            for part in (history, candidates)
        )
        for f in (min, max)
    )
    if lowest < ABSENT or highest > num_news:
        raise ValueError(f"news must be in [-1, {num_news}], found {lowest} to {highest}")
    used = np.zeros(num_news + 2, bool)  # the last place is that of -1
    used[history] = used[candidates] = True
    used[ABSENT] = False
    used[num_news] |= not used.any()
    items = np.flatnonzero(used)
    position = np.full(num_news + 2, ABSENT, np.int64)
    position[items] = np.arange(len(items))
    return NeededNews(items, position[history], position[candidates])


@dataclass(frozen=True)
class NewsModelSettings:
    """Sizes. The defaults are for a catalogue of thousands on two cores; `NRMS_PUBLISHED` and
    `NAML_PUBLISHED` are the papers'.

    width: of news and user vectors, d. heads: of self-attention (NRMS, PLM-NR). queries: length of
    the query of additive attention. category_width: of category embeddings (NAML). basis_size: B,
    or 0 for no basis between user and score.
    """

    width: int = 64
    heads: int = 4
    queries: int = 64
    category_width: int = 32
    basis_size: int = 0


NRMS_PUBLISHED = NewsModelSettings(width=256, heads=16, queries=200)
"""Wu et al.

2019 (EMNLP), Sec. 3.1, with word vectors of width 300 and dropout .2. Also PLM-NR's user side."""
NAML_PUBLISHED = NewsModelSettings(width=400, queries=200, category_width=100)
"""Wu et al. 2019 (IJCAI), Sec. 4.1, with word vectors of width 300 and dropout .2."""


class NewsModel(nn.Module):
    """What scores news for users. Its parameters are float32 on the CPU."""

    news: NewsEncoder
    users: UserEncoder

    def __init__(self, news: NewsEncoder, users: UserEncoder, basis: Basis | None = None) -> None:
        super().__init__()
        self.news = news
        self.users = users
        self.basis = basis

    def encode_news(self, items: npt.NDArray[np.integer], dropout: Dropout | None = None) -> Tensor:
        """(u, d) vectors of news `items` (u,): give each news once (`needed_news`).

        `self.news.anonymous` is the anonymous news r0. News that say the same, such as all of which
        no text is known, are encoded once."""
        asked = np.asarray(items, np.int64)
        told, place = np.unique(self.news.first[asked], return_inverse=True)
        if len(told) == len(asked):
            return self.news.encode(torch.from_numpy(asked), dropout)
        return self.news.encode(torch.from_numpy(told), dropout)[torch.from_numpy(place)]

    def encode_users(self, news: Tensor, history: Tensor, dropout: Dropout | None = None) -> Tensor:
        """(n, d) user vectors from news (u, d) and history (n, H) of positions in it, -1 where
        there is no click."""
        return self.users.encode(news, history.clamp(min=0), history != ABSENT, dropout)

    def interests(self, users: Tensor, release: Release = exact) -> Tensor:
        """(n, d) user vectors as the server has them: through the basis and `release` where there
        is a basis, else as they are."""
        return users if self.basis is None else self.basis.decompose(users, release)

    @staticmethod
    def scores(users: Tensor, news: Tensor, candidates: Tensor) -> Tensor:
        """(n, C) u' r of users (n, d) and candidates (n, C), positions in news (u, d); -inf where a
        candidate is absent (-1)."""
        r = functional.embedding(candidates.clamp(min=0), news)
        return (r @ users.unsqueeze(-1)).squeeze(-1).masked_fill(candidates == ABSENT, -torch.inf)

    def forward(
        self, news: Tensor, history: Tensor, candidates: Tensor, released: Tensor | None = None
    ) -> Tensor:
        """(n, C) scores from look-ups alone. With released weights (n, B), the history is not
        looked at: they stand for it.

        Raises ValueError for released weights without a basis.
        """
        if released is None:
            return self.scores(self.interests(self.encode_users(news, history)), news, candidates)
        if self.basis is None:
            raise ValueError("released weights need a basis to be mixed from; found none")
        return self.scores(self.basis.reconstruct(released), news, candidates)

    def parameters_vector(self) -> Float32s:
        """(P,) copy of all parameters."""
        return _flat([parameter.detach() for parameter in self.parameters()])

    def gradient_vector(self) -> Float32s:
        """(P,) copy of the gradients that `backward` left, zeros where it left none."""
        return _flat([torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters()])

    def load_vector(self, vector: npt.NDArray[np.floating]) -> None:
        """Set all parameters.

        Raises ValueError if the length is another or a number is not finite."""
        P = sum(parameter.numel() for parameter in self.parameters())
        if vector.shape != (P,) or not bool(np.isfinite(vector).all()):
            raise ValueError(f"need a finite vector of shape ({P},), found shape {vector.shape}")
        values = torch.from_numpy(vector.astype(np.float32))
        start = 0
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(values[start : start + parameter.numel()].view_as(parameter))
                start += parameter.numel()


def nrms(
    tokens: NewsTokens, words: Float32s, settings: NewsModelSettings, *, rng: np.random.Generator
) -> NewsModel:
    """NRMS over titles. words: (vocabulary, width of words) to start from, see
    `tokens.word_vectors`."""
    news = NrmsNews(tokens, words, settings.width, settings.heads, settings.queries, rng=rng)
    return _model(
        news, NrmsUsers(settings.width, settings.heads, settings.queries, rng=rng), settings, rng
    )


def naml(
    tokens: NewsTokens, words: Float32s, settings: NewsModelSettings, *, rng: np.random.Generator
) -> NewsModel:
    """NAML over titles, abstracts, categories and subcategories."""
    news = NamlNews(
        tokens, words, settings.width, settings.queries, settings.category_width, rng=rng
    )
    return _model(news, NamlUsers(settings.width, settings.queries, rng=rng), settings, rng)


def plm_nr(
    vectors: Float32s, settings: NewsModelSettings, *, rng: np.random.Generator
) -> NewsModel:
    """PLM-NR over vectors (m, width of the language model) that were computed once, see
    `language_model`."""
    news = PlmNews(vectors, settings.width, rng=rng)
    return _model(
        news, NrmsUsers(settings.width, settings.heads, settings.queries, rng=rng), settings, rng
    )


def _model(
    news: NewsEncoder, users: UserEncoder, settings: NewsModelSettings, rng: np.random.Generator
) -> NewsModel:
    return NewsModel(
        news,
        users,
        Basis(settings.basis_size, settings.width, rng=rng) if settings.basis_size else None,
    )


def _flat(parts: Sequence[Tensor]) -> Float32s:
    flat: Float32s = torch.cat([part.reshape(-1) for part in parts]).numpy()
    return flat
