"""Item statistics, fast in float32, and the aggregator's sums of reports, exact in integers.

A_j = sum w u u' (AM-SSP eq. 5, Krichene et al. 2024) is kept packed: the upper triangle in `numpy.triu_indices` order,
because the gradient step that reads it is bound by memory. The exact sums take integers of at most 15 bits, so every
product has at most 45 bits and 256 of them add up in float64 without rounding before they go to int64: the result does
not depend on the order of users, on shards or on threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrec.data.interactions import ItemOrder
from fedrec.federation.messages import COEFFICIENT_BITS, VECTOR_BITS, BlockReports, BlockSpec, Reports
from fedrec.federation.reports import require_distinct
from fedrec.numerics.kernels import exact_range, group_by_item, statistics_range
from fedrec.numerics.threads import cores, map_ranges
from fedrec.numerics.tiles import LANES

Floats = npt.NDArray[np.floating]
Float32s = npt.NDArray[np.float32]
Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]

PIECES = 32
"""Ranges of rows with equal work; more than the cores, so that none waits long for the last."""

SMALL = 100_000
"""Work of less than about a tenth of a millisecond, which handing over to threads would only slow down."""


@dataclass(frozen=True)
class ItemStatistics:
    """gram: (m, d(d+1)/2) packed A_j. moment: (m, d) b_j."""

    gram: Floats
    moment: Floats

    @property
    def width(self) -> int:
        """d, the entries of a user's vector."""
        return int(self.moment.shape[1])


def unpack(packed: Floats, width: int) -> Floats:
    """(..., d(d+1)/2) upper triangles as full symmetric (..., d, d)."""
    rows, columns = np.triu_indices(width)
    full = np.empty((*packed.shape[:-1], width, width), packed.dtype)
    full[..., rows, columns] = packed
    full[..., columns, rows] = packed
    return full


def pack(full: Floats) -> Floats:
    """Upper triangles (..., d(d+1)/2) of symmetric (..., d, d)."""
    rows, columns = np.triu_indices(full.shape[-1])
    return np.ascontiguousarray(full[..., rows, columns])  # indexing alone leaves the packed axis outermost in memory


def pad_columns(vectors: npt.NDArray[np.number], dtype: npt.DTypeLike) -> Floats:
    """`vectors` (n, d) as C-contiguous `dtype` with zero columns up to a multiple of 8; the same array where it fits."""
    n, d = vectors.shape
    if d % LANES == 0:
        return np.ascontiguousarray(vectors, dtype=dtype)
    padded = np.zeros((n, d + -d % LANES), dtype)
    padded[:, :d] = vectors
    return padded


def map_rows(kernel: Callable[[int, int], None], ptr: Int64s, *, row_cost: int = 8) -> None:
    """Call `kernel(first_row, last_row)` on ranges of equal work: a row costs its events plus `row_cost`."""
    work = ptr + row_cost * np.arange(len(ptr))
    if work[-1] < SMALL:
        kernel(0, len(ptr) - 1)
        return
    bounds = np.searchsorted(work, np.linspace(0, work[-1], PIECES + 1)).clip(0, len(ptr) - 1)
    bounds[0], bounds[-1] = 0, len(ptr) - 1
    map_ranges(lambda a, b: kernel(int(bounds[a]), int(bounds[b])), PIECES, pieces_per_core=PIECES // cores() or 1)


def item_statistics(order: ItemOrder, U: Float32s, targets: Float32s, weights: Float32s | None = None) -> ItemStatistics:
    """A_j = sum w_e u u' and b_j = sum targets_e u over the events e of each item j, in float32.

    U: (n_users, d). targets, weights: (events,), where `order.positions` says; in the order's own order where that is empty, which
    is faster. b is not weighted again, so pass w y for targets.
    Raises ValueError where the columns do not have one entry per event.
    """
    for name, column in (("targets", targets), ("weights", weights)):
        if column is not None and len(column) != len(order.users):
            raise ValueError(f"{name} must have one entry for each of {len(order.users)} events, found {len(column)}")
    m, d = len(order.item_ptr) - 1, U.shape[1]
    source = pad_columns(U, np.float32)
    gram, moment = np.empty((m, d * (d + 1) // 2), np.float32), np.empty((m, d), np.float32)
    w = np.empty(0, np.float32) if weights is None else np.ascontiguousarray(weights, np.float32)
    t, width, flat = np.ascontiguousarray(targets, np.float32), source.shape[1], source.reshape(-1)

    def rows(first: int, last: int) -> None:
        statistics_range(first, last, order.item_ptr, order.users, order.positions, flat, d, width, w, t, gram, moment)

    map_rows(rows, order.item_ptr)
    return ItemStatistics(gram, moment)


def order_by_item(user_ptr: Int64s, items: Int32s, num_items: int) -> ItemOrder:
    """Events of consecutive users grouped by item, in linear time. Raises ValueError on bad pointers or ids."""
    if user_ptr[0] != 0 or user_ptr[-1] != len(items) or bool(np.any(np.diff(user_ptr) < 0)):
        raise ValueError(f"user_ptr must rise from 0 to {len(items)}, found {int(user_ptr[0])}..{int(user_ptr[-1])}")
    if len(items) and (int(items.min()) < 0 or int(items.max()) >= num_items):
        raise ValueError(f"item ids must be in [0, {num_items}), found {int(items.min())}..{int(items.max())}")
    order = ItemOrder(np.empty(num_items + 1, np.int64), np.empty(len(items), np.int32), np.empty(len(items), np.int64))
    group_by_item(np.ascontiguousarray(user_ptr, np.int64), np.ascontiguousarray(items, np.int32), *vars(order).values())
    return order


class ExactSums:
    """Integer sums of reports, one int64 array (rows, columns) per block; any order and sharding gives the same bytes."""

    def __init__(self, specs: Sequence[BlockSpec]) -> None:
        self.specs = tuple(specs)
        if len({s.rows for s in self.specs} - {1}) > 1:
            raise ValueError(f"blocks must have one row or all the same number, found {[s.rows for s in self.specs]}")
        self.blocks: tuple[Int64s, ...] = tuple(np.zeros((s.rows, s.columns), np.int64) for s in self.specs)
        self._reach = [np.zeros(s.rows) for s in self.specs]  # an upper bound of every magnitude, in float64

    def add(self, reports: Reports, *, order: ItemOrder | None = None) -> None:
        """Add the reports of consecutive users. `order` saves the grouping where the same items report again.

        Raises ValueError, before anything is added, where an entry has more bits than the format allows, a shape or an id
        is wrong, a user names an item twice, or a sum could pass 2^63.
        """
        if len(reports.blocks) != len(self.specs):
            raise ValueError(f"expected {len(self.specs)} blocks, found {len(reports.blocks)}")
        for spec, block in zip(self.specs, reports.blocks, strict=True):
            _check_block(spec, block, reports)
        rows = max((s.rows for s in self.specs), default=1)
        if rows > 1 and order is None:
            order = order_by_item(reports.user_ptr, reports.items, rows)
        if order is not None and rows > 1 and not len(order.users) == len(order.positions) == len(reports.items):
            raise ValueError(f"the order has {len(order.users)} events, the reports {len(reports.items)}")
        require_distinct(reports.user_ptr, reports.items)
        dense = _dense_order(reports.num_users)
        orders = [order if order is not None and s.rows > 1 else dense for s in self.specs]
        reach = [r + _reach(s, b, o) for s, b, o, r in zip(self.specs, reports.blocks, orders, self._reach, strict=True)]
        for spec, bound in zip(self.specs, reach, strict=True):
            if float(bound.max(initial=0.0)) * (1 + 1e-9) >= 2.0**63:
                raise ValueError(f"block {spec.name}: sums could reach {float(bound.max()):.3g}, past 2^63")
        for spec, block, by_row, total in zip(self.specs, reports.blocks, orders, self.blocks, strict=True):
            _add_block(spec, block, by_row, total)
        self._reach = reach

    def merge(self, other: ExactSums) -> None:
        """Add the sums of another shard. Raises ValueError on other blocks or where a sum could pass 2^63."""
        if self.specs != other.specs:
            raise ValueError("sums of different blocks do not add")
        reach = [a + b for a, b in zip(self._reach, other._reach, strict=True)]
        if any(float(bound.max(initial=0.0)) * (1 + 1e-9) >= 2.0**63 for bound in reach):
            raise ValueError("merged sums could pass 2^63")
        for total, more in zip(self.blocks, other.blocks, strict=True):
            total += more
        self._reach = reach


def exact_sums(reports: Reports, specs: Sequence[BlockSpec]) -> tuple[Int64s, ...]:
    """The integer sums of one batch of reports, one (rows, columns) array per block."""
    sums = ExactSums(specs)
    sums.add(reports)
    return sums.blocks


def _check_block(spec: BlockSpec, block: BlockReports, reports: Reports) -> None:
    expected = reports.num_users if spec.rows == 1 else len(reports.items)
    vectors = (reports.num_users * spec.folds, spec.width)
    if block.coefficients.shape != (expected,) or block.vectors.shape != vectors:
        raise ValueError(
            f"block {spec.name}: expected {expected} coefficients and vectors {vectors}, "
            f"found {block.coefficients.shape} and {block.vectors.shape}"
        )
    for name, values, bits in (("coefficients", block.coefficients, COEFFICIENT_BITS), ("vectors", block.vectors, VECTOR_BITS)):
        low, high = int(values.min(initial=0)), int(values.max(initial=0))
        if max(-low, high) >= 2**bits:
            raise ValueError(f"block {spec.name}: {name} must fit {bits} bits, found {low}..{high}")


def _dense_order(num_users: int) -> ItemOrder:
    """Users cut into pieces, each summed as a row of its own: a dense block has one row but uses all cores."""
    bounds = np.linspace(0, num_users, min(PIECES, max(num_users, 1)) + 1).astype(np.int64)
    return ItemOrder(bounds, np.arange(num_users, dtype=np.int32), np.empty(0, np.int64))


def _reach(spec: BlockSpec, block: BlockReports, order: ItemOrder) -> npt.NDArray[np.float64]:
    """The largest magnitude these reports can give each row."""
    vector = max(-int(block.vectors.min(initial=0)), int(block.vectors.max(initial=0)))
    coefficient = max(-int(block.coefficients.min(initial=0)), int(block.coefficients.max(initial=0)))
    terms = np.diff(order.item_ptr) if spec.rows > 1 else np.array([len(order.users)])
    return terms * float(coefficient * vector**spec.degree)


def _add_block(spec: BlockSpec, block: BlockReports, order: ItemOrder, total: Int64s) -> None:
    source = pad_columns(block.vectors, np.float32)  # 15 bits: exact in float32
    c, width, flat = np.ascontiguousarray(block.coefficients, np.int32), source.shape[1], source.reshape(-1)
    pieces = total if spec.rows > 1 else np.zeros((len(order.item_ptr) - 1, spec.columns), np.int64)

    owners = order.users
    if spec.folds > 1:  # which vector belongs to an event
        fold = np.repeat(np.arange(spec.rows, dtype=np.int32) % np.int32(spec.folds), np.diff(order.item_ptr))
        owners = owners * np.int32(spec.folds) + fold

    def rows(first: int, last: int) -> None:
        exact_range(
            first, last, order.item_ptr, owners, order.positions, flat, spec.width, width, c, spec.kind == "outer", pieces
        )  # fmt: skip

    map_rows(rows, order.item_ptr)
    if spec.rows == 1:
        total += pieces.sum(axis=0)
