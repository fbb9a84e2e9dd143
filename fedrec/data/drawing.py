"""Distinct items in proportion to public weights, none of them a user's own: negatives, and what a
news page shows."""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s, Int32s, Int64s
from fedrec.data.keyed_hash import Words
from fedrec.errors import DataError


def draw_others(
    weights: npt.NDArray[np.generic],
    *,
    own_ptr: Int64s,
    own: Int32s,
    users: Int32s,
    size: int,
    seeds: Words,
) -> Int32s:
    """(n, size) int32: row i holds distinct items drawn one after another by weight, none of weight
    0, none that user `users[i]` owns.

    seeds: (n,) uint64, uniform: row i depends on its own, on the weights and on what its user owns,
    and on no other row. weights: (m,) not negative. User k owns the distinct items
    `own[own_ptr[k]:own_ptr[k + 1]]`.
    Raises DataError where too few items are left for a user, ValueError on a negative weight.
    """
    weight = weights.astype(np.float64)
    if not (weight >= 0).all():
        raise ValueError(f"weights must not be negative, found {weight.min()}")
    owned = np.concatenate([[0], np.cumsum(weight[own] > 0)])[own_ptr]
    left = int((weight > 0).sum()) - np.diff(owned)[users]
    if len(users) and left.min() < size:
        raise DataError(
            f"a user has {int(left.min())} items left to draw {size} others from",
            "Ask for fewer candidates, or take a log with more items.",
        )
    drawn = np.empty((len(users), size), np.int32)
    _draw_rows(np.cumsum(weight), own_ptr, own, users, drawn, seeds)
    return drawn


@numba.njit(nogil=True, cache=True)
def draw_one(cumulated: Float64s, rng: np.random.Generator) -> int:
    """An item in proportion to its weight, from the cumulated weights: never one of weight 0, since
    those add no step."""
    return int(np.searchsorted(cumulated, rng.random() * cumulated[-1], side="right"))


@numba.njit(nogil=True, cache=True)
def _draw_rows(
    cumulated: Float64s, own_ptr: Int64s, own: Int32s, users: Int32s, drawn: Int32s, seeds: Words
) -> None:
    """SplitMix64 (Steele, Lea, Flood 2014) from each row's seed.

    Rejection is drawing one after another without replacement; no item is rarer than its weight, so
    it ends.
    """
    taken = np.full(len(cumulated), -1, np.int64)
    for i in range(len(users)):
        for e in range(own_ptr[users[i]], own_ptr[users[i] + 1]):
            taken[own[e]] = i
        found = 0
        state = seeds[i]
        while found < drawn.shape[1]:
            state = state + np.uint64(0x9E3779B97F4A7C15)
            z = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            uniform = np.float64((z ^ (z >> np.uint64(31))) >> np.uint64(11)) / 9007199254740992.0
            j = int(np.searchsorted(cumulated, uniform * cumulated[-1], side="right"))
            if taken[j] != i:
                taken[j] = i
                drawn[i, found] = j
                found += 1
