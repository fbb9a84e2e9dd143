"""Directions of tastes: leading eigenvectors of a noised Gram.

Guarantee: post-processing of releases.
"""

from __future__ import annotations

import math

import numpy as np

from fedrec.arrays import Float64s, Int64s


def taste_directions(
    packed: Float64s,
    counts: Float64s,
    *,
    omega: Float64s,
    std: float,
    width: int,
    energy: float,
    users: int,
) -> tuple[Float64s, float]:
    """(m, d) leading eigenvectors of a noised Gram above the edge of the noise's spectrum, per
    rating, d <= width; and how many effective parameters they are.

    The edge is of the noise and of what so few users, of unit vectors, make of pairs that tell
    nothing: such a pair has a variance of users / K^2.

    packed: (K (K + 1) / 2,) its upper triangle, of the K items that are rated most, each weighing
    omega (K,); std: of the noise. counts: (m,). energy: mean square of all directions together,
    of which they have the part that stands out of the noise.

    Validation RMSE with all of it and with this part (290 planted users x 300 items, 840 x 1,000,
    means of three; 300 people of MovieLens 100K, and all, without features): at epsilon 5 .844,
    .837; .810, .809; 1.007, 1.007; .961, .955; at 20 .835, .829; .798, .794; .981, .975; .929,
    .926. Biases alone have .838 and .828 with 290 users. Without noise nothing changes.
    """
    popular = most_rated(counts, len(omega))
    K = len(popular)
    d = min(width, len(popular))
    gram = np.zeros((K, K))
    gram[np.triu_indices(K)] = packed
    gram = np.triu(gram, 1) + np.triu(gram, 1).T  # the diagonal is each item's own noise
    values, vectors = np.linalg.eigh(gram)
    values = values[::-1][:d]
    vectors = vectors[:, ::-1][:, :d]
    edge = math.sqrt(2 * K * std**2 + 4 * users / K) + 1e-9
    gain = np.maximum(values - edge**2 / np.maximum(values, edge), 0) + 1e-3 * edge
    hidden = math.sqrt(2 * K) * std  # the noise's own edge: what stays below it is of nobody
    told = np.maximum(values - hidden**2 / np.maximum(values, hidden + 1e-9), 0) + 1e-3 * hidden
    energy *= float(told.sum() / np.maximum(values, hidden + 1e-9).sum())
    tastes = np.zeros((len(counts), d))
    tastes[popular] = vectors / (omega * (counts[popular] + 1))[:, None]
    tastes /= np.sqrt(counts / counts.sum() @ tastes**2) + 1e-12
    fitted = K * float(np.sum(gain / np.maximum(values, edge)))
    return np.asarray(tastes * np.sqrt(energy * gain / gain.sum()), np.float64), fitted


def most_rated(counts: Float64s, most: int) -> Int64s:
    """At most so many items, by falling count."""
    return np.argsort(-counts, kind="stable")[:most]
