"""Exact sums of reports, in integers: any order of users, any sharding and any number of threads
give the same bytes.

They take integers of at most 15 bits, so every product has at most 45 bits and 256 of them add up
in float64 without rounding before they go to int64.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import sparse

from fedrec.arrays import Int64s
from fedrec.data.interactions import ItemOrder, order_by_item
from fedrec.federation.block_kinds import COMPILED
from fedrec.federation.messages import (
    COEFFICIENT_BITS,
    VECTOR_BITS,
    BlockReports,
    BlockSpec,
    Reports,
)
from fedrec.federation.reports import require_distinct
from fedrec.numerics.kernels import exact_range
from fedrec.numerics.packed import PIECES, map_rows, pad_columns

_FEW_NUMBERS = 1 << 23
"""Up to so many numbers are added as they are in less time than compiling takes."""


class ExactSums:
    """Integer sums of reports, one int64 array (rows, columns) per block; any order and sharding
    gives the same bytes."""

    def __init__(self, specs: Sequence[BlockSpec]) -> None:
        self.specs = tuple(specs)
        if len({s.rows for s in self.specs} - {1}) > 1:
            raise ValueError(
                "blocks must have one row or all the same number, found "
                f"{[s.rows for s in self.specs]}"
            )
        self.blocks: tuple[Int64s, ...] = tuple(
            np.zeros((s.rows, s.columns), np.int64) for s in self.specs
        )
        # an upper bound of every magnitude, in float64
        self._reach = [np.zeros(s.rows) for s in self.specs]

    @staticmethod
    def of(specs: Sequence[BlockSpec], blocks: Sequence[Int64s]) -> ExactSums:
        """Sums that were made elsewhere, which may be merged into others."""
        sums = ExactSums(())
        sums.specs = tuple(specs)
        sums.blocks = tuple(blocks)
        sums._reach = [np.abs(block.astype(np.float64)).max(axis=1) for block in blocks]
        return sums

    def add(self, reports: Reports, *, order: ItemOrder | None = None) -> None:
        """Add the reports of consecutive users. `order` saves the grouping where the same items
        report again.

        Raises ValueError, before anything is added, where an entry has more bits than the format
        allows, a shape or an id is wrong, a user names an item twice, or a sum could pass 2^63.
        """
        if len(reports.blocks) != len(self.specs):
            raise ValueError(f"expected {len(self.specs)} blocks, found {len(reports.blocks)}")
        for spec, block in zip(self.specs, reports.blocks, strict=True):
            _check_block(spec, block, reports)
        rows = max((s.rows for s in self.specs), default=1)
        if rows > 1 and order is None:
            order = order_by_item(reports.user_ptr, reports.items, rows)
        if (
            order is not None
            and rows > 1
            and not len(order.users) == len(order.positions) == len(reports.items)
        ):
            raise ValueError(
                f"the order has {len(order.users)} events, the reports {len(reports.items)}"
            )
        require_distinct(reports.user_ptr, reports.items)
        dense = _dense_order(reports.num_users)
        orders = [order if order is not None and s.rows > 1 else dense for s in self.specs]
        reach = [
            r + _reach(s, b, o)
            for s, b, o, r in zip(self.specs, reports.blocks, orders, self._reach, strict=True)
        ]
        for spec, bound in zip(self.specs, reach, strict=True):
            if float(bound.max(initial=0.0)) * (1 + 1e-9) >= 2.0**63:
                raise ValueError(
                    f"block {spec.name}: sums could reach {float(bound.max()):.3g}, past 2^63"
                )
        for spec, block, by_row, total in zip(
            self.specs, reports.blocks, orders, self.blocks, strict=True
        ):
            _add_block(spec, block, by_row, total)
        self._reach = reach

    def merge(self, other: ExactSums) -> None:
        """Add the sums of another shard.

        Raises ValueError on other blocks or where a sum could pass 2^63."""
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
    for name, values, bits in (
        ("coefficients", block.coefficients, COEFFICIENT_BITS),
        ("vectors", block.vectors, VECTOR_BITS),
    ):
        low = int(values.min(initial=0))
        high = int(values.max(initial=0))
        if max(-low, high) >= 2**bits:
            raise ValueError(f"block {spec.name}: {name} must fit {bits} bits, found {low}..{high}")


def _dense_order(num_users: int) -> ItemOrder:
    """Users cut into pieces, each summed as a row of its own: a dense block has one row but uses
    all cores."""
    bounds = np.linspace(0, num_users, min(PIECES, max(num_users, 1)) + 1).astype(np.int64)
    return ItemOrder(bounds, np.arange(num_users, dtype=np.int32), np.empty(0, np.int64))


def _reach(spec: BlockSpec, block: BlockReports, order: ItemOrder) -> npt.NDArray[np.float64]:
    """The largest magnitude these reports can give each row."""
    vector = max(-int(block.vectors.min(initial=0)), int(block.vectors.max(initial=0)))
    coefficient = max(
        -int(block.coefficients.min(initial=0)), int(block.coefficients.max(initial=0))
    )
    terms = np.diff(order.item_ptr) if spec.rows > 1 else np.array([len(order.users)])
    return terms * float(coefficient * vector**spec.degree)


def _add_block(spec: BlockSpec, block: BlockReports, order: ItemOrder, total: Int64s) -> None:
    numbers = spec.columns * max(len(block.vectors), len(order.users))
    if spec.kind not in COMPILED or numbers <= _FEW_NUMBERS:
        _add_expanded(spec, block, order, total)
        return
    source = pad_columns(block.vectors, np.float32)  # 15 bits: exact in float32
    c = np.ascontiguousarray(block.coefficients, np.int32)
    width = source.shape[1]
    flat = source.reshape(-1)
    pieces = total if spec.rows > 1 else np.zeros((len(order.item_ptr) - 1, spec.columns), np.int64)

    owners = order.users
    if spec.folds > 1:  # which vector belongs to an event
        fold = np.repeat(
            np.arange(spec.rows, dtype=np.int32) % np.int32(spec.folds), np.diff(order.item_ptr)
        )
        owners = owners * np.int32(spec.folds) + fold

    def rows(first: int, last: int) -> None:
        exact_range(
            first, last, order.item_ptr, owners, order.positions, flat, spec.width, width, c,
            spec.form.matrix, pieces
        )  # fmt: skip

    map_rows(rows, order.item_ptr)
    if spec.rows == 1:
        total += pieces.sum(axis=0)


def _add_expanded(spec: BlockSpec, block: BlockReports, order: ItemOrder, total: Int64s) -> None:
    """Adds a block of any kind, its vectors expanded, by SciPy in integers: the same sums."""
    rows = spec.form.expand(block.vectors.astype(np.int64))
    coefficients = block.coefficients.astype(np.int64)
    if spec.rows == 1:
        total += coefficients @ rows
        return
    items = np.repeat(np.arange(spec.rows), np.diff(order.item_ptr))
    owners = order.users.astype(np.int64) * spec.folds + items % spec.folds
    chosen = sparse.csr_array(
        (coefficients[order.positions], owners, order.item_ptr), (spec.rows, len(rows))
    )
    total += chosen @ rows
