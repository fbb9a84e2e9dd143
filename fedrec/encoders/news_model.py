"""A news model: a news encoder, a user encoder, their dot product, and perhaps a basis between user
and score.

    news = model.encode_news(step.items)                       # text work, once per news
    users = model.encode_users(news, step.history)             # look-ups
    scores = model.scores(users, news, step.candidates)        # look-ups

A model is one vector of parameters to its server: `parameters_vector` and `load_vector`, in the
order news, users, basis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedrec.arrays import Float32s
from fedrec.encoders.attention import Dropout
from fedrec.encoders.basis import Basis, Release, exact
from fedrec.encoders.needed import ABSENT
from fedrec.encoders.news import NamlNews, NewsEncoder, NrmsNews, PlmNews
from fedrec.encoders.tokens import NewsTokens
from fedrec.encoders.users import NamlUsers, NrmsUsers, UserEncoder


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

        `self.news.anonymous` is the anonymous news r0."""
        return self.news.encode(torch.from_numpy(np.asarray(items, np.int64)), dropout)

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
