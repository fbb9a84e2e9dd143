"""Directions of a noised Gram that public features name, and what they say of items outside of it.

Guarantee: post-processing, by public features and releases.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedrec.arrays import Float64s

CONTENT = (0.05, 0.2)
"""Over K: how many leading directions of public features are asked first, and next.

Validation NDCG@20 (one draw) without features, with K / 10 directions, with K / 20 and then K / 5:
MovieLens 1M as likes at epsilon 1 and 5 .1636, .1717, .1723 and .2028, .2092, .2113; 100K at 1, 5
and 20 .1404, .1402, .1444; .2051, .2047, .2048; .2296, .2340, .2356. From K / 40 to K / 5 in four
steps the last of these were .1721, .2108, .1454, .2058, .2351.
"""
LEAST_CONTENT = 0.15
"""Of what pairs say beyond noise, how much directions of features must hold to be looked at first.

Those of MovieLens hold .22 to .58 (whole, 300 and 1,000 people, epsilon 1 to 5), features of other
items, at random, .05 to .10; these cost 1 to 4% of NDCG@20. Planted clicks .11 and .24, random ones
there .06 to .21, where neither changes lists by more than draws of noise do.

Where noise hides how much they hold, lists of ratings take them: those of MovieLens 100K at epsilon
.5 and 1 (three and four draws), of which features seem to hold -.12 to .21, 1.3 or fewer and 2.5 or
fewer standard errors, have validation NDCG@20 .1028 and .1400 without, .1191 and .1545 with them;
random features there .1062 and .1335 without, .1055 and .1299 with them. Clicks do not: planted
ones at epsilon 1 lose 1% by it (.0848, .0838 of 2,000 x 5,000; .2207, .2187 of 2,000 x 1,000).
"""
SMALLEST = 1e-3
"""Of the largest singular value of p F: directions below are not told apart from rounding."""


def subspaces(popular: Float64s, content: Float64s) -> list[tuple[Float64s, Float64s]]:
    """Orthonormal bases (K, k) of the leading `CONTENT` directions of p F, and how they are made,
    (f, k): p F made."""
    K, f = content.shape
    found = list[tuple[Float64s, Float64s]]()
    for first in sorted({min(int(part * K), f) for part in CONTENT} - {0}):
        left, values, right = np.linalg.svd(popular[:, None] * content[:, :first], False)
        told = values > SMALLEST * max(float(values[0]), 1e-300)
        made = np.zeros((f, int(np.count_nonzero(told))))
        made[:first] = right[told].T / values[told]
        found.append((left[:, told], made))
    return found


def tells(basis: Float64s, pairs: Float64s, variance: float, *, if_hidden: bool = False) -> bool:
    """Whether directions (K, k) hold `LEAST_CONTENT` of what pairs (K, K) say beyond noise of this
    variance, and hold it surely; if_hidden: or may hold it, two standard errors more than is seen
    being as much."""
    K, k = basis.shape
    beyond_noise = float(np.sum(pairs**2)) - K * (K - 1) * variance
    held = float(np.sum((basis.T @ pairs @ basis) ** 2)) - k * k * variance
    # the sum of k^2 squares of noise, each pair of which is there twice, has std 2 k variance
    least = LEAST_CONTENT * beyond_noise
    error = 2 * k * variance
    return bool(held + 2 * error >= least if if_hidden else held > max(least, 4 * error))


def public_part(
    bases: Sequence[tuple[Float64s, Float64s]], columns: Sequence[Float64s], made: Float64s
) -> Float64s:
    """(1 + f, r): what makes Q of [p, p F], as far as popularity and content make it.

    bases: as `subspaces` gives them. columns: of popularity, then of each of them. made: (n, r),
    what makes Q of all columns.
    """
    parts = [np.eye(1 + len(bases[0][1]), 1)]
    for (basis, of_content), column in zip(bases, columns[1:], strict=True):
        parts.append(np.vstack([np.zeros(column.shape[1]), of_content @ (basis.T @ column)]))
    known = np.column_stack(parts)
    return np.asarray(known @ made[: known.shape[1]], np.float64)
