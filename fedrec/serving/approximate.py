"""Ranking a catalogue too large to look at every item: FAISS proposes candidates, which are then
scored and ordered exactly.

What it can miss is an item that was not proposed; the scores and the order of what it answers are
those of `ranking.Exact`. The inner product with a bias is one with a number more: (items_j, bias_j)
. (U, 1). A query with categories is ranked exactly: few items may have them, and an index would
propose others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from fedrec.arrays import Float32s
from fedrec.serving.ranking import Best, Catalogue, Exact, Query, rescored

_CANDIDATES = 100
_PER_ITEM = 4
"""Candidates of a query: so many, and so many for each item that is wanted."""

_TRAINED_ON = 64
"""Items a cell that the cells are found from; FAISS warns under 39."""

_LINKS = 32
_BUILD_EFFORT = 80
"""Of HNSW: neighbours kept of an item, candidates looked at while it is built."""


class Approximate:
    """ivf: cells, of which the nearest are searched; codes of 8 bits, so that the index adds a
    quarter to the model. hnsw: a graph of neighbours, faster and more complete, and larger than the
    model. effort: cells searched, or candidates kept on the way; 0 for an eighth of the cells, or
    256.
    """

    def __init__(
        self, catalogue: Catalogue, kind: Literal["ivf", "hnsw"], *, effort: int = 0
    ) -> None:
        self.catalogue = catalogue
        self._exact = Exact(catalogue)
        self._index = _INDEXES[kind](catalogue, effort)

    def __call__(self, queries: Sequence[Query]) -> list[Best]:
        """Implements `ranking.Ranker`."""
        return [
            self._exact([query])[0] if query.categories else self._one(query) for query in queries
        ]

    def _one(self, query: Query) -> Best:
        u = self.catalogue.users(query.coefficients[None])[0]
        wanted = min(len(self.catalogue.items), _CANDIDATES + _PER_ITEM * query.k)
        _, found = self._index.search(np.append(u, np.float32(1.0))[None], wanted)
        rows = np.sort(found[0][found[0] >= 0])
        return rescored(self.catalogue, u, rows, query.k)


def _ivf(catalogue: Catalogue, effort: int) -> Any:
    import faiss

    m = len(catalogue.items)
    width = catalogue.items.shape[1] + 1
    cells = max(1, 4 * math.isqrt(m))
    index = faiss.IndexIVFScalarQuantizer(
        faiss.IndexFlatIP(width),
        width,
        cells,
        faiss.ScalarQuantizer.QT_8bit,
        faiss.METRIC_INNER_PRODUCT,
    )
    sample = np.linspace(0, m - 1, min(m, _TRAINED_ON * cells)).astype(np.intp)
    index.train(_with_bias(catalogue, sample))
    _fill(index, catalogue)
    index.nprobe = effort or max(1, cells // 8)
    return index


def _hnsw(catalogue: Catalogue, effort: int) -> Any:
    import faiss

    index = faiss.IndexHNSWFlat(catalogue.items.shape[1] + 1, _LINKS, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = _BUILD_EFFORT
    _fill(index, catalogue)
    index.hnsw.efSearch = effort or 256
    return index


_INDEXES = {"ivf": _ivf, "hnsw": _hnsw}


def _fill(index: Any, catalogue: Catalogue) -> None:
    """In parts, so that there is never a second copy of all."""
    for rows in np.array_split(
        np.arange(len(catalogue.items)), max(1, len(catalogue.items) // 65_536)
    ):
        index.add(_with_bias(catalogue, rows))


def _with_bias(catalogue: Catalogue, rows: np.ndarray[Any, np.dtype[np.intp]]) -> Float32s:
    return np.column_stack([catalogue.items[rows], catalogue.bias[rows]]).astype(np.float32)
