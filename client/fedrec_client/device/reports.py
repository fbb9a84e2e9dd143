"""One person's bounded report, by numpy: the bytes of `federation.reports.bounded` for one user.

Guarantee (user, add/remove): the report of a release has joint L2 norm at most its radius. Vectors
are scaled to norm at most 1, coefficients so that the norm is the radius (or at most it), and both
are cut to the grid towards zero. Removing the person removes it from the sum.

Sums run in the order of the items, one after the other, as the compiled ones do: `numpy.cumsum`
adds in order, `numpy.sum` does not.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedrec.federation.messages import (
    COEFFICIENT_BITS,
    VECTOR_BITS,
    BlockSpec,
    ReleaseSpec,
    quantise,
)
from fedrec.federation.report_batches import MAX_EVENTS_PER_USER

Floats = npt.NDArray[np.float64]
Int32s = npt.NDArray[np.int32]

_SLACK, _LEAST = 1e-12, 1e-140  # as `federation.reports`
_HEADER = struct.Struct("<4s32sII")
_MAGIC = b"FRR1"


@dataclass(frozen=True)
class RealPart:
    """One block before the grid: coefficients (n,), or (1,) if dense; vectors (folds, width)."""

    coefficients: Floats
    vectors: Floats


@dataclass(frozen=True)
class ReportPart:
    """One block on the grid."""

    coefficients: Int32s
    vectors: Int32s


def in_order(values: Floats) -> float:
    """The sum, each number added to the sum of those before."""
    return float(np.cumsum(values)[-1]) if len(values) else 0.0


def row_squares(rows: Floats) -> Floats:
    """(n,) squared norm of each row, added in order."""
    return np.asarray(
        np.cumsum(rows * rows, axis=1)[:, -1] if rows.size else np.zeros(len(rows)), np.float64
    )


def bounded(
    items: Int32s,
    parts: Sequence[RealPart],
    releases: Sequence[ReleaseSpec],
    *,
    scaling: Literal["exact", "clip"] = "exact",
) -> list[ReportPart]:
    """Scaled to each release's radius ("exact": to it; "clip": down to it only) and cut to the
    grid; `items` rise.

    Raises ValueError on numbers that are not finite.
    """
    left, finished = iter(parts), list[ReportPart]()
    for release in releases:
        unit = [_unit_vectors(next(left), items, spec) for spec in release.blocks]
        norm = np.sqrt(
            np.sum([[in_order(part.coefficients * part.coefficients)] for part in unit], axis=0)
        )[0]
        factor = release.radius * (1 - _SLACK) / norm if norm >= _LEAST else 0.0
        factor = factor if scaling == "exact" else min(1.0, factor)
        for part, spec in zip(unit, release.blocks, strict=True):
            coefficients = quantise(
                part.coefficients * factor, spec.coefficient_step, bits=COEFFICIENT_BITS
            )
            finished.append(
                ReportPart(coefficients, quantise(part.vectors, spec.vector_step, bits=VECTOR_BITS))
            )
    return finished


def silence(specs: Sequence[BlockSpec]) -> list[ReportPart]:
    """The report of somebody who says nothing."""
    return [
        ReportPart(
            np.zeros(1 if s.rows == 1 else 0, np.int32), np.zeros((s.folds, s.width), np.int32)
        )
        for s in specs
    ]


def require_sound(
    items: Int32s, parts: Sequence[ReportPart], releases: Sequence[ReleaseSpec]
) -> None:
    """ValueError where a report is not of the form that the question announces, or larger than a
    radius.

    A leaf would turn it away or shorten it, and the server hears how many were: it must not choose
    who, by arrays on which a step fails for some, whose empty report is sound.
    """
    specs = [spec for release in releases for spec in release.blocks]
    if len(items) > MAX_EVENTS_PER_USER:
        raise ValueError("a report names more items than an aggregator takes")
    if len(parts) != len(specs) or (len(items) and items[-1] >= max(s.rows for s in specs)):
        raise ValueError(f"{len(parts)} blocks for {len(specs)}, or an item outside of all")
    for part, spec in zip(parts, specs, strict=True):
        expected = (1 if spec.rows == 1 else len(items),), (spec.folds, spec.width)
        if (part.coefficients.shape, part.vectors.shape) != expected:
            raise ValueError(f"block {spec.name!r} is not of the announced shape {expected}")
    left = iter(parts)
    for release in releases:
        square = sum(_square(next(left), items, spec) for spec in release.blocks)
        if not square <= release.radius**2:
            raise ValueError(f"the report of release {release.name!r} is larger than its radius")


def packed(
    digest: bytes, report_id: bytes, token: bytes, items: Int32s, parts: Sequence[ReportPart]
) -> bytes:
    """A batch of one report, as `federation.report_batches.pack_reports` writes it."""
    columns = [struct.pack("<I", len(items)), items.astype("<u4").tobytes()]
    for part in parts:
        columns += [part.coefficients.astype("<i2").tobytes(), part.vectors.astype("<i2").tobytes()]
    return b"".join([_HEADER.pack(_MAGIC, digest, 1, len(items)), report_id, token, *columns])


def _square(part: ReportPart, items: Int32s, spec: BlockSpec) -> float:
    """The squared norm of one block's part of a report, in real units."""
    vectors = np.asarray(part.vectors * spec.vector_step, np.float64)
    lengths = row_squares(vectors) ** spec.degree
    coefficients = part.coefficients * spec.coefficient_step
    return in_order(coefficients**2 * lengths[_owners(items, spec)])


def _owners(items: Int32s, spec: BlockSpec) -> npt.NDArray[np.int64]:
    """Which vector each coefficient belongs to."""
    return np.zeros(1, np.int64) if spec.rows == 1 else items.astype(np.int64) % spec.folds


def _unit_vectors(real: RealPart, items: Int32s, spec: BlockSpec) -> RealPart:
    lengths = np.sqrt(row_squares(real.vectors))
    lengths = np.where(lengths < _LEAST, 0.0, lengths)
    if not (np.isfinite(lengths).all() and np.isfinite(real.coefficients).all()):
        raise ValueError(f"block {spec.name!r} has numbers that are not finite")
    moved = lengths**spec.degree
    return RealPart(
        real.coefficients * moved[_owners(items, spec)],
        real.vectors / np.where(lengths > 0, lengths, 1.0)[:, None],
    )
