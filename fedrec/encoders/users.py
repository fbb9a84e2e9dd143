"""User encoders: vectors of clicked news in, one vector per user out.

Both see a history as a set: the order of clicks changes nothing. Places outside the mask change
nothing either, and a user with an empty history has the zero vector. A click hidden by padding
(PrivateRec Alg. 2 l. 4) is not a place outside the mask: it is a click on the anonymous news.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedrec.encoders.attention import AdditiveAttention, Dropout, SelfAttention, dropped


class UserEncoder(Protocol):
    """A torch module that encodes histories."""

    def encode(
        self, news: Tensor, history: Tensor, mask: Tensor, dropout: Dropout | None = None
    ) -> Tensor:
        """(n, width) user vectors from news (u, width), history (n, H) int64 rows of `news`, mask
        (n, H) bool of clicks that exist."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]:
        """What is trained."""
        ...


class NrmsUsers(nn.Module):
    """Self-attention among the clicked news, additive attention over them (Wu et al. 2019, EMNLP,
    Sec. 2.2). Also PLM-NR's."""

    def __init__(self, width: int, heads: int, queries: int, *, rng: np.random.Generator) -> None:
        super().__init__()
        self.attention = SelfAttention(width, width, heads, rng=rng)
        self.pool = AdditiveAttention(width, queries, rng=rng)

    def encode(
        self, news: Tensor, history: Tensor, mask: Tensor, dropout: Dropout | None = None
    ) -> Tensor:
        """(n, width) user vectors."""
        h = self.attention.gathered(news, history, mask)
        return self.pool.forward(dropped(h, dropout), mask)


class NamlUsers(nn.Module):
    """Additive attention over the clicked news (Wu et al. 2019, IJCAI, Sec. 3.2): a user vector is
    an average of news vectors.

    scale, spread: (1,) and centre: (width,), public and not trained; 1, 1 and 0 as published.
    Averages of many news are alike: before a basis (`news.public_start`) what they have in common
    is taken off, and the rest is multiplied by scale / spread, or attention would be nearly the
    same for every history. `recentre` keeps that so while the news encoder is trained.
    """

    scale: Tensor
    centre: Tensor
    spread: Tensor

    def __init__(self, width: int, queries: int, *, rng: np.random.Generator) -> None:
        super().__init__()
        self.pool = AdditiveAttention(width, queries, rng=rng)
        self.register_buffer("scale", torch.ones(1))
        self.register_buffer("centre", torch.zeros(width))
        self.register_buffer("spread", torch.ones(1))

    def recentre(self, news: Tensor) -> None:
        """Take centre and spread from public news vectors (r, width): their mean, and the root mean
        square of their distances from it."""
        centre = news.mean(0)
        self.centre.copy_(centre)
        self.spread.fill_(max(float((news - centre).square().sum(1).mean().sqrt()), 1e-12))

    def encode(
        self, news: Tensor, history: Tensor, mask: Tensor, dropout: Dropout | None = None
    ) -> Tensor:
        """(n, width) user vectors."""
        averages = self.pool.forward(dropped(functional.embedding(history, news), dropout), mask)
        away = averages - self.centre * mask.any(-1, keepdim=True)
        return self.scale / self.spread * away
