"""Counts of how often each item is rated: bounded reports of the users, and estimates from the
noisy sums.

A user sends one number for each of its items; the sum over users is released with noise
(`fedrec.privacy`).

Guarantee (user, add/remove). `Contributions.bound` is the largest L2 norm of one user's numbers,
hence the L2 sensitivity of the (m,) vector of sums, items of one user being distinct: removing the
user takes exactly its numbers away. Proofs are beside each function. Everything below "after the
release" is post-processing of the noisy sums and of public facts: no further cost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedrec.arrays import Float64s
from fedrec.budget import weights
from fedrec.data.interactions import Interactions


@dataclass(frozen=True)
class Contributions:
    """`values` (n,) float64, a user's number for each of its events; per user, the L2 norm is at
    most `bound`."""

    values: Float64s
    bound: float


def clipped_contributions(interactions: Interactions, *, limit: int) -> Contributions:
    """min(1, sqrt(limit / n_k)) on each item: the user's vector of ones, clipped to norm
    sqrt(limit), which is the bound."""
    ones = np.ones(interactions.num_items)
    return Contributions(
        weights.clipped(interactions, ones, budget=float(limit)).values, math.sqrt(limit)
    )


# --- after the release ---


def at_least_one(noisy: Float64s) -> Float64s:
    """max(n, 1), as the papers' public code does: weights n^-mu need positive counts."""
    return np.maximum(noisy, 1.0)
