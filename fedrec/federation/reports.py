"""Bounded integer reports of a user's real numbers, and the check that a report is bounded.

Sensitivity. One user's report of a release has joint L2 norm at most `radius`: vectors are scaled
to norm at most 1 (their length moves into the coefficients), coefficients are scaled so that the
norm is the radius, and both are cut towards zero on the grid, which shrinks every entry. Removing
the user removes exactly this report from the sum. The norm is the one of the sum only where a
user's items are distinct: rows of the same item would add before they are squared. A report's items
therefore rise strictly within each user, which whoever makes, checks or adds reports demands
(`require_distinct`).

Exact sums of reports, in integers: any order of users, any sharding and any number of threads
give the same bytes.

They take integers of at most 15 bits, so every product has at most 45 bits and 256 of them add up
in float64 without rounding before they go to int64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import scipy

from fedrec.arrays import Float64s, Int32s, Int64s
from fedrec.federation.block_kinds import COMPILED, LINEAR, kind_named
from fedrec.federation.messages import (
    COEFFICIENT_BITS,
    VECTOR_BITS,
    BlockReports,
    BlockSpec,
    ReleaseSpec,
    Reports,
    quantise,
    step_for,
)
from fedrec.numerics import segments
from fedrec.numerics.segments import ItemOrder, order_by_item
from fedrec.numerics.threads import PIECES, map_rows

_SLACK = 1e-12
"""A report is scaled to (1 - slack) times its radius and checked against the radius: far above the
rounding of the check."""
_LEAST = 1e-140
"""Shorter vectors and reports count as nothing: squares of smaller numbers have too few bits, and a
norm of such squares would be too small to divide by."""
_FEW_NUMBERS = 1 << 26
"""Up to so many numbers are added as they are in less time than compiling takes."""


@dataclass(frozen=True)
class RealBlock:
    """One block before the grid.

    Args:
        coefficients: (n,), one for each event, or (num_users,) of a block with one row.
        vectors: (num_users * folds, width); sparse where a user has few of many numbers.
    """

    coefficients: Float64s
    vectors: Float64s | scipy.sparse.csr_array


class SparseReports(BlockReports):
    """A block whose vectors are kept as their nonzero numbers; `vectors` are made when they are
    asked for, as a wire needs them."""

    def __init__(self, coefficients: Int32s, rows: scipy.sparse.csr_array) -> None:
        object.__setattr__(self, "coefficients", coefficients)
        object.__setattr__(self, "rows", rows)

    rows: scipy.sparse.csr_array

    @property
    def vectors(self) -> Int32s:
        """(num_users, width), zeros among them."""
        return np.asarray(self.rows.toarray(), np.int32)

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of `vectors`, which are not made."""
        return (self.rows.shape[0], self.rows.shape[1])

    @property
    def told(self) -> Int32s:
        """The numbers that are kept."""
        return np.asarray(self.rows.data, np.int32)

    def part(self, coefficients: Int32s, rows: slice = slice(None)) -> SparseReports:
        """Implements `BlockReports.part`; the vectors are not made."""
        return SparseReports(coefficients, self.rows[rows])


def block(
    name: str, kind: str, *, rows: int, width: int, radius: float = 1.0, folds: int = 1
) -> BlockSpec:
    """The block's public grid: vectors of norm at most 1, coefficients up to `radius`; see
    `block_kinds` for what a kind is.

    Args:
        name: Unique within its question.
        kind: What a row's vector becomes, for example "linear" or "gram".
        rows: Items, or 1 for what is summed over all of them.
        width: Numbers of a vector.
        radius: The largest coefficient.
        folds: Vectors of a user; the row of item j is made of number j mod folds.

    Returns:
        The specification, which is public.
    """
    coefficient_bits, vector_bits = kind_named(kind).bits
    return BlockSpec(
        name,
        kind,
        rows,
        width,
        step_for(radius, bits=coefficient_bits),
        step_for(1.0, bits=vector_bits),
        folds,
    )


def bounded(
    user_ptr: Int64s,
    items: npt.NDArray[np.int32],
    blocks: Sequence[RealBlock],
    releases: Sequence[ReleaseSpec],
    *,
    scaling: Literal["exact", "clip"] = "exact",
) -> Reports:
    """Scale every user to each release's radius ("exact": to it; "clip": down to it only) and cut
    to the grid.

    A user whose numbers are all zero stays silent.

    Args:
        user_ptr: (num_users + 1,) where each user's events begin.
        items: (num_events,) their items, none twice for a user.
        blocks: Real numbers of each event.
        releases: What the blocks are summed for, with its radius.
        scaling: "exact" or "clip".

    Returns:
        Integers, whose norm within each release is at most its radius for every user.

    Raises:
        ValueError: Numbers are not finite, or a user repeats an item.
    """
    require_distinct(user_ptr, items)
    real = iter(blocks)
    finished = list[BlockReports]()
    for release in releases:
        parts = [
            _unit_vectors(next(real), _owners(user_ptr, items, spec), spec)
            for spec in release.blocks
        ]
        squares = [
            segments.squares(_pointer(user_ptr, spec), part.coefficients)
            for part, spec in zip(parts, release.blocks, strict=True)
        ]
        norms = np.sqrt(np.sum(squares, axis=0))
        factors = _factors(norms, release.radius * (1 - _SLACK), scaling)
        for part, spec in zip(parts, release.blocks, strict=True):
            finished.append(_on_grid(part, factors, _pointer(user_ptr, spec), spec))
    return Reports(user_ptr, items, tuple(finished))


def squared_norms(reports: Reports, releases: Sequence[ReleaseSpec]) -> Float64s:
    """(num_releases, num_users) squared joint norms in real units: what an aggregator checks before
    it adds."""
    parts = iter(reports.blocks)
    return np.array(
        [
            _release_norms(reports, [(next(parts), spec) for spec in release.blocks])
            for release in releases
        ]
    )


def within_radius(reports: Reports, releases: Sequence[ReleaseSpec]) -> npt.NDArray[np.bool_]:
    """(num_users,) whether every release's norm holds; the check's own rounding is far below the
    honest slack.

    False for a user that names an item twice, or its items out of order: its part of the sum may be
    larger than the norm says.
    """
    limits = np.array([release.radius**2 for release in releases])[:, None]
    distinct = segments.first_fall(reports.user_ptr, reports.items) < 0
    return np.asarray((squared_norms(reports, releases) <= limits).all(axis=0) & distinct)


def require_distinct(user_ptr: Int64s, items: npt.NDArray[np.int32]) -> None:
    """Raise ValueError unless the items of every user rise, so that none is named twice."""
    if user_ptr[0] != 0 or user_ptr[-1] != len(items) or bool(np.any(np.diff(user_ptr) < 0)):
        raise ValueError(
            f"user_ptr must rise from 0 to {len(items)}, found "
            f"{int(user_ptr[0])}..{int(user_ptr[-1])}"
        )
    falls = segments.first_fall(user_ptr, items)
    if bool((falls >= 0).any()):
        user = int(np.argmax(falls >= 0))
        named = f"user {user} names item {int(items[falls[user]])} twice, or items out of order"
        raise ValueError(f"{named}: contributions would add up past the bound")


def _pointer(user_ptr: Int64s, spec: BlockSpec) -> Int64s:
    return np.arange(len(user_ptr), dtype=np.int64) if spec.rows == 1 else user_ptr


def _owners(user_ptr: Int64s, items: npt.NDArray[np.int32], spec: BlockSpec) -> Int64s:
    """Which vector each coefficient belongs to."""
    return (
        np.arange(len(user_ptr) - 1, dtype=np.int64)
        if spec.rows == 1
        else spec.owners(user_ptr, items)
    )


def _unit_vectors(real: RealBlock, owners: Int64s, spec: BlockSpec) -> RealBlock:
    lengths = np.sqrt(_row_squares(real.vectors))
    lengths = np.where(lengths < _LEAST, 0.0, lengths)
    if not (np.isfinite(lengths).all() and np.isfinite(real.coefficients).all()):
        raise ValueError(f"block {spec.name!r} has numbers that are not finite")
    moved = lengths**spec.degree
    units = np.where(lengths > 0, lengths, 1.0)
    if isinstance(real.vectors, np.ndarray):
        vectors: Float64s | scipy.sparse.csr_array = real.vectors / units[:, None]
    else:
        each = np.repeat(units, np.diff(real.vectors.indptr))
        vectors = _with_numbers(real.vectors, real.vectors.data / each)
    return RealBlock(real.coefficients * moved[owners], vectors)


def _row_squares(rows: Float64s | scipy.sparse.csr_array) -> Float64s:
    """Squared norm of each row; numbers of either form are added in the same order."""
    if isinstance(rows, np.ndarray):
        return segments.row_squares(rows)
    return segments.squares(rows.indptr.astype(np.int64), rows.data)


def _with_numbers(
    rows: scipy.sparse.csr_array, numbers: npt.NDArray[np.generic]
) -> scipy.sparse.csr_array:
    return scipy.sparse.csr_array((numbers, rows.indices, rows.indptr), rows.shape)


def _factors(norms: Float64s, radius: float, scaling: Literal["exact", "clip"]) -> Float64s:
    factors = np.divide(radius, norms, out=np.zeros_like(norms), where=norms >= _LEAST)
    return factors if scaling == "exact" else np.minimum(1.0, factors)


def _on_grid(part: RealBlock, factors: Float64s, pointer: Int64s, spec: BlockSpec) -> BlockReports:
    coefficients = part.coefficients * np.repeat(factors, np.diff(pointer))
    on_grid = quantise(coefficients, spec.coefficient_step, bits=COEFFICIENT_BITS)
    if isinstance(part.vectors, np.ndarray):
        return BlockReports(on_grid, quantise(part.vectors, spec.vector_step, bits=VECTOR_BITS))
    numbers = quantise(part.vectors.data, spec.vector_step, bits=VECTOR_BITS)
    return SparseReports(on_grid, _with_numbers(part.vectors, numbers))


def _release_norms(reports: Reports, parts: Sequence[tuple[BlockReports, BlockSpec]]) -> Float64s:
    norms = np.zeros(reports.num_users)
    for part, spec in parts:
        if isinstance(part, SparseReports):
            vectors = _row_squares(_with_numbers(part.rows, part.told * spec.vector_step))
        else:
            vectors = segments.row_squares(np.asarray(part.vectors * spec.vector_step, np.float64))
        coefficients = np.asarray(part.coefficients * spec.coefficient_step, np.float64)
        owned = (vectors**spec.degree)[_owners(reports.user_ptr, reports.items, spec)]
        norms += segments.sums(_pointer(reports.user_ptr, spec), coefficients**2 * owned)
    return norms


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
            # bounds are float64 sums, which round; integers past 2^63 would wrap
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
        # as in `add`
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
    if block.coefficients.shape != (expected,) or block.shape != vectors:
        raise ValueError(
            f"block {spec.name}: expected {expected} coefficients and vectors {vectors}, "
            f"found {block.coefficients.shape} and {block.shape}"
        )
    for name, values, bits in (
        ("coefficients", block.coefficients, COEFFICIENT_BITS),
        ("vectors", block.told, VECTOR_BITS),
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
    vector = max(-int(block.told.min(initial=0)), int(block.told.max(initial=0)))
    coefficient = max(
        -int(block.coefficients.min(initial=0)), int(block.coefficients.max(initial=0))
    )
    terms = np.diff(order.item_ptr) if spec.rows > 1 else np.array([len(order.users)])
    return terms * float(coefficient * vector**spec.degree)


def _add_block(spec: BlockSpec, block: BlockReports, order: ItemOrder, total: Int64s) -> None:
    numbers = spec.columns * max(block.shape[0], len(order.users))
    few = numbers <= _FEW_NUMBERS or isinstance(block, SparseReports)
    if spec.kind not in COMPILED or few:
        _add_expanded(spec, block, order, total)
        return
    from fedrec.numerics.kernels import exact_range, pad_columns  # few sums take compiled code

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
    coefficients = block.coefficients.astype(np.int64)
    if spec.rows == 1:
        total += coefficients @ spec.form.expand(block.vectors.astype(np.int64))
        return
    items = np.repeat(np.arange(spec.rows), np.diff(order.item_ptr))
    owners = order.users.astype(np.int64) * spec.folds + items % spec.folds
    chosen = scipy.sparse.csr_array(
        (coefficients[order.positions], owners, order.item_ptr), (spec.rows, block.shape[0])
    )
    if isinstance(block, SparseReports) and spec.kind == LINEAR.name:
        total += (chosen @ block.rows.astype(np.int64)).toarray()
    else:
        total += chosen @ spec.form.expand(block.vectors.astype(np.int64))
