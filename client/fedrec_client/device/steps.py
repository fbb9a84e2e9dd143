"""The steps of the default recipe for ratings, for one person, by numpy:
`factorization.default_client` says what they are and why.

A client of many people solves by compiled code, a device by `numerics.segments`: numbers differ
in their last bits, and reports, which are cut to 15 bits, are the same but where a number lies that
close to a point of the grid (about once in 10^10 numbers).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from fedrec.federation.messages import Question
from fedrec.numerics.segments import cross_fitted, gains, one_user, times
from fedrec_client.device.reports import (
    Floats,
    Int32s,
    RealPart,
    ReportPart,
    bounded,
    in_order,
    row_squares,
)

PRIOR_RATINGS = 3.0
UNITS = (
    "unit_users",
    "unit_ratio",
    "unit_residual",
    "unit_excess",
    "unit_gain",
    "unit_lift",
    "unit_known",
)
"""As in `factorization.default_client`."""


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
    `clicks_client.report_tastes`."""
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
