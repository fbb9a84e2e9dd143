"""Directions of the default recipe before its steps: public content, links and vectors, and what
counts, biases and a Gram of tastes add to them.

Guarantee: post-processing of releases.
"""

from __future__ import annotations

import math

import numpy as np

from fedrec.arrays import Float64s

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


def directions_told(ratings: Float64s) -> int:
    """How many directions items that have so many ratings (m,) can carry deviations in."""
    beyond = np.maximum(ratings - FOR_BIASES, 0)
    # a number of directions is whole, and items always have one
    return max(round(DIRECTIONS_TOLD * float(np.mean(np.sqrt(beyond)))), 1)


def _rotated(columns: Float64s, counts: Float64s) -> Float64s:
    """The columns less their means under the counts, rotated so that second moments are diagonal
    and falling; directions without any are dropped. A constant direction is another one already, a
    user's own mean."""
    weights = counts / counts.sum()
    columns = columns - weights @ columns
    moments, Q = np.linalg.eigh((columns * weights[:, None]).T @ columns)
    kept = moments > 1e-9 * moments[-1]  # below: rounding of float64
    return np.ascontiguousarray((columns @ Q)[:, kept][:, ::-1])
