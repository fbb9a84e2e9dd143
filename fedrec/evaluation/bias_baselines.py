"""Baselines of means: global, by item, and by item and user."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s
from fedrec.data.interactions import Interactions
from fedrec.privacy.guarantee import Guarantee, non_private

Ids = npt.NDArray[np.integer]
NON_PRIVATE: Guarantee = non_private(delta=1e-5)  # at an infinite epsilon any delta says the same


@dataclass(frozen=True)
class BiasBaseline:
    """mean + item_bias[j] + user_bias[k], clipped to the public scale; `guarantee` is none:
    computed without noise."""

    name: str
    mean: float
    item_bias: Float64s
    user_bias: Float64s
    value_range: tuple[float, float]
    guarantee: Guarantee = NON_PRIVATE

    def predict(self, users: Ids, items: Ids) -> Float64s:
        """(n,) predictions of parallel user and item ids."""
        return np.clip(self.mean + self.item_bias[items] + self.user_bias[users], *self.value_range)


def global_mean(train: Interactions) -> BiasBaseline:
    """The mean of train for everybody; the middle of the scale where train is empty."""
    return _baseline("global mean", train, np.zeros(train.num_items), np.zeros(train.num_users))


def item_means(train: Interactions, *, damping: float = 5.0) -> BiasBaseline:
    """Item means, each with `damping` imagined ratings at the global mean: an item without ratings
    gets that mean."""
    residuals = _centred(train)
    bias = _damped_mean(train.items, residuals, train.num_items, damping)
    return _baseline("item mean", train, bias, np.zeros(train.num_users))


def item_user_bias(train: Interactions, *, ridge: float = 5.0, sweeps: int = 10) -> BiasBaseline:
    """Ridge regression on item and user indicators, (y - mean - b_j - c_k)^2 + ridge (b_j^2 +
    c_k^2), by exact alternating solves."""
    users = train.users
    residuals = _centred(train)
    item_bias = np.zeros(train.num_items)
    user_bias = np.zeros(train.num_users)
    for _ in range(sweeps):
        item_bias = _damped_mean(train.items, residuals - user_bias[users], train.num_items, ridge)
        user_bias = _damped_mean(users, residuals - item_bias[train.items], train.num_users, ridge)
    return _baseline("item + user bias", train, item_bias, user_bias)


def _damped_mean(ids: Ids, values: Float64s, size: int, damping: float) -> Float64s:
    if not damping > 0:
        raise ValueError(
            f"damping must be positive, so that an id without events has a mean; found {damping!r}"
        )
    return np.bincount(ids, weights=values, minlength=size) / (
        np.bincount(ids, minlength=size) + damping
    )


def _centred(train: Interactions) -> Float64s:
    return train.values.astype(np.float64) - _mean(train)


def _mean(train: Interactions) -> float:
    return (
        float(np.mean(train.values, dtype=np.float64)) if len(train) else sum(train.value_range) / 2
    )


def _baseline(
    name: str, train: Interactions, item_bias: Float64s, user_bias: Float64s
) -> BiasBaseline:
    return BiasBaseline(name, _mean(train), item_bias, user_bias, train.value_range)
