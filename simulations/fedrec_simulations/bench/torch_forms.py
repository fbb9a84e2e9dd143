"""Item statistics and eigenvalue clipping in batched torch: the peers of our kernels, each as fast
as we could make it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from fedrec.data.interactions import ItemOrder

Tensor = torch.Tensor
_MOST_NUMBERS = 1 << 24  # gathered at a time: 64 MB of float32


def padded_buckets(
    order: ItemOrder, U: Tensor, targets: Tensor, weights: Tensor
) -> Callable[[], Tensor]:
    """Items of similar length padded to a common one (at most 1.25 times theirs), then one `bmm`
    per bucket."""
    counts = np.diff(order.item_ptr)
    by_length = np.argsort(counts, kind="stable")
    by_length = by_length[counts[by_length] > 0]
    batches, start, d = [], 0, U.shape[1]
    while start < len(by_length):
        shortest = int(counts[by_length[start]])
        stop = start + int(
            np.searchsorted(counts[by_length[start:]], 1.25 * shortest + 4, side="right")
        )
        longest = int(counts[by_length[stop - 1]])
        stop = min(stop, start + max(1, _MOST_NUMBERS // (longest * d)))
        batches.append(
            _padded(order.item_ptr, by_length[start:stop], int(counts[by_length[stop - 1]]))
        )
        start = stop
    users = torch.from_numpy(order.users.astype(np.int64))
    A, b = torch.zeros(len(counts), d, d), torch.zeros(len(counts), d)

    def run() -> Tensor:
        for items, events, present in batches:
            X = U[users[events]]
            A[items] = torch.bmm((X * (weights[events] * present)[:, :, None]).mT, X)
            b[items] = torch.bmm(X.mT, (targets[events] * present)[:, :, None])[:, :, 0]
        return A

    return run


def _padded(item_ptr: np.ndarray, items: np.ndarray, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """The items, the events of each padded with event 0, and which are present."""
    places = np.arange(length)
    events = item_ptr[items][:, None] + places
    present = places < (item_ptr[items + 1] - item_ptr[items])[:, None]
    return (
        torch.from_numpy(items),
        torch.from_numpy(np.where(present, events, 0)),
        torch.from_numpy(present.astype(np.float32)),
    )


def chunks(
    order: ItemOrder, U: Tensor, targets: Tensor, weights: Tensor, *, length: int
) -> Callable[[], Tensor]:
    """Items cut into chunks of `length` events (the last padded), one `bmm` over many chunks,
    chunks added per item."""
    counts = np.diff(order.item_ptr)
    per_item = -(-counts // length)
    item = np.repeat(np.arange(len(counts)), per_item)
    first = np.arange(len(item)) - np.repeat(np.cumsum(per_item) - per_item, per_item)
    events = order.item_ptr[item][:, None] + first[:, None] * length + np.arange(length)
    present = torch.from_numpy((events < order.item_ptr[item + 1][:, None]).astype(np.float32))
    index, places = (
        torch.from_numpy(np.minimum(events, len(order.users) - 1)),
        torch.from_numpy(item),
    )
    users, d = torch.from_numpy(order.users.astype(np.int64)), U.shape[1]
    padded_users, padded_weights, padded_targets = (
        users[index],
        weights[index] * present,
        targets[index] * present,
    )
    A, b = torch.zeros(len(counts), d, d), torch.zeros(len(counts), d)
    step = max(1, _MOST_NUMBERS // 4 // (length * d))

    def run() -> Tensor:
        A.zero_()
        b.zero_()
        for a in range(0, len(item), step):
            s = slice(a, a + step)
            X = U[padded_users[s]]
            A.index_add_(0, places[s], torch.bmm((X * padded_weights[s, :, None]).mT, X))
            b.index_add_(0, places[s], torch.bmm(X.mT, padded_targets[s, :, None])[:, :, 0])
        return A

    return run


def item_loop(
    order: ItemOrder, U: Tensor, targets: Tensor, weights: Tensor
) -> Callable[[], Tensor]:
    """Not batched: one product per item in a Python loop, which on long segments is a dense
    product."""
    users, ptr, d = torch.from_numpy(order.users.astype(np.int64)), order.item_ptr, U.shape[1]
    A, b = torch.zeros(len(ptr) - 1, d, d), torch.zeros(len(ptr) - 1, d)

    def run() -> Tensor:
        for j in range(len(ptr) - 1):
            s = slice(int(ptr[j]), int(ptr[j + 1]))
            X = U[users[s]]
            torch.mm((X * weights[s, None]).T, X, out=A[j])
            torch.mv(X.T, targets[s], out=b[j])
        return A

    return run


def clip_eigenvalues(A: Tensor, *, threads: int) -> Tensor:
    """Batched `eigh`, negative values to zero, and back, with this many threads."""
    torch.set_num_threads(threads)
    values, vectors = torch.linalg.eigh(A)
    clipped: Tensor = (vectors * values.clamp(min=0)[:, None, :]) @ vectors.mT
    return clipped


def cholesky_solve(A: Tensor, b: Tensor) -> Tensor:
    """Batched Cholesky factors and solves."""
    return torch.cholesky_solve(b[:, :, None], torch.linalg.cholesky_ex(A).L)[:, :, 0]
