"""Errors of predicted ratings, over all events and by popularity of the item (RMSE and MAE).

Predictions are aligned with the events of the target `Interactions`, sorted by user, then item.

Popular and rare items are the slices in which every metric is also shown (AM-SSP Fig. 9). Under
privacy the rare items suffer first, and one average over all of them hides it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s, Floats, Int8s
from fedrec.data.interactions import Interactions


def popularity_buckets(train_counts: npt.NDArray[np.integer], *, buckets: int = 5) -> Int8s:
    """(m,) int8 bucket of each item, equally many items in each: 0 the rarest, `buckets` - 1 the
    most frequent.

    Items are sorted by increasing count in train, equal counts by id; where m is not a multiple of
    `buckets`, sizes differ by one. Raises ValueError unless 1 <= buckets <= 127.
    """
    if not 1 <= buckets <= 127:
        raise ValueError(f"buckets must be in 1..127, found {buckets}")
    m = len(train_counts)
    bucket = np.empty(m, np.int8)
    bucket[np.argsort(train_counts, kind="stable")] = np.arange(m) * buckets // max(m, 1)
    return bucket


@dataclass(frozen=True)
class RatingMetrics:
    """RMSE and MAE in units of the rating over `events` events of `users` users; not a number where
    there are none.

    `rmse_stderr` is one standard error with the users as the independent draws: the events of a
    user are not; not a number for one user, whose deviation from the mean is 0 by construction.
    influence: (users,) each user's part of the RMSE's deviation, of norm `rmse_stderr`; the norm
    of a difference is the standard error of the difference.
    """

    rmse: float
    mae: float
    rmse_stderr: float
    events: int
    users: int
    influence: Float64s = field(default_factory=lambda: np.zeros(0), compare=False, repr=False)

    def as_dict(self) -> dict[str, float | int | None]:
        """Plain values for JSON, None in the place of what is not a number."""
        return {
            "rmse": _plain(self.rmse),
            "mae": _plain(self.mae),
            "rmse_stderr": _plain(self.rmse_stderr),
            "events": self.events,
            "users": self.users,
        }


def rating_metrics(predictions: Floats, targets: Interactions) -> RatingMetrics:
    """Errors of (n,) predictions of the n target values, summed in float64.

    Raises ValueError where the lengths differ or a prediction is not finite.
    """
    errors = _errors(predictions, targets)
    return _summary(errors, targets.user_ptr)


def by_popularity(
    predictions: Floats,
    targets: Interactions,
    train_counts: npt.NDArray[np.integer],
    *,
    buckets: int = 5,
) -> tuple[RatingMetrics, ...]:
    """Errors by bucket of the item, rarest first (AM-SSP Fig. 9); `train_counts` (m,) are events in
    train."""
    errors = _errors(predictions, targets)
    bucket = popularity_buckets(train_counts, buckets=buckets)[targets.items]
    slices = []
    for b in range(buckets):
        inside = bucket == b
        slices.append(_summary(errors[inside], targets.select(inside).user_ptr))
    return tuple(slices)


def _errors(predictions: Floats, targets: Interactions) -> Float64s:
    if predictions.shape != targets.values.shape:
        raise ValueError(
            f"{predictions.shape} predictions do not align with {targets.values.shape} "
            "target events"
        )
    if not bool(np.isfinite(predictions).all()):
        raise ValueError(
            f"{int((~np.isfinite(predictions)).sum())} predictions are not finite numbers"
        )
    return predictions.astype(np.float64) - targets.values


def _summary(errors: Float64s, user_ptr: npt.NDArray[np.int64]) -> RatingMetrics:
    n = len(errors)
    users = int(np.count_nonzero(np.diff(user_ptr)))
    if n == 0:
        return RatingMetrics(math.nan, math.nan, math.nan, 0, 0)
    mse = float(np.mean(errors**2))
    # The delta method on sqrt(mse), the deviations summed within a user first (cluster-robust
    # variance). G users have G - 1 degrees of freedom, as in `ranking`.
    deviations = np.concatenate([[0.0], np.cumsum(errors**2 - mse)])
    rmse = math.sqrt(mse)
    influence = np.zeros(users) if users > 1 else np.full(users, np.nan)
    if users > 1 and rmse > 0:
        each = np.diff(deviations[user_ptr])[np.diff(user_ptr) > 0]
        influence = each / (2 * n * rmse) * math.sqrt(users / (users - 1))
    return RatingMetrics(
        rmse, float(np.mean(np.abs(errors))), float(np.linalg.norm(influence)), n, users, influence
    )


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else value
