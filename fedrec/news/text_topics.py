"""Topics of news from public vectors: soft clusters, or the vectors' first coordinates."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s
from fedrec.privacy.bounded_mean import TopicTable, topic_table

TEMPERATURE = 0.08
"""Of topics from text: .05, .08 and .15 ranked alike without training, for validation users of
MovieLens 1M."""
_ITERATIONS = 50  # at most: Lloyd's algorithm mostly ends by itself before


def directions(vectors: npt.NDArray[np.floating], *, width: int) -> TopicTable:
    """(m, `width`) the first coordinates of `vectors`, each row of length 1 or all zeros.

    Raises ValueError on more than there are."""
    if not 1 <= width <= vectors.shape[1]:
        raise ValueError(f"need 1 to {vectors.shape[1]} directions, found {width}")
    return topic_table(_unit(np.asarray(vectors, np.float64)[:, :width]))


def text_topics(
    vectors: npt.NDArray[np.floating],
    *,
    topics: int,
    rng: np.random.Generator,
    temperature: float = TEMPERATURE,
) -> TopicTable:
    """(m, `topics`) soft memberships in clusters of the rows of `vectors`; rows of zeros belong to
    all alike.

    Raises ValueError on fewer items than topics or a temperature that is not positive.
    """
    if not 1 <= topics <= len(vectors) or not temperature > 0:
        raise ValueError(
            f"need 1 to {len(vectors)} topics and a positive temperature, found {topics} and "
            f"{temperature!r}"
        )
    X = _unit(np.asarray(vectors, np.float64))
    cosines = X @ _unit(kmeans(X, topics, rng=rng)).T / temperature
    weights = np.exp(cosines - cosines.max(1, keepdims=True))
    return topic_table(weights / weights.sum(1, keepdims=True))


def kmeans(X: Float64s, clusters: int, *, rng: np.random.Generator) -> Float64s:
    """(clusters, p) centres of the rows of X after Lloyd's iterations from k-means++ seeds; a
    cluster that loses all rows stays."""
    centres = _seeds(X, clusters, rng)
    before = np.full(len(X), -1)
    for _ in range(_ITERATIONS):
        nearest = _distances(X, centres).argmin(1)
        if (nearest == before).all():
            break
        before = nearest
        sizes = np.bincount(nearest, minlength=clusters)
        sums = np.zeros_like(centres)
        np.add.at(sums, nearest, X)
        centres = np.where(sizes[:, None] > 0, sums / np.maximum(sizes, 1)[:, None], centres)
    return centres


def _seeds(X: Float64s, clusters: int, rng: np.random.Generator) -> Float64s:
    chosen = [int(rng.integers(len(X)))]
    nearest = _distances(X, X[chosen])[:, 0]
    while len(chosen) < clusters:
        total = nearest.sum()
        chosen.append(
            int(rng.choice(len(X), p=nearest / total)) if total > 0 else int(rng.integers(len(X)))
        )
        nearest = np.minimum(nearest, _distances(X, X[chosen[-1:]])[:, 0])
    return np.asarray(X[chosen])


def _distances(X: Float64s, centres: Float64s) -> Float64s:
    """(n, clusters) squares."""
    return np.asarray(
        np.maximum((X**2).sum(1)[:, None] - 2 * X @ centres.T + (centres**2).sum(1), 0.0)
    )


def _unit(X: Float64s) -> Float64s:
    return np.asarray(X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-12))
