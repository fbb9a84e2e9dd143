"""The k best items of every user over the whole catalogue, their own history excluded, in bounded
memory.

Users are scored in blocks (one BLAS product, at most `_BLOCK_NUMBERS` float32), and a compiled
selection keeps the k best of each row in a heap. Equal scores are in the order of a hash of their
rows (`numerics.segments`), so that a list never depends on blocks or threads, nor on what ids mean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float32s, Int32s, Int64s
from fedrec.data.interactions import Interactions
from fedrec.numerics import compiled
from fedrec.numerics.segments import tie_keys
from fedrec.numerics.threads import map_ranges

Keys = npt.NDArray[np.uint32]
Scores = Callable[[int, int], Float32s]
"""`scores(start, stop)` returns (stop - start, m) scores of consecutive users; larger is better,
-inf is never listed. The block is only read, and only until the next call, so a scorer may return
the same memory every time."""

_BLOCK_NUMBERS = 1 << 24  # 64 MiB a block: large enough for full BLAS speed, small enough to forget
NO_ITEM = -1
"""Fills a list that is shorter than k: everything else is in the user's history."""
_NOT_A_NUMBER = -2  # a row with a score that is none: no item and not `NO_ITEM`
_FEW_NUMBERS = 1 << 21
"""Up to so many scores are sorted in less time than compiling a selection takes."""


def dot_product(U: Float32s, V: Float32s, *, item_bias: Float32s | None = None) -> Scores:
    """Scores `U V'` (n x d times d x m), plus `item_bias` (m,) as an appended column.

    Raises ValueError where shapes differ."""
    if U.ndim != 2 or V.ndim != 2 or U.shape[1] != V.shape[1]:
        raise ValueError(
            f"user vectors {U.shape} and item vectors {V.shape} must be (n, d) and (m, d)"
        )
    if item_bias is not None:
        U = np.column_stack([U, np.ones(len(U), np.float32)])
        V = np.column_stack([V, item_bias])
    users = np.ascontiguousarray(U, np.float32)
    items = np.ascontiguousarray(V, np.float32)
    buffer = np.empty((0, len(items)), np.float32)

    def block(start: int, stop: int) -> Float32s:
        nonlocal buffer
        if len(buffer) < stop - start:
            buffer = np.empty((stop - start, len(items)), np.float32)
        return np.matmul(users[start:stop], items.T, out=buffer[: stop - start])

    return block


def same_for_everyone(item_scores: npt.NDArray[np.generic]) -> Scores:
    """Every user gets the scores (m,) of the items, for instance their counts in train."""
    row = item_scores.astype(np.float32)
    return lambda start, stop: np.tile(row, (stop - start, 1))


def among(scores: Scores, items: npt.NDArray[np.bool_] | None) -> Scores:
    """Return these scores of items (m,) alone; None for all."""
    if items is None:
        return scores

    def block(start: int, stop: int) -> Float32s:
        return np.where(items, scores(start, stop), np.float32(-np.inf))

    return block


def of_another_user(scores: Scores, num_users: int) -> Scores:
    """User k gets the scores of user k + n/2 (mod n): a fixed permutation that moves everybody, in
    at most two ranges."""
    shift = num_users // 2

    def block(start: int, stop: int) -> Float32s:
        edge = min(max(num_users - shift, start), stop)
        parts = [
            (a, b)
            for a, b in (
                (start + shift, edge + shift),
                (edge + shift - num_users, stop + shift - num_users),
            )
            if a < b
        ]
        if len(parts) == 1:
            return scores(*parts[0])
        # copied: a scorer may reuse its memory
        return np.concatenate([scores(*part).copy() for part in parts])

    return block


def top_items(
    scores: Scores, *, history: Interactions, k: int, wanted: npt.NDArray[np.bool_] | None = None
) -> Int32s:
    """(n, k) int32: the k best items of each user outside their history, best first, `NO_ITEM`
    where there are no more.

    `wanted` (n,) says which users need a list; the rows of others are all `NO_ITEM`, and blocks of
    nobody are not scored. Raises ValueError for k < 1, a block of the wrong shape or a score that
    is not a number.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, found {k}")
    n = history.num_users
    m = history.num_items
    mask = np.ones(n, np.bool_) if wanted is None else wanted
    lists = np.full((n, k), NO_ITEM, np.int32)
    rows = max(1, _BLOCK_NUMBERS // max(m, 1))
    for start in range(0, n, rows):
        stop = min(start + rows, n)
        if mask[start:stop].any():
            _fill(lists, _checked(scores(start, stop), (stop - start, m)), start, mask, history)
    return lists


def _checked(block: Float32s, shape: tuple[int, int]) -> Float32s:
    if block.shape != shape:
        raise ValueError(f"the scorer returned a block of shape {block.shape}, expected {shape}")
    return np.ascontiguousarray(block, np.float32)


def _fill(
    lists: Int32s, block: Float32s, first: int, mask: npt.NDArray[np.bool_], history: Interactions
) -> None:
    ptr = history.user_ptr
    items = history.items
    keys = tie_keys(np.arange(block.shape[1]))
    if block.size <= _FEW_NUMBERS:
        _sort(lists, block, first, mask, history, keys)
    else:
        map_ranges(
            lambda a, b: _select(block, first, mask, ptr, items, keys, lists, a, b), len(block)
        )
    bad = np.flatnonzero(lists[first : first + len(block), 0] == _NOT_A_NUMBER)
    if len(bad):
        raise ValueError(
            f"a score of user {first + int(bad[0])} is not a number ({len(bad)} users in its block)"
        )


def _sort(
    lists: Int32s,
    block: Float32s,
    first: int,
    mask: npt.NDArray[np.bool_],
    history: Interactions,
    keys: Keys,
) -> None:
    """`_select` of a few rows by NumPy alone: its definition."""
    k = lists.shape[1]
    users = first + np.flatnonzero(mask[first : first + len(block)])
    mine = history.users_subset(users)
    scores = block[users - first]
    broken = np.isnan(scores).any(axis=1)
    scores[mine.users, mine.items] = -np.inf
    by_key = np.argsort(keys)
    order = by_key[np.argsort(-scores[:, by_key], axis=1, kind="stable")[:, :k]]
    listed = np.take_along_axis(scores, order, axis=1) > -np.inf
    lists[users, : order.shape[1]] = np.where(listed, order, NO_ITEM)
    lists[users[broken], 0] = _NOT_A_NUMBER


@compiled()
def contains(items: Int32s, start: int, stop: int, item: int) -> bool:
    """Whether the ascending `items[start:stop]` hold `item`."""
    while start < stop:
        middle = (start + stop) // 2
        if items[middle] < item:
            start = middle + 1
        elif items[middle] > item:
            stop = middle
        else:
            return True
    return False


@compiled(inner=True)
def _worse(score: np.float32, item: int, other_score: np.float32, other: int, keys: Keys) -> bool:
    """Whether an item comes after another: by its score, of equal ones by its key."""
    return bool(score < other_score or (score == other_score and keys[item] > keys[other]))


@compiled(inner=True)
def _sift_down(scores: Float32s, items: Int32s, size: int, keys: Keys) -> None:
    """Let the root of a heap whose root is the worst entry sink to its place."""
    at = 0
    score = scores[0]
    item = items[0]
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        other = child + 1
        if other < size and _worse(scores[other], items[other], scores[child], items[child], keys):
            child = other
        if not _worse(scores[child], items[child], score, item, keys):
            break
        scores[at] = scores[child]
        items[at] = items[child]
        at = child
    scores[at] = score
    items[at] = item


@compiled()
def _select(
    block: Float32s,
    first: int,
    mask: npt.NDArray[np.bool_],
    ptr: Int64s,
    history: Int32s,
    keys: Keys,
    lists: Int32s,
    start: int,
    stop: int,
) -> None:
    """Lists of rows [start, stop) of a block whose row 0 is user `first`."""
    k = lists.shape[1]
    m = block.shape[1]
    best = np.empty(k, np.float32)
    ids = np.empty(k, np.int32)
    for row in range(start, stop):
        user = first + row
        if not mask[user]:
            continue
        size = 0
        threshold = np.float32(-np.inf)
        broken = False
        for item in range(m):
            score = block[row, item]
            # nearly always; a NaN is not <= anything and falls through
            if score <= threshold and (score < threshold or size < k or keys[item] > keys[ids[0]]):
                continue
            if score != score:
                broken = True
                break
            if contains(history, ptr[user], ptr[user + 1], item):
                continue
            if size < k:  # sift up
                at = size
                while at > 0 and _worse(score, item, best[(at - 1) // 2], ids[(at - 1) // 2], keys):
                    best[at] = best[(at - 1) // 2]
                    ids[at] = ids[(at - 1) // 2]
                    at = (at - 1) // 2
                best[at] = score
                ids[at] = item
                size += 1
            else:
                best[0] = score
                ids[0] = item
                _sift_down(best, ids, k, keys)
            if size == k:
                threshold = best[0]
        if broken:
            lists[user, 0] = _NOT_A_NUMBER
            continue
        for rank in range(size - 1, -1, -1):  # the worst is taken off first
            lists[user, rank] = ids[0]
            best[0] = best[rank]
            ids[0] = ids[rank]
            _sift_down(best, ids, rank, keys)


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
    (0). Of equal ones the smaller key is first (`numerics.segments`).

    They are the look inside a model that a person can judge (Ada-DPALS Table 3).
    """
    lengths = np.linalg.norm(V, axis=1, keepdims=True)
    directions = (V / np.where(lengths > 0, lengths, 1)).astype(np.float64)
    return tuple(_of(directions, int(query), k) for query in queries)


def _of(directions: npt.NDArray[np.float64], query: int, k: int) -> Neighbours:
    similarity = directions @ directions[query]
    order = np.lexsort((tie_keys(np.arange(len(similarity))), -similarity))
    chosen = order[order != query][:k]
    return Neighbours(query, tuple(map(int, chosen)), tuple(float(similarity[j]) for j in chosen))
