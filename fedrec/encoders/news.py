"""Encoders of news models: the layers, news encoders (public text in, vectors out: NRMS, NAML, and
PLM-NR over cached vectors of a language model), and user encoders (vectors of clicked news in, one
vector per user out).

Weights are drawn from a NumPy generator the caller names, never from torch's global one, so a model
is a function of its settings and its stream. A masked place has weight exactly 0, whatever stands
there; where every place is masked the result is 0.

A news encoder holds the catalogue it encodes, as numbers, beside its parameters, so a news is named
by its row. One row more, `anonymous` = m, is a news of padding tokens only: its vector is the
paper's r0 (PrivateRec Alg. 2 l. 1, Fig. 3). Padding tokens of short texts are not masked: that is
how their embedding e0 is trained, and why r0 is informative.

No news encoder knows positions across words beyond a window, so the linear map that every word goes
through first is computed once per word of the vocabulary, not once per place, whenever that is less
work. Dropout of words is per word and step, therefore.

User encoders see a history as a set: the order of clicks changes nothing. Places outside the mask
change nothing either, and a user with an empty history has the zero vector. A click hidden by
padding (PrivateRec Alg. 2 l. 4) is not a place outside the mask: it is a click on the anonymous
news.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedrec.arrays import Float32s, Int64s
from fedrec.encoders.tokens import PADDING, NewsTokens

# exp of it is 0 in float32, and unlike -inf it leaves no NaN where everything is masked
_FAR = -1e30


def matrix(rows: int, columns: int, *, rng: np.random.Generator) -> nn.Parameter:
    """(rows, columns) float32, uniform with the variance of Glorot & Bengio 2010."""
    bound = math.sqrt(6 / (rows + columns))
    return nn.Parameter(
        torch.from_numpy(rng.uniform(-bound, bound, (rows, columns)).astype(np.float32))
    )


def offset(length: int) -> nn.Parameter:
    """(length,) float32 zeros."""
    return nn.Parameter(torch.zeros(length))


@dataclass(frozen=True)
class Dropout:
    """Zeroes each number with probability `rate` in [0, 1), to the nearest 1/256, and scales the
    rest up in turn.

    One random byte of `generator` decides on each number: in a step over short texts, drawing more
    costs as much as the attention.
    """

    rate: float
    generator: torch.Generator

    def __call__(self, x: Tensor) -> Tensor:
        """x with numbers dropped, fresh ones at each call."""
        # to what a byte can decide; what is kept is scaled up by the rounded rate: means stay
        least = round(256 * self.rate)
        words = torch.empty(-(-x.numel() // 8), dtype=torch.int64).random_(
            -(2**63), None, generator=self.generator
        )
        kept = (words.view(torch.uint8)[: x.numel()] >= least).view_as(x)
        return x * kept * (256 / (256 - least))


def dropped(x: Tensor, dropout: Dropout | None) -> Tensor:
    """x, or x with dropout where there is one: in training, that is, and not in evaluation."""
    return x if dropout is None else dropout(x)


def masked_softmax(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax over the last axis, of the places where the broadcast bool `mask` holds; 0
    elsewhere."""
    if mask is None:
        return functional.softmax(logits, -1)
    return functional.softmax(logits.masked_fill(~mask, _FAR), -1) * mask


def gather_projected(x: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """(x @ weight)[index] for x (p, a), weight (a, c): (*index.shape, c): gathers before or after
    multiplying, whichever is less."""
    if index.numel() > len(x):
        return functional.embedding(index, x @ weight)
    return functional.embedding(index, x) @ weight


class SelfAttention(nn.Module):
    """Multi-head self-attention without positions, heads side by side (Wu et al. 2019, NRMS, eq.
    1-2).

    The paper's bilinear form e_i' Q e_j per head is here, as in its authors' code, of rank width /
    heads and scaled by its root: (W_q e_i)' (W_k e_j) / sqrt(width / heads). Raises ValueError if
    `heads` does not divide `width`.
    """

    def __init__(self, inputs: int, width: int, heads: int, *, rng: np.random.Generator) -> None:
        super().__init__()
        if heads < 1 or width % heads:
            raise ValueError(f"heads must divide the width, found {heads} and {width}")
        self.heads = heads
        # (inputs, 3 width)
        self.project = nn.Parameter(
            torch.cat([matrix(inputs, width, rng=rng).data for _ in "qkv"], 1)
        )

    def gathered(self, x: Tensor, index: Tensor, mask: Tensor | None = None) -> Tensor:
        """(n, L, width) contexts of the sequences x[index], x (p, inputs), index (n, L), mask (n,
        L) bool of places that exist."""
        n, length = index.shape
        parts = (gather_projected(x, index, weight) for weight in self.project.chunk(3, -1))
        # (n, heads, L, width of a head)
        q, k, v = (part.view(n, length, self.heads, -1).transpose(1, 2) for part in parts)
        # torch's fused kernel is faster, but has no derivative under vmap and none of our rule for
        # empty sequences
        if mask is None:
            h = functional.scaled_dot_product_attention(q, k, v)
        else:
            h = (
                masked_softmax(
                    (q / math.sqrt(q.shape[-1])) @ k.transpose(-1, -2), mask[:, None, None, :]
                )
                @ v
            )
        return h.transpose(1, 2).reshape(n, length, -1)


class AdditiveAttention(nn.Module):
    """sum_i w_i h_i with w = softmax_i(q' tanh(W h_i + c)) (NRMS eq. 3-5; NAML eq. 3-5): which
    parts of a sequence speak for it."""

    def __init__(self, width: int, queries: int, *, rng: np.random.Generator) -> None:
        super().__init__()
        self.dense = matrix(width, queries, rng=rng)
        self.bias = offset(queries)
        self.query = matrix(queries, 1, rng=rng)

    def weights(self, h: Tensor, mask: Tensor | None = None) -> Tensor:
        """(n, L) weights of h (n, L, width), mask (n, L) bool."""
        logits = (torch.tanh(h @ self.dense + self.bias) @ self.query).squeeze(-1)
        return masked_softmax(logits, mask)

    def forward(self, h: Tensor, mask: Tensor | None = None) -> Tensor:
        """(n, width) weighted sums."""
        return (self.weights(h, mask).unsqueeze(-2) @ h).squeeze(-2)


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
    Averages of many news are alike: before a basis (`news.models`) what they have in common
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


class NewsEncoder(Protocol):
    """A torch module that encodes rows of one catalogue."""

    anonymous: int
    width: int
    first: Int64s
    """(anonymous + 1,) for each row the first that says the same, which has the same vector."""

    def encode(self, items: Tensor, dropout: Dropout | None = None) -> Tensor:
        """(r, width) vectors of the news of rows `items` (r,) int64; row `anonymous` gives r0."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]:
        """What is trained."""
        ...


class NrmsNews(nn.Module):
    """Words of the title, self-attention among them, additive attention over them (Wu et al. 2019,
    EMNLP, Sec. 2.1)."""

    titles: Tensor

    def __init__(
        self,
        tokens: NewsTokens,
        words: Float32s,
        width: int,
        heads: int,
        queries: int,
        *,
        rng: np.random.Generator,
    ) -> None:
        super().__init__()
        self.anonymous = len(tokens)
        self.width = width
        self.words = nn.Parameter(torch.from_numpy(words.copy()))  # row PADDING is e0
        self.attention = SelfAttention(words.shape[1], width, heads, rng=rng)
        self.pool = AdditiveAttention(width, queries, rng=rng)
        self.register_buffer("titles", _with_anonymous(tokens.titles), persistent=False)
        self.first = _first_of_equals(self.titles)

    def encode(self, items: Tensor, dropout: Dropout | None = None) -> Tensor:
        """(r, width) news vectors."""
        h = self.attention.gathered(dropped(self.words, dropout), self.titles[items])
        return self.pool.forward(dropped(h, dropout))


class NamlNews(nn.Module):
    """Four views, title, abstract, category and subcategory, and attention over the views (Wu et
    al. 2019, IJCAI, Sec. 3.1)."""

    titles: Tensor
    abstracts: Tensor
    topics: Tensor

    def __init__(
        self,
        tokens: NewsTokens,
        words: Float32s,
        width: int,
        queries: int,
        category_width: int,
        *,
        rng: np.random.Generator,
    ) -> None:
        super().__init__()
        self.anonymous = len(tokens)
        self.width = width
        self.words = nn.Parameter(torch.from_numpy(words.copy()))
        self.title, self.abstract = (
            TextView(words.shape[1], width, queries, rng=rng) for _ in range(2)
        )
        self.category = CategoryView(tokens.num_categories, category_width, width, rng=rng)
        self.subcategory = CategoryView(tokens.num_subcategories, category_width, width, rng=rng)
        self.views = AdditiveAttention(width, queries, rng=rng)
        for name, rows in (("titles", tokens.titles), ("abstracts", tokens.abstracts)):
            self.register_buffer(name, _with_anonymous(rows), persistent=False)
        topics = np.stack([tokens.categories, tokens.subcategories], 1)
        self.register_buffer("topics", _with_anonymous(topics), persistent=False)
        self.first = _first_of_equals(torch.cat([self.titles, self.abstracts, self.topics], 1))

    def encode(self, items: Tensor, dropout: Dropout | None = None) -> Tensor:
        """(r, width) news vectors."""
        words = dropped(self.words, dropout)
        topics = self.topics[items]
        texts = [
            self.title.encode(words, self.titles[items], dropout),
            self.abstract.encode(words, self.abstracts[items], dropout),
        ]
        labels = [self.category.encode(topics[:, 0]), self.subcategory.encode(topics[:, 1])]
        return self.views.forward(torch.stack([*texts, *labels], 1))


class TextView(nn.Module):
    """relu of a convolution over three words, zeros outside the text, then additive attention (NAML
    eq. 1-5)."""

    def __init__(self, inputs: int, width: int, queries: int, *, rng: np.random.Generator) -> None:
        super().__init__()
        bound = (6 / (3 * inputs + width)) ** 0.5
        # (inputs, 3 width): what a word says to the place after it, to its own, to the place before
        # it
        self.filters = nn.Parameter(
            torch.from_numpy(rng.uniform(-bound, bound, (inputs, 3 * width)).astype(np.float32))
        )
        self.bias = offset(width)
        self.pool = AdditiveAttention(width, queries, rng=rng)

    def encode(self, words: Tensor, rows: Tensor, dropout: Dropout | None = None) -> Tensor:
        """(r, width) vectors of the texts whose word ids are `rows` (r, L)."""
        to_next, to_own, to_previous = self.filters.chunk(3, -1)
        h = gather_projected(words, rows, to_own) + self.bias
        h = h + functional.pad(gather_projected(words, rows[:, :-1], to_next), (0, 0, 1, 0))
        h = h + functional.pad(gather_projected(words, rows[:, 1:], to_previous), (0, 0, 0, 1))
        return self.pool.forward(dropped(functional.relu(h), dropout))


class CategoryView(nn.Module):
    """relu(W e_c + w0) of a category's embedding (NAML eq. 6); row PADDING belongs to news without
    category."""

    def __init__(
        self, categories: int, inputs: int, width: int, *, rng: np.random.Generator
    ) -> None:
        super().__init__()
        self.embeddings = matrix(categories, inputs, rng=rng)
        self.dense = matrix(inputs, width, rng=rng)
        self.bias = offset(width)

    def encode(self, ids: Tensor) -> Tensor:
        """(r, width) vectors of category ids (r,)."""
        return functional.relu(functional.embedding(ids, self.embeddings) @ self.dense + self.bias)


class PlmNews(nn.Module):
    """A dense layer over the cached vector of a pre-trained language model (PLM-NR, Wu et al. 2021,
    SIGIR).

    The paper pools token states by attention and fine-tunes the last layers. Here the language
    model is frozen and pooled once per news (`language_model`), so that a step costs one product;
    e0 is the trained stand-in for the pooled vector of a news of padding tokens.
    """

    vectors: Tensor

    def __init__(self, vectors: Float32s, width: int, *, rng: np.random.Generator) -> None:
        super().__init__()
        self.anonymous = len(vectors)
        self.width = width
        # e0, from the average news
        self.padding = nn.Parameter(torch.from_numpy(vectors.mean(0, keepdims=True)))
        self.dense = matrix(vectors.shape[1], width, rng=rng)
        self.bias = offset(width)
        self.first = np.arange(len(vectors) + 1)
        self.register_buffer(
            "vectors",
            torch.from_numpy(np.concatenate([vectors, np.zeros_like(vectors[:1])])),
            persistent=False,
        )

    def encode(self, items: Tensor, dropout: Dropout | None = None) -> Tensor:
        """(r, width) news vectors."""
        inputs = torch.where(
            (items == self.anonymous).unsqueeze(-1), self.padding, self.vectors[items]
        )
        return dropped(inputs, dropout) @ self.dense + self.bias


def _with_anonymous(rows: npt.NDArray[np.int32]) -> Tensor:
    """Rows as int64, one row of padding behind them."""
    return torch.from_numpy(
        np.concatenate([rows, np.full_like(rows[:1], PADDING)]).astype(np.int64)
    )


def _first_of_equals(rows: Tensor) -> Int64s:
    """(n,) for each row of numbers (n, L) the first that equals it."""
    _, first, same = np.unique(rows.numpy(), axis=0, return_index=True, return_inverse=True)
    return np.asarray(first[same.ravel()], np.int64)
