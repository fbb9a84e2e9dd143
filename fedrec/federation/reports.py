"""Bounded integer reports of a user's real numbers, and the check that a report is bounded.

Sensitivity. One user's report of a release has joint L2 norm at most `radius`: vectors are scaled
to norm at most 1 (their length moves into the coefficients), coefficients are scaled so that the
norm is the radius, and both are cut towards zero on the grid, which shrinks every entry. Removing
the user removes exactly this report from the sum. The norm is the one of the sum only where a
user's items are distinct: rows of the same item would add before they are squared. A report's items
therefore rise strictly within each user, which whoever makes, checks or adds reports demands
(`require_distinct`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s, Int64s
from fedrec.federation.block_kinds import kind_named
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

_SLACK = 1e-12
"""A report is scaled to (1 - slack) times its radius and checked against the radius: far above the
rounding of the check."""
_LEAST = 1e-140
"""Shorter vectors and reports count as nothing: squares of smaller numbers have too few bits, and a
norm of such squares would be too small to divide by."""


@dataclass(frozen=True)
class RealBlock:
    """One block before the grid: coefficients (n,), or (num_users,) if dense; vectors (num_users *
    folds, width)."""

    coefficients: Float64s
    vectors: Float64s


def block(
    name: str, kind: str, *, rows: int, width: int, radius: float = 1.0, folds: int = 1
) -> BlockSpec:
    """The block's public grid: vectors of norm at most 1, coefficients up to `radius`; see
    `block_kinds` for what a kind is."""
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

    A user whose numbers are all zero stays silent. Raises ValueError on numbers that are not
    finite, and where a user repeats an item.
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
    lengths = np.sqrt(segments.row_squares(real.vectors))
    lengths = np.where(lengths < _LEAST, 0.0, lengths)
    if not (np.isfinite(lengths).all() and np.isfinite(real.coefficients).all()):
        raise ValueError(f"block {spec.name!r} has numbers that are not finite")
    moved = lengths**spec.degree
    return RealBlock(
        real.coefficients * moved[owners],
        real.vectors / np.where(lengths > 0, lengths, 1.0)[:, None],
    )


def _factors(norms: Float64s, radius: float, scaling: Literal["exact", "clip"]) -> Float64s:
    factors = np.divide(radius, norms, out=np.zeros_like(norms), where=norms >= _LEAST)
    return factors if scaling == "exact" else np.minimum(1.0, factors)


def _on_grid(part: RealBlock, factors: Float64s, pointer: Int64s, spec: BlockSpec) -> BlockReports:
    coefficients = part.coefficients * np.repeat(factors, np.diff(pointer))
    return BlockReports(
        quantise(coefficients, spec.coefficient_step, bits=COEFFICIENT_BITS),
        quantise(part.vectors, spec.vector_step, bits=VECTOR_BITS),
    )


def _release_norms(reports: Reports, parts: Sequence[tuple[BlockReports, BlockSpec]]) -> Float64s:
    norms = np.zeros(reports.num_users)
    for part, spec in parts:
        vectors = segments.row_squares(np.asarray(part.vectors * spec.vector_step, np.float64))
        coefficients = np.asarray(part.coefficients * spec.coefficient_step, np.float64)
        owned = (vectors**spec.degree)[_owners(reports.user_ptr, reports.items, spec)]
        norms += segments.sums(_pointer(reports.user_ptr, spec), coefficients**2 * owned)
    return norms
