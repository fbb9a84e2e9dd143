"""Draws of planted events, compiled: one user after another, each from a stream of its own."""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float32s, Int32s, Int64s

FIRST_TIME = 946_684_800
LAST_TIME = 1_104_537_600  # 2000 to 2004


def alias_table(weights: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], Int32s]:
    """Walker's alias method (Vose 1991): item j of a uniform draw stands for itself below
    `threshold[j]`, else for `alias[j]`."""
    m = len(weights)
    threshold = weights * (m / weights.sum())
    alias = np.arange(m, dtype=np.int32)
    small = [int(j) for j in np.flatnonzero(threshold < 1)]
    large = [int(j) for j in np.flatnonzero(threshold >= 1)]
    while small and large:
        less = small.pop()
        more = large[-1]
        alias[less] = more
        threshold[more] -= 1 - threshold[less]
        if threshold[more] < 1:
            small.append(large.pop())
    threshold[small + large] = 1.0
    return threshold, alias


@numba.njit(nogil=True, cache=True, inline="always")
def _next(state: np.uint64) -> tuple[np.uint64, np.uint64]:
    """SplitMix64 (Steele, Lea, Flood 2014): the next state and 64 bits.

    For data, not for noise that protects."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    z = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state, z ^ (z >> np.uint64(31))


@numba.njit(nogil=True, cache=True)
def fill_users(
    start: int, stop: int, first_user: int, user_ptr: Int64s, threshold: npt.NDArray[np.float64],
    alias: Int32s,
    U: Float32s, V: Float32s, user_bias: Float32s, item_bias: Float32s,
    settings: npt.NDArray[np.float64], rated: bool,
    key: np.uint64, items: Int32s, values: Float32s, times: Int64s,
) -> None:  # fmt: skip
    """Draw items without replacement by popularity x sigmoid(affinity), then a rating and a time
    for each, in the order of the items."""
    m = V.shape[0]
    d = V.shape[1]
    unit = 1.0 / 9007199254740992.0  # 2^-53
    mean, low, high, step, noise_std, selectivity = settings
    seen = np.zeros((m + 63) // 64, np.uint64)
    for local in range(start, stop):
        k = first_user + local
        state, bits = _next(key ^ (np.uint64(k) * np.uint64(0xD1342543DE82EF95)))
        state = state ^ bits
        count = user_ptr[local + 1] - user_ptr[local]
        found = 0
        while found < count:
            state, bits = _next(state)
            j = np.int64((bits >> np.uint64(32)) * np.uint64(m) >> np.uint64(32))
            state, more = _next(state)
            if np.float64(more >> np.uint64(11)) * unit >= threshold[j]:
                j = np.int64(alias[j])
            word = j >> 6
            bit = np.uint64(1) << np.uint64(j & 63)
            if seen[word] & bit:
                continue
            affinity = np.float64(item_bias[j])
            for c in range(d):
                affinity += U[k, c] * V[j, c]
            state, bits = _next(state)
            if np.float64(bits >> np.uint64(11)) * unit < 1.0 / (
                1.0 + np.exp(-selectivity * affinity)
            ):
                seen[word] |= bit
                found += 1
        state, bits = _next(state)
        joined = FIRST_TIME + np.float64(bits >> np.uint64(11)) * unit * 0.7 * (
            LAST_TIME - FIRST_TIME
        )
        e = np.int64(user_ptr[local])
        for block in range(len(seen)):
            while seen[block]:
                lowest = seen[block] & (~seen[block] + np.uint64(1))
                seen[block] ^= lowest
                place = np.int64(0)
                while lowest >> np.uint64(place) != np.uint64(1):
                    place += 1
                j = np.int64(block * 64 + place)
                items[e] = j
                state, bits = _next(state)
                state, more = _next(state)
                first = (np.float64(bits >> np.uint64(11)) + 1.0) * unit
                second = np.float64(more >> np.uint64(11)) * unit
                if rated:
                    rating = mean + user_bias[k] + item_bias[j]
                    for c in range(d):
                        rating += U[k, c] * V[j, c]
                    # Box, Muller 1958
                    rating += (
                        noise_std * np.sqrt(-2.0 * np.log(first)) * np.cos(2.0 * np.pi * second)
                    )
                    values[e] = min(
                        max(low + step * np.floor((rating - low) / step + 0.5), low), high
                    )
                state, bits = _next(state)
                wait = np.float64(bits >> np.uint64(11)) * unit
                times[e] = np.int64(joined + wait * wait * (LAST_TIME - joined))
                e += 1
