"""News encoders: public text in, news vectors out. NRMS, NAML, and PLM-NR over cached vectors of a
language model.

An encoder holds the catalogue it encodes, as numbers, beside its parameters, so a news is named by
its row. One row more, `anonymous` = m, is a news of padding tokens only: its vector is the paper's
r0 (PrivateRec Alg. 2 l. 1, Fig. 3). Padding tokens of short texts are not masked: that is how their
embedding e0 is trained, and why r0 is informative.

No encoder knows positions across words beyond a window, so the linear map that every word goes
through first is computed once per word of the vocabulary, not once per place, whenever that is less
work. Dropout of words is per word and step, therefore.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedrec.arrays import Float32s
from fedrec.encoders.attention import (
    AdditiveAttention,
    Dropout,
    SelfAttention,
    dropped,
    gather_projected,
    matrix,
    offset,
)
from fedrec.encoders.tokens import PADDING, NewsTokens


class NewsEncoder(Protocol):
    """A torch module that encodes rows of one catalogue."""

    anonymous: int
    width: int

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
