"""The steps of the default recipe for ratings, for one person, by numpy:
`default_ratings.client` says what they are and why.

A client of many people solves by compiled code, a device by `numerics.segments`: numbers differ
in their last bits, and reports, which are cut to 15 bits, are the same but where a number lies that
close to a point of the grid (about once in 10^10 numbers).

One person's bounded report, by numpy: the bytes of `federation.reports.bounded` for one user.

Guarantee (user, add/remove): the report of a release has joint L2 norm at most its radius. Vectors
are scaled to norm at most 1, coefficients so that the norm is the radius (or at most it), and both
are cut to the grid towards zero. Removing the person removes it from the sum.

Sums run in the order of the items, one after the other, as the compiled ones do: `numpy.cumsum`
adds in order, `numpy.sum` does not.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedrec.federation.messages import (
    COEFFICIENT_BITS,
    VECTOR_BITS,
    BlockSpec,
    Question,
    ReleaseSpec,
    quantise,
)
from fedrec.federation.report_batches import MAX_EVENTS_PER_USER
from fedrec.numerics.segments import cross_fitted, gains, one_user, times

Floats = npt.NDArray[np.float64]
Int32s = npt.NDArray[np.int32]

_SLACK = 1e-12  # relative: a clip stays within its radius when rounded
_LEAST = 1e-140  # as `federation.reports`
_HEADER = struct.Struct("<4s32sII")
_MAGIC = b"FRR1"
PRIOR_RATINGS = 3.0  # as `least_squares`
UNITS = (
    "unit_users",
    "unit_ratio",
    "unit_residual",
    "unit_excess",
    "unit_gain",
    "unit_lift",
    "unit_known",
)
"""As in `default_ratings.client`."""


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
    left = iter(parts)
    finished = list[ReportPart]()
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

    The aggregator would turn it away or shorten it, and the server hears how many were: it must
    not choose who, by arrays on which a step fails for some, whose empty report is sound.
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


@dataclass(frozen=True)
class Rated:
    """items (n,) int32 rising, x (n,) ratings on the scale [-2, 2]; num_items of the catalogue."""

    items: Int32s
    x: Floats
    num_items: int


Step = Callable[[Question, Rated], tuple[Int32s, list[ReportPart]]]
"""The items that a report names, and its blocks."""


def _public(question: Question, name: str) -> Floats:
    return np.asarray(question.public[name], np.float64)


def counts(question: Question, mine: Rated) -> tuple[Int32s, list[ReportPart]]:
    """1 on each item, and the person's mean on [-1, 1]."""
    share = float(question.public["mean_energy"])
    n = len(mine.items)
    mean = float(np.clip(in_order(mine.x) / max(n, 1) / 2, -1, 1))
    one = np.ones((1, 1))
    parts = [
        RealPart(np.full(n, np.sqrt((1 - share) / max(n, 1))), one),
        RealPart(np.array([np.sqrt(share) * (mean if n else 0.0)]), one),
    ]
    return mine.items, bounded(mine.items, parts, question.releases, scaling="clip")


def biases(question: Question, mine: Rated) -> tuple[Int32s, list[ReportPart]]:
    """omega x and omega kappa, for ratings from which the person's own shrunk mean is taken."""
    omega = _public(question, "omega")
    kappa = float(question.public["kappa"])
    x = mine.x - float(question.public["mean"])
    x = x - in_order(x) / (len(x) + PRIOR_RATINGS)
    w = omega[mine.items]
    one = np.ones((1, 1))
    return mine.items, bounded(
        mine.items, [RealPart(w * x, one), RealPart(w * kappa, one)], question.releases
    )


def tastes(question: Question, mine: Rated) -> tuple[Int32s, list[ReportPart]]:
    """z z' with z the weighted residuals on the items asked for."""
    omega = _public(question, "omega")
    columns = np.asarray(question.public["items"], np.int64)
    place = np.full(mine.num_items, -1)
    place[columns] = np.arange(len(columns))
    phi, targets, variance = _model(question, mine)
    X, t, v, _ = one_user(phi, targets, variance, mine.items)
    w = times(gains(X, v), t)[0]
    residuals = omega[mine.items] * (targets - _products(w, phi))
    z = np.zeros((1, len(columns)))
    asked = place[mine.items] >= 0
    z[0, place[mine.items[asked]]] = residuals[asked]
    nothing = mine.items[:0]
    return nothing, bounded(nothing, [RealPart(np.ones(1), z)], question.releases)


def step(question: Question, mine: Rated) -> tuple[Int32s, list[ReportPart]]:
    """omega times cross-fitted residuals, times the person's vector without each fold; and scales
    of how long a step to take."""
    omega = _public(question, "omega")
    variance = _public(question, "variance")
    alpha = float(question.public["alpha"])
    energy = float(question.public["scales_energy"])
    n = len(mine.items)
    d = int(question.public["width"])
    spec = question.blocks[0]
    phi, targets, own_variance = _model(question, mine)
    fold = mine.items.astype(np.int64) % spec.folds
    X, t, v, folded = one_user(phi, targets, own_variance, fold)
    found = cross_fitted(X, t, v, folded, width=d, folds=spec.folds)
    residuals = found[0][0, :n]
    fitted = found[1][0]
    noise_share = found[2][0, :n]
    plain = cross_fitted(X[:, :, :1], t, v, folded, width=0, folds=spec.folds)[0][0, :n]
    coefficients = omega[mine.items] * residuals
    vectors = np.column_stack([np.full(len(fitted), alpha), fitted])
    norm = math.sqrt(in_order(coefficients**2 * row_squares(vectors)[fold]))
    radius = question.releases[0].radius
    *units, direction = (float(question.public[name]) for name in UNITS)
    added = plain - residuals
    squares = residuals**2
    columns = (
        squares,
        noise_share * squares - variance[mine.items],
        added * plain,
        added**2,
        *(fitted**2)[fold].T,
    )
    means = [in_order(np.asarray(column, np.float64)) / max(n, 1) for column in columns]
    ratio = np.sqrt(float(max(n, 1))) / norm if norm > 0 else 0.0
    scales = np.array([[1.0, ratio, *means]]) / np.array([*units, *[direction] * d]) * (n > 0)
    weight = min(math.sqrt(n / float(question.public["most_ratings"])), 1.0)
    length = math.sqrt(row_squares(scales)[0])
    beside = math.sqrt(energy) * weight / max(length, 1.0)
    left_over = math.sqrt(1 - (beside * length) ** 2)
    factor = left_over / norm if norm > 0 else 0.0
    parts = [
        RealPart(radius * coefficients * factor, vectors),
        RealPart(np.array([radius * beside]), scales),
    ]
    return mine.items, bounded(mine.items, parts, question.releases, scaling="clip")


def pairs(question: Question, mine: Rated) -> tuple[Int32s, list[ReportPart]]:
    """Rows z_j z of the items asked for that were rated, z their weights:
    `default_ratings.client.report_pairs`."""
    omega = _public(question, "omega")
    asked = np.asarray(question.public["items"], np.int64)
    place = np.full(mine.num_items, -1, np.int32)
    place[asked] = np.arange(len(asked))
    items = mine.items[place[mine.items] >= 0]
    items = items[np.argsort(place[items], kind="stable")]
    z = omega[items]
    columns = place[items]
    dense = np.zeros((1, len(asked)))
    dense[0, columns] = z
    return columns, bounded(columns, [RealPart(z, dense)], question.releases)


STEPS: Mapping[str, Step] = {
    "default/counts": counts, "default/biases": biases, "default/tastes": tastes,
    "default/step": step, "default/pairs": pairs,
}  # fmt: skip


def _model(question: Question, mine: Rated) -> tuple[Floats, Floats, Floats]:
    """phi (n, D) of the person's items, what mean and biases leave of the ratings (n,), and the
    variance (n,) of their noise."""
    bias = _public(question, "bias")[mine.items]
    phi = np.asarray(np.asarray(question.public["phi"])[mine.items], np.float64)
    return phi, mine.x - _public(question, "mean") - bias, _public(question, "variance")[mine.items]


def _products(w: Floats, phi: Floats) -> Floats:
    return np.asarray(np.cumsum(w * phi, axis=1)[:, -1])
