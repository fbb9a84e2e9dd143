"""Items that lie close to a few chosen ones: the look inside a model that a person can judge
(Ada-DPALS Table 3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrec.numerics.ties import tie_keys


@dataclass(frozen=True)
class Neighbours:
    """The items closest to `query` by cosine of their vectors, closest first, itself left out."""

    query: int
    items: tuple[int, ...]
    similarities: tuple[float, ...]


def nearest(
    V: npt.NDArray[np.floating], queries: npt.NDArray[np.integer], *, k: int = 5
) -> tuple[Neighbours, ...]:
    """The k nearest of each query among (m, d) item vectors; a zero vector is similar to nothing
    (0). Of equal ones the smaller key is first (`numerics.ties`)."""
    lengths = np.linalg.norm(V, axis=1, keepdims=True)
    directions = (V / np.where(lengths > 0, lengths, 1)).astype(np.float64)
    return tuple(_of(directions, int(query), k) for query in queries)


def _of(directions: npt.NDArray[np.float64], query: int, k: int) -> Neighbours:
    similarity = directions @ directions[query]
    order = np.lexsort((tie_keys(np.arange(len(similarity))), -similarity))
    chosen = order[order != query][:k]
    return Neighbours(query, tuple(map(int, chosen)), tuple(float(similarity[j]) for j in chosen))
