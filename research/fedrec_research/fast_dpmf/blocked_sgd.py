"""Stochastic gradient and Langevin passes over ratings, block by block (Liu, Wang, Smola 2015, Alg.
2 and Sec. 5).

Items are ranked by popularity and cut into S tiers of equal numbers of ratings, users into S
stripes likewise: S x S blocks, read user after user, so that a user's row and the popular tiers
stay in the caches (Sec. 5.2). In round r of a pass, stripe s meets tier (s + r) mod S. The S blocks
of a round share no row, so threads need no locks, and the result does not depend on their number:
where the paper's item updates race (Hogwild), ours are those of one thread.

Noise (Sec. 5.4, "Dense Updates"). Between the gradient steps every row follows d theta = -2 lambda
theta dt + sqrt(2 T) dW, T the temperature 1/c of the density exp(-c F). Over a time s that is
exactly theta <- a theta + N(0, T (1 - a^2) / (2 lambda) I) with a = exp(-2 lambda s), and such
steps compose: a row that was left alone for a while gets one draw of the right decay and variance
when it is next met, and all rows do at the end. Fresh draws (`fill_normals`), where the paper
reuses a table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedrec.arrays import Float64s, Floats, Int32s, Int64s
from fedrec.data.interactions import Interactions
from fedrec.numerics import compiled
from fedrec.numerics.kernels import pad_columns
from fedrec.numerics.threads import map_ranges
from fedrec.numerics.tiles import prefetch
from fedrec_research.fast_dpmf.normals import diffuse, fill_normals
from fedrec_research.fast_dpmf.pair_step import dot, exchange

AHEAD = 4
"""Events between asking for an item's row and using it (Alg. 2 l. 11; the paper's stride is 2)."""


@dataclass(frozen=True)
class Blocks:
    """Ratings in the order they are met. Block s S + t holds users of stripe s and items of tier t:
    events starts[b]:starts[b + 1].

    users, ranks: (n,) int32, an item by its rank of popularity. values: (n,). item_rank: (m,).
    """

    stripes: int
    num_users: int
    starts: Int64s
    users: Int32s
    ranks: Int32s
    values: Floats
    item_rank: Int32s


def blocks_of(interactions: Interactions, values: Floats, *, stripes: int = 16) -> Blocks:
    """Cut `interactions`, whose events have `values` (n,) in place of their own."""
    counts = np.bincount(interactions.items, minlength=interactions.num_items)
    by_popularity = np.argsort(-counts, kind="stable")
    rank = np.empty(interactions.num_items, np.int32)
    rank[by_popularity] = np.arange(interactions.num_items, dtype=np.int32)
    tier = _stripes(np.cumsum(counts[by_popularity]), stripes)[rank]
    stripe = _stripes(interactions.user_ptr[1:], stripes)
    starts = np.zeros(stripes * stripes + 1, np.int64)
    n = len(interactions)
    blocks = Blocks(
        stripes,
        interactions.num_users,
        starts,
        np.empty(n, np.int32),
        np.empty(n, np.int32),
        np.empty_like(values),
        rank,
    )
    _sort(
        interactions.user_ptr, interactions.items, values, rank, tier, stripe, stripes, starts,
        blocks.users, blocks.ranks, blocks.values
    )  # fmt: skip
    return blocks


def _stripes(ends: Int64s, stripes: int) -> Int32s:
    """The stripe of each row, given the events up to its end: equal events, whole rows."""
    total = int(ends[-1]) if len(ends) else 0
    return np.asarray(
        np.minimum((ends - 1).clip(0) * stripes // max(total, 1), stripes - 1), np.int32
    )


@compiled()
def _sort(
    user_ptr: Int64s, items: Int32s, values: Floats, rank: Int32s, tier: Int32s, stripe: Int32s,
    stripes: int,
    starts: Int64s, users: Int32s, ranks: Int32s, sorted_values: Floats,
) -> None:  # fmt: skip
    """Stable counting sort by block: within one, users keep their order."""
    for k in range(len(user_ptr) - 1):
        for e in range(user_ptr[k], user_ptr[k + 1]):
            starts[stripe[k] * stripes + tier[items[e]] + 1] += 1
    for b in range(len(starts) - 1):
        starts[b + 1] += starts[b]
    free = starts[:-1].copy()
    for k in range(len(user_ptr) - 1):
        for e in range(user_ptr[k], user_ptr[k + 1]):
            b = stripe[k] * stripes + tier[items[e]]
            at = free[b]
            free[b] = at + 1
            users[at] = k
            ranks[at] = rank[items[e]]
            sorted_values[at] = values[e]


@dataclass(frozen=True)
class Diffusion:
    """What rows do between gradient steps: `ridge` is lambda > 0 of F, `temperature` T; `key` of
    the draws. See the module."""

    ridge: float
    temperature: float
    key: int


@dataclass
class Rows:
    """The parameters of a descent, moved in place: U (users, width) and V (items by rank, width),
    padded; and when each was last met."""

    U: Floats
    V: Floats
    dimension: int
    user_time: Float64s
    item_time: Float64s
    time: float = 0.0
    rounds: int = 0

    @staticmethod
    def of(U: Floats, V: Floats, blocks: Blocks) -> Rows:
        """From U (n, d) and V (m, d), items by number; copies."""
        by_rank = np.empty_like(V)
        by_rank[blocks.item_rank] = V
        padded = [pad_columns(np.array(table), table.dtype) for table in (U, by_rank)]
        return Rows(padded[0], padded[1], U.shape[1], np.zeros(len(U)), np.zeros(len(V)))

    def item_vectors(self, blocks: Blocks) -> Floats:
        """(m, d), items by number."""
        return np.ascontiguousarray(self.V[blocks.item_rank, : self.dimension])


@dataclass(frozen=True)
class Pass:
    """One pass over all ratings: x <- keep x + rate w (r - u.v) y for both rows of each event (eq.
    3).

    cap: events whose residual is larger have no gradient, that of the loss min(residual^2, cap^2).
    weights: (users,) w, None is 1. time: length of the pass for the diffusion.
    """

    rate: float
    keep: float = 1.0
    cap: float = math.inf
    weights: Floats | None = None
    time: float = 0.0


def descend(rows: Rows, blocks: Blocks, one: Pass, diffusion: Diffusion | None = None) -> None:
    """One pass over all blocks, in S rounds; `diffusion` makes it Langevin's."""
    w = np.empty(0, rows.U.dtype) if one.weights is None else np.asarray(one.weights, rows.U.dtype)
    numbers = np.array([one.rate, one.keep, one.cap], rows.U.dtype)
    for turn in range(blocks.stripes):
        state = _noise_state(rows, diffusion)

        def kernel(first: int, last: int, turn: int = turn, state: tuple[Any, ...] = state) -> None:
            _sweep(first, last, turn, blocks.stripes, blocks.starts, blocks.users, blocks.ranks,
            blocks.values, w,
                   rows.U.reshape(-1), rows.V.reshape(-1), rows.U.shape[1], numbers,
                   *state)  # fmt: skip

        map_ranges(kernel, blocks.stripes)
        rows.time += one.time / blocks.stripes
        rows.rounds += 1


def settle(rows: Rows, diffusion: Diffusion) -> None:
    """Bring every row to the present, those that were met long ago too."""
    times, now, physics, key, rounds = rows.user_time, *_noise_state(rows, diffusion)[2:]
    for table, values, last in ((0, rows.U, times), (1, rows.V, rows.item_time)):
        flat = values.reshape(-1)
        width = values.shape[1]

        def kernel(
            first: int,
            stop: int,
            flat: Floats = flat,
            last: Float64s = last,
            table: int = table,
            width: int = width,
        ) -> None:
            _settle(first, stop, flat, width, last, now, physics, key, rounds, table)

        map_ranges(kernel, len(values))
    rows.rounds += 1


def products(rows: Rows, blocks: Blocks, users: Int32s, items: Int32s) -> Floats:
    """u_k . v_j of pairs (n,), in the rows' type: predictions of what `values` of the blocks
    were."""
    ranks = blocks.item_rank[items]
    out = np.empty(len(users), rows.U.dtype)
    U = rows.U.reshape(-1)
    V = rows.V.reshape(-1)
    width = rows.U.shape[1]
    map_ranges(
        lambda first, stop: _products(first, stop, users, ranks, U, V, width, out), len(users)
    )
    return out


def _noise_state(
    rows: Rows, diffusion: Diffusion | None
) -> tuple[Float64s, Float64s, float, Float64s, int, int]:
    """When rows were last met, now, (lambda, T, d) or nothing, and what the draws depend on."""
    physics = (
        np.empty(0)
        if diffusion is None
        else np.array([diffusion.ridge, diffusion.temperature, rows.dimension])
    )
    return (
        rows.user_time,
        rows.item_time,
        rows.time,
        physics,
        diffusion.key if diffusion else 0,
        rows.rounds,
    )


@compiled(inner=True)
def _catch_up(
    values: Floats,
    row: int,
    width: int,
    last: Float64s,
    now: float,
    physics: Float64s,
    key: int,
    round: int,
    table: int,
    normals: Floats,
) -> None:
    """What happened to a row since it was last met: one decay and one draw.

    Padding stays at 0. physics: lambda, T, d."""
    elapsed = now - last[row]
    if elapsed > 0.0:
        ridge = physics[0]
        temperature = physics[1]
        std = math.sqrt(-temperature * math.expm1(-4.0 * ridge * elapsed) / (2.0 * ridge))
        # compiled once, not for each type and table
        fill_normals(normals, width, key, np.int64(row), round, np.int64(table))
        diffuse(
            values, row * width, int(physics[2]), math.exp(-2.0 * ridge * elapsed), std, normals
        )
        last[row] = now


@compiled()
def _settle(
    first: int,
    stop: int,
    values: Floats,
    width: int,
    last: Float64s,
    now: float,
    physics: Float64s,
    key: int,
    round: int,
    table: int,
) -> None:
    normals = np.empty(width, np.float32)
    for row in range(first, stop):
        _catch_up(values, row, width, last, now, physics, key, round, table, normals)


@compiled()
def _products(
    first: int,
    stop: int,
    users: Int32s,
    ranks: Int32s,
    U: Floats,
    V: Floats,
    width: int,
    out: Floats,
) -> None:
    for e in range(first, stop):
        prefetch(V, np.intp(ranks[min(e + AHEAD, stop - 1)]) * width, width)
        out[e] = dot(U, np.intp(users[e]) * width, V, np.intp(ranks[e]) * width, width)


@compiled()
def _sweep(
    first: int, last: int, turn: int, stripes: int, starts: Int64s, users: Int32s, ranks: Int32s,
    values: Floats, weights: Floats,
    U: Floats, V: Floats, width: int, numbers: Floats,
    user_time: Float64s, item_time: Float64s, now: float, physics: Float64s, key: int, round: int,
) -> None:  # fmt: skip
    """The blocks of stripes [first, last) in one round; numbers: rate, keep, cap."""
    keep = numbers[1]
    cap = numbers[2]
    end = len(ranks) - 1
    diffusing = len(physics) > 0
    normals = np.empty(width, np.float32)
    for s in range(first, last):
        b = s * stripes + (s + turn) % stripes
        k = -1
        rate = numbers[0]
        for e in range(starts[b], starts[b + 1]):
            if users[e] != k:
                k = users[e]
                rate = numbers[0] * weights[k] if len(weights) > 0 else numbers[0]
                if diffusing:
                    _catch_up(U, k, width, user_time, now, physics, key, round, 0, normals)
            j = ranks[e]
            prefetch(V, np.intp(ranks[min(e + AHEAD, end)]) * width, width)
            if diffusing:
                _catch_up(V, j, width, item_time, now, physics, key, round, 1, normals)
            at = np.intp(k) * width
            beside = np.intp(j) * width
            residual = values[e] - dot(U, at, V, beside, width)
            exchange(
                U,
                at,
                V,
                beside,
                width,
                keep,
                rate * residual if abs(residual) <= cap else numbers.dtype.type(0),
            )
