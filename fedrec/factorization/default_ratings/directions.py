"""Directions of the default recipe before its steps: public content, and what counts, biases and a
Gram of tastes add to it.

Guarantee: post-processing of releases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedrec.arrays import Float64s, Int64s
from fedrec.data.features import METADATA_WEIGHTS, svd_embedding
from fedrec.factorization.facts import PublicFacts

OWN_MEANS = 0.2
"""Variance of users' own means about the items' biases."""
COUNT_SLOPES = 0.03
"""Variance of users' slopes over items' log counts, per standard deviation of these over items or
over ratings, whichever is larger.

Over items alone it would be too large where noise hides most counts: they are alike then, and the
items that people rate lie up to nine deviations above. Over ratings alone it would be too large for
items that nobody rated. Validation RMSE, over items and over ratings (means of two draws or three;
one split of MovieLens 1M): planted, 1,000 users x 3,000 items at epsilon 1 .8582, .8496, 2,000 x
1,000 at .5 .8416, .8335; MovieLens 100K at .5 .9782, .9772; MovieLens 1M at .5 .9042, .9041.
"""
DIRECTIONS_TOLD = 2.0
FOR_BIASES = 2.0
"""Directions that carry deviations, for each square root of an item's ratings beyond so many, on
average.

A deviation's standard error falls as one over that root, and its prior is not wider the more of
them there are: with too many a step learns who happened to rate. The first ratings of an item tell
its bias. Validation RMSE without noise, with as many directions as `settings_for` says (23), and
with this (two draws; MovieLens 1M one): planted, 500 users x 5,000 items, 40 each, .8561, .8184;
2,000 x 10,000, 25 each, .8117, .8033; 1,000 x 3,000 .8094, .8016 (at epsilon 20 .8039, .8052);
2,000 x 5,000 .7860, .7750; 3,000 x 1,000 .7751, .7727; MovieLens 100K .8978, .8968, 1M .8388,
.8390; 300 and 1,000 people of it .8972, .8854 and .8660, .8601. With all ratings instead of those
beyond two the first three were .8262, .8086 and .7991. With 2.7 instead of 2, planted 2,000 x 2,000
at epsilon 20 had .7898, not .7934, and without noise .7859, not .7864 (three draws).
"""

BESIDE = 0.25
"""Energy of links and vectors over that of features, or of the second over the first.

Validation RMSE of 1,000 people of MovieLens 1M at epsilon 1 and 5, two draws: without public sides
1.0025, .9458; features .9377, .8955; their leading 100 directions as vectors .9414, .8985; links of
the ten nearest of these .9743, .9178; features and links with as much energy .9426, .8984, with a
quarter .9383, .8956; features and random vectors .9552, .9080 and .9423, .8992.
"""


def public_content(facts: PublicFacts, *, dimension: int) -> Float64s | None:
    """(m, dimension) leading directions of the features, mean squared row norm 1; None without
    features that tell an item from another."""
    if facts.features is None or not any(bag.tells for bag in facts.features.bags.values()):
        return None
    F = svd_embedding(facts.features, dimension=dimension, seed=0, weights=METADATA_WEIGHTS).astype(
        np.float64
    )
    return F / math.sqrt(float(np.mean(np.sum(F**2, axis=1))))


def together(sides: Sequence[Float64s | None], *, dimension: int) -> Float64s | None:
    """(m, dimension) leading directions of several public sides (m, f_q), mean squared row norm 1;
    None where none says anything. Sides after the first have `BESIDE` of its energy."""
    known = [P / math.sqrt(float(np.mean(np.sum(P**2, axis=1)))) for P in sides if P is not None]
    if not known:
        return None
    X = np.column_stack([known[0], *(math.sqrt(BESIDE) * P for P in known[1:])])
    _, E = np.linalg.eigh(X.T @ X)
    P = X @ E[:, ::-1][:, :dimension]
    return np.asarray(P / math.sqrt(float(np.mean(np.sum(P**2, axis=1)))), np.float64)


def directions(
    bias: Float64s,
    log_count: Float64s,
    counts: Float64s,
    *,
    content: Float64s | None,
    energy: float,
    tastes: Float64s | None,
) -> Float64s:
    """(m, D) phi at its prior standard deviations: a user's own mean, then the others rotated to
    falling importance under the counts.

    bias, log_count, counts: (m,). content: (m, f) of mean squared row norm 1, energy: what it gets.
    tastes: (m, d).
    """
    level = np.average(log_count, weights=counts)
    spread = max(math.sqrt(float(np.average((log_count - level) ** 2, weights=counts))), 1.0)
    columns = [
        math.sqrt(0.24) * bias[:, None],
        math.sqrt(COUNT_SLOPES) / spread * log_count[:, None],
    ]
    if content is not None:
        columns.append(math.sqrt(energy) * content)
    if tastes is not None:
        columns.append(tastes)
    own = np.full((len(bias), 1), math.sqrt(OWN_MEANS))
    return np.column_stack([own, _rotated(np.column_stack(columns), counts)])


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


def directions_told(ratings: Float64s) -> int:
    """How many directions items that have so many ratings (m,) can carry deviations in."""
    beyond = np.maximum(ratings - FOR_BIASES, 0)
    return max(round(DIRECTIONS_TOLD * float(np.mean(np.sqrt(beyond)))), 1)


def _rotated(columns: Float64s, counts: Float64s) -> Float64s:
    """The columns less their means under the counts, rotated so that second moments are diagonal
    and falling; directions without any are dropped. A constant direction is another one already, a
    user's own mean."""
    weights = counts / counts.sum()
    columns = columns - weights @ columns
    moments, Q = np.linalg.eigh((columns * weights[:, None]).T @ columns)
    kept = moments > 1e-9 * moments[-1]
    return np.ascontiguousarray((columns @ Q)[:, kept][:, ::-1])
