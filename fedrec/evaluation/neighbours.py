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


def neighbour_lists(V: npt.NDArray[np.floating], *, k: int = 20) -> npt.NDArray[np.int64]:
    """(m, k) the k items of largest inner product with each item, largest first, itself left out:
    Ada-DPALS App. D.3's similarity.

    Cosine is the inner product of rows of length 1. Raises ValueError where there are not more than
    k items.
    """
    m = len(V)
    if not 1 <= k < m:
        raise ValueError(f"{m} items have lists of 1..{m - 1} neighbours, found k = {k}")
    X = np.asarray(V, np.float64)
    lists = np.empty((m, k), np.int64)
    for start in range(0, m, 512):  # bounded memory
        rows = np.arange(start, min(start + 512, m))
        similarity = X[rows] @ X.T
        similarity[np.arange(len(rows)), rows] = -np.inf
        some = np.argpartition(-similarity, k - 1, axis=1)[:, :k]
        order = np.argsort(-np.take_along_axis(similarity, some, axis=1), axis=1, kind="stable")
        lists[rows] = np.take_along_axis(some, order, axis=1)
    return lists


def overlap(
    lists: npt.NDArray[np.integer], reference: npt.NDArray[np.integer]
) -> npt.NDArray[np.float64]:
    """(m,) which share of each item's k neighbours in `reference` is in `lists` too, both (m, k)
    (Ada-DPALS Fig. 10)."""
    if lists.shape != reference.shape:
        raise ValueError(f"lists of shape {lists.shape} do not align with {reference.shape}")
    return np.array(
        [len(np.intersect1d(a, b)) / len(a) for a, b in zip(lists, reference, strict=True)]
    )
