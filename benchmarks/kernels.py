"""Kernels.

Item statistics, small solves and noise beside batched torch, NumPy and the machine's
own SGEMM. MovieLens-10M's shape, generated: 69,878 users, 10,677 items, 10 million ratings, a long
tail. Each form keeps its least disturbed turn.

Item statistics are A_j = sum w u u' and b_j = sum t u of all items, from a user matrix, with
weights and targets in the item order for us and for torch alike. Useful flops an event: d (d + 1)
for one triangle of A, 2 d for b, d for the weights; those of SGEMM are 2 n³. "Exact" are the
aggregator's integer sums of A from quantised reports, with the item order given and with the
grouping included. Noise is of exact discrete Gaussians from an AES-CTR keystream; NumPy's
continuous, insecure generator and the keystream alone stand beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from benchmarks.generated import ML10M, QUICK, generate
from benchmarks.measuring import compared, fastest
from benchmarks.results import Row, Tables
from fedrec.data.interactions import Interactions
from fedrec.factorization.item_statistics import item_statistics
from fedrec.factorization.least_squares import solve_packed
from fedrec.federation.messages import BlockReports, BlockSpec, Reports
from fedrec.federation.reports import ExactSums
from fedrec.numerics.segments import ItemOrder, order_by_item, pack, unpack
from fedrec.numerics.threads import cores
from fedrec.privacy import discrete_gaussian
from fedrec.privacy.keystream import Keystream

_SIDE = 2048
_MOST_NUMBERS = 1 << 24  # gathered at a time: 64 MB of float32
Tensor = torch.Tensor
Rng = np.random.Generator


def run(*, quick: bool) -> Tables:
    """Milliseconds of every form."""
    shape, turns = (QUICK, 1) if quick else (ML10M, 5)
    rng = np.random.default_rng(0)
    torch.set_num_threads(cores())
    interactions = generate(shape, rng=rng)
    widths = (8,) if quick else (32, 64)
    return {
        "Item statistics": [
            row for d in widths for row in _statistics(interactions, d, rng, turns)
        ],
        "Cholesky solves": [
            row for d in widths for row in _solves(d, 64 if quick else 16_384, rng, turns)
        ],
        "Noise": _noise(10_000 if quick else 8_000_000, turns),
    }


def _statistics(interactions: Interactions, d: int, rng: Rng, turns: int) -> list[Row]:
    order = order_by_item(interactions.user_ptr, interactions.items, interactions.num_items)
    grouped = ItemOrder(order.item_ptr, order.users, np.empty(0, np.int64))
    U = rng.standard_normal((interactions.num_users, d), np.float32)
    targets = rng.standard_normal(len(interactions), np.float32)
    weights = rng.random(len(interactions), np.float32)
    reports, spec = _reports(interactions, d, rng)
    X = rng.standard_normal((_SIDE, _SIDE), np.float32)
    tX = torch.from_numpy(X)
    peers = _peers(grouped, U, targets, weights)
    forms: dict[str, Callable[[], object]] = {
        "ours, float32": lambda: item_statistics(grouped, U, targets, weights),
        "ours, float32, columns by user": lambda: item_statistics(order, U, targets, weights),
        "ours, exact": lambda: ExactSums([spec]).add(reports, order=order),
        "ours, exact, with grouping": lambda: ExactSums([spec]).add(reports, order=None),
        **peers,
        "SGEMM, NumPy": lambda: X @ X,
        "SGEMM, torch": lambda: tX @ tX,
    }
    useful = len(interactions) * d * (d + 4)
    wrong = _differences(grouped, U, targets, weights)
    return [
        {
            **row,
            "gflops": (2 * _SIDE**3 if "SGEMM" in name else useful) / 1e6 / row["ms"],
            "largest_difference": wrong.get(name),
        }
        for row in compared(fastest(forms, turns=turns), "ours, float32", d=d)
        for name in [str(row["form"])]
    ]


def _peers(
    order: ItemOrder, U: np.ndarray, targets: np.ndarray, weights: np.ndarray
) -> dict[str, Callable[[], torch.Tensor]]:
    tensors = [torch.from_numpy(array) for array in (U, targets, weights)]
    return {
        "torch, chunks of 32": _chunks(order, *tensors, length=32),
        "torch, chunks of 128": _chunks(order, *tensors, length=128),
        "torch, item by item": _item_loop(order, *tensors),
    }


def _differences(
    order: ItemOrder, U: np.ndarray, targets: np.ndarray, weights: np.ndarray
) -> dict[str, float]:
    """Return, for each peer, the largest difference to our A over the largest entry of A, on the
    first items."""
    items = min(500, len(order.item_ptr) - 1)
    stop = int(order.item_ptr[items])
    few = ItemOrder(order.item_ptr[: items + 1], order.users[:stop], order.positions)
    some = U, targets[:stop], weights[:stop]
    ours = unpack(item_statistics(few, *some).gram, U.shape[1])
    return {
        name: float(np.abs(ours - form().numpy()).max() / np.abs(ours).max())
        for name, form in _peers(few, *some).items()
    }


def _reports(interactions: Interactions, d: int, rng: Rng) -> tuple[Reports, BlockSpec]:
    vectors = rng.integers(-(2**14), 2**14, (interactions.num_users, d), dtype=np.int32)
    coefficients = rng.integers(0, 2**14, len(interactions), dtype=np.int32)
    block = BlockReports(coefficients, vectors)
    spec = BlockSpec("A", "outer", interactions.num_items, d, 1.0, 1.0)
    return Reports(interactions.user_ptr, interactions.items, (block,)), spec


def _solves(d: int, count: int, rng: Rng, turns: int) -> list[Row]:
    X = rng.standard_normal((count, d, d), np.float32)
    A = X @ X.swapaxes(1, 2) / d + np.eye(d, dtype=np.float32)
    b = rng.standard_normal((count, d), np.float32)
    packed = pack(A)
    tensors = torch.from_numpy(A), torch.from_numpy(b)
    forms: dict[str, Callable[[], object]] = {
        "ours": lambda: solve_packed(packed, b, ridge=0.0),
        "torch": lambda: _cholesky_solve(*tensors),
    }
    return compared(fastest(forms, turns=turns), "ours", d=d, systems=count)


def _noise(size: int, turns: int) -> list[Row]:
    rng = np.random.default_rng(0)

    def keystream() -> None:
        stream = Keystream(bytes(32), section=0, buffer_words=1 << 14)
        for _ in range(2 * size // (1 << 14)):
            stream.next_words()

    forms: dict[str, Callable[[], object]] = {
        f"std 2^{bits:g}": partial(discrete_gaussian.sample, size, std=2.0**bits, key=bytes(32))
        for bits in (8, 16.3, 24)
    }
    forms["NumPy, continuous and insecure, one core"] = lambda: rng.standard_normal(size)
    forms["keystream words, one core"] = keystream
    rows = compared(fastest(forms, turns=turns), "std 2^16.3", draws=size)
    return [{**row, "million_a_second": size / 1e3 / row["ms"]} for row in rows]


def _chunks(
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
    index = torch.from_numpy(np.minimum(events, len(order.users) - 1))
    places = torch.from_numpy(item)
    padded_users = torch.from_numpy(order.users.astype(np.int64))[index]
    padded_weights = weights[index] * present
    padded_targets = targets[index] * present
    d = U.shape[1]
    A = torch.zeros(len(counts), d, d)
    b = torch.zeros(len(counts), d)
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


def _item_loop(
    order: ItemOrder, U: Tensor, targets: Tensor, weights: Tensor
) -> Callable[[], Tensor]:
    """Not batched: one product per item in a Python loop, which on long segments is a dense
    product."""
    users = torch.from_numpy(order.users.astype(np.int64))
    ptr = order.item_ptr
    A = torch.zeros(len(ptr) - 1, U.shape[1], U.shape[1])
    b = torch.zeros(len(ptr) - 1, U.shape[1])

    def run() -> Tensor:
        for j in range(len(ptr) - 1):
            s = slice(int(ptr[j]), int(ptr[j + 1]))
            X = U[users[s]]
            torch.mm((X * weights[s, None]).T, X, out=A[j])
            torch.mv(X.T, targets[s], out=b[j])
        return A

    return run


def _cholesky_solve(A: Tensor, b: Tensor) -> Tensor:
    """Batched Cholesky factors and solves."""
    return torch.cholesky_solve(b[:, :, None], torch.linalg.cholesky_ex(A).L)[:, :, 0]
