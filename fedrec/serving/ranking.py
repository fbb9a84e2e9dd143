"""The k best items of a whole catalogue for many queries at once, exactly, in memory that does not
grow with the catalogue.

    score_j = items_j . U + bias_j, rounded to float32; best first, of equal scores the smaller
        key first (`numerics.segments`)

Tiles of items are scored by one single-precision matrix product for all queries; what could be
among the k best given the error of that product is scored again, each query alone, in double
precision. So an answer depends on its own query only: to the last bit it is the same whether the
query came alone or in a crowd, and the same as sorting every score.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float32s
from fedrec.numerics.segments import tie_keys
from fedrec.serving.user_map import UserMap

Rows = npt.NDArray[np.intp]

_MOST_SCORES = 2**18
"""Scores held at once: 1 MiB."""

_LARGEST_TILE = 2**16
_BLOCK = 2**11
"""Items of one matrix product: at 64 numbers each they stay in a core's own cache, where a product
for many queries is fastest."""

_NOTHING = float(np.finfo(np.float32).min)
"""Above the -inf of an item that is not allowed, below every score."""

_SAMPLE = 1_024
_POOL = 1_024
"""Scores that a first floor is made from; candidates of one query before the worst are dropped."""


class Catalogue(Protocol):
    """What is ranked: a `bundle.Bundle` or its part for servers, `bundle.Ranked`."""

    @property
    def users(self) -> UserMap: ...  # noqa: D102
    @property
    def items(self) -> Float32s: ...  # noqa: D102
    @property
    def bias(self) -> Float32s: ...  # noqa: D102
    @property
    def categories(self) -> npt.NDArray[np.unsignedinteger]: ...  # noqa: D102


@dataclass(frozen=True)
class Query:
    """coefficients: (B,) finite. k: items wanted. categories: bits, of which an item must have one;
    0 takes every item."""

    coefficients: Float32s
    k: int
    categories: int = 0


@dataclass(frozen=True)
class Best:
    """items: rows, best first, (k,) or fewer where fewer are allowed; scores: (k,)."""

    items: Rows
    scores: Float32s


class Ranker(Protocol):
    """One catalogue's way to answer queries."""

    def __call__(self, queries: Sequence[Query]) -> list[Best]:
        """One answer for each query."""


class Exact:
    """Every item is looked at."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self._longest = _longest(catalogue.items)
        self._largest_bias = float(np.abs(catalogue.bias).max(initial=0.0))

    def __call__(self, queries: Sequence[Query]) -> list[Best]:
        """Implements `Ranker`."""
        U = np.concatenate([self.catalogue.users(query.coefficients[None]) for query in queries])
        pools = [_Pool(query.k, self._slack(u)) for query, u in zip(queries, U, strict=True)]
        for start, scores in self._tiles(U):
            for query, pool, row in zip(queries, pools, scores, strict=True):
                if query.categories:
                    row[
                        self.catalogue.categories[start : start + len(row)]
                        & self.catalogue.categories.dtype.type(query.categories)
                        == 0
                    ] = -np.inf
                pool.add(start, row)
        return [
            rescored(self.catalogue, u, pool.rows(), query.k)
            for query, pool, u in zip(queries, pools, U, strict=True)
        ]

    def _tiles(self, U: Float32s) -> Iterator[tuple[int, Float32s]]:
        """First row and (n, tile) scores, one tile after another."""
        m = len(self.catalogue.items)
        width = max(_BLOCK, min(_LARGEST_TILE, _MOST_SCORES // len(U)))
        for start in range(0, m, width):
            scores = _products(self.catalogue.items[start : start + width], U)
            scores += self.catalogue.bias[start : start + width]
            yield start, scores

    def _slack(self, u: Float32s) -> float:
        """How far apart two single-precision scores may be whose true order is the other way round:
        twice the error of a dot product of D numbers and a sum, and two roundings of the result
        (Higham, Accuracy and Stability, eq. 3.5)."""
        size = (
            float(np.sqrt(np.square(u, dtype=np.float64).sum())) * self._longest
            + self._largest_bias
        )
        return 2.0 * (len(u) + 4) * 2.0**-23 * size


class _Pool:
    """Rows of one query that may be among its k best, in ascending order, with their
    single-precision scores."""

    def __init__(self, k: int, slack: float) -> None:
        self._k = k
        self._slack = slack
        self._floor = _NOTHING
        self._rows: list[Rows] = []
        self._scores: list[Float32s] = []
        self._size = 0

    def add(self, start: int, scores: Float32s) -> None:
        """Scores of rows `start` and following; -inf for those that are not allowed."""
        if self._floor == _NOTHING:
            self._floor = self._below_best(scores[:: max(1, len(scores) // _SAMPLE)])
        found = np.flatnonzero(scores >= self._floor)
        self._rows.append(found + start)
        self._scores.append(scores[found])
        self._size += len(found)
        if self._size > max(_POOL, 4 * self._k):
            self._drop()

    def rows(self) -> Rows:
        """What is left."""
        self._drop()
        return self._rows[0]

    def _drop(self) -> None:
        rows = np.concatenate(self._rows)
        scores = np.concatenate(self._scores)
        self._floor = self._below_best(scores)
        kept = scores >= self._floor
        self._rows = [rows[kept]]
        self._scores = [scores[kept]]
        self._size = int(kept.sum())

    def _below_best(self, scores: Float32s) -> float:
        """What no item of the k best can be under, given that these scores are some of all."""
        if len(scores) <= self._k:
            return self._floor
        kth = len(scores) - self._k
        return max(self._floor, float(np.partition(scores, kth)[kth]) - self._slack)


def _products(items: Float32s, U: Float32s) -> Float32s:
    """(n, len(items)).

    Of equal speed for one query; for many, several times faster than one product U items'."""
    if len(U) == 1:
        return np.asarray(items @ U[0])[None]
    scores = np.empty((len(U), len(items)), np.float32)
    for start in range(0, len(items), _BLOCK):
        scores[:, start : start + _BLOCK] = (items[start : start + _BLOCK] @ U.T).T
    return scores


def rescored(catalogue: Catalogue, u: Float32s, rows: Rows, k: int) -> Best:
    """The k best of the candidates `rows`, ascending, for the user vector u: (D,)."""
    # a product and a sum along each row: the order of additions does not depend on which rows there
    # are
    products = catalogue.items[rows].astype(np.float64) * u
    scores = (products.sum(axis=1) + catalogue.bias[rows]).astype(np.float32)
    order = np.lexsort((tie_keys(rows), -scores))[:k]
    return Best(rows[order], scores[order])


def _longest(items: Float32s) -> float:
    """The largest L2 norm of a row, without a second copy of all."""
    squares = [
        np.einsum("jd,jd->j", part, part, dtype=np.float64).max()
        for part in np.array_split(items, max(1, len(items) // _LARGEST_TILE))
    ]
    return float(np.sqrt(max(squares)))
