"""Alternating minimisation without privacy (AM-SSP Alg. 1 with closed forms on both sides): the ceiling of everything else.

Ratings: min sum (y - mean - a_k - c_j - u_k.v_j)^2 + sum_k ridge_k |(u_k, a_k)|^2 + sum_j ridge_j |(v_j, c_j)|^2, where a side's bias is
solved jointly with its vector as one more coordinate. Clicks: Hu, Koren and Volinsky 2008. Both yield a state per iteration.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrec.data.interactions import Interactions, ItemOrder, order_by_item
from fedrec.factorization.least_squares import count_ridge, solve_clicks, solve_rows

Float32s = npt.NDArray[np.float32]
Integers = npt.NDArray[np.integer]


@dataclass(frozen=True)
class RatingModel:
    """mean; user_bias (n,), item_bias (m,), U (n, d), V (m, d), all float32."""

    mean: float
    user_bias: Float32s
    item_bias: Float32s
    U: Float32s
    V: Float32s

    def predict(self, users: Integers, items: Integers) -> Float32s:
        """(events,) ratings, not clipped."""
        products = np.empty(len(users), np.float32)
        for a in range(0, len(users), 1 << 18):  # bounded memory: two gathers of 2^18 rows
            z = a + (1 << 18)
            products[a:z] = np.einsum("ed,ed->e", self.U[users[a:z]], self.V[items[a:z]])
        return np.asarray(products + self.user_bias[users] + self.item_bias[items] + np.float32(self.mean), np.float32)


@dataclass(frozen=True)
class ClickModel:
    """U (n, d) and V (m, d) float32: a user's score of an item is u.v."""

    U: Float32s
    V: Float32s


@dataclass(frozen=True)
class RatingStep:
    """After one iteration: its number from 1, the model, the RMSE on the training ratings."""

    iteration: int
    model: RatingModel
    train_rmse: float


@dataclass(frozen=True)
class ClickStep:
    """After one iteration: its number from 1 and the model."""

    iteration: int
    model: ClickModel


@dataclass(frozen=True)
class RatingRecipe:
    """d, and the ridge of a row with n ratings: constant_ridge + ridge * n^ridge_power (power 1 alone: ALS-WR, 0: plain).

    On MovieLens 1M (80/10/10) d = 32 with 8 + .04 n is a good choice; several others lie within .0005 of it on validation.
    """

    width: int
    user_ridge: float
    item_ridge: float
    ridge_power: float = 1.0
    constant_ridge: float = 0.0
    init_std: float = 0.1


def alternate_ratings(
    interactions: Interactions, recipe: RatingRecipe, *, iterations: int, rng: np.random.Generator
) -> Iterator[RatingStep]:
    """Yield after every pass over users, then items. The item vectors start at random, the item biases at the item means."""
    order = order_by_item(interactions.user_ptr, interactions.items, interactions.num_items)
    mean = float(interactions.values.mean(dtype=np.float64)) if len(interactions) else 0.0
    y = interactions.values - np.float32(mean)
    users, d = interactions.users, recipe.width
    item_side = (rng.standard_normal((interactions.num_items, d)) * recipe.init_std).astype(np.float32)
    item_bias = _shrunk_item_means(order, y)
    user_ridge = count_ridge(interactions.user_ptr, recipe.user_ridge, power=recipe.ridge_power, constant=recipe.constant_ridge)
    item_ridge = count_ridge(order.item_ptr, recipe.item_ridge, power=recipe.ridge_power, constant=recipe.constant_ridge)
    for iteration in range(1, iterations + 1):
        solved = solve_rows(
            interactions.user_ptr, interactions.items, _with_one(item_side), ridge=user_ridge, targets=y - item_bias[interactions.items]
        )
        user_side, user_bias = solved[:, :d], solved[:, d]
        solved = solve_rows(
            order.item_ptr, order.users, _with_one(user_side), ridge=item_ridge, targets=y - user_bias[users], positions=order.positions
        )
        item_side, item_bias = solved[:, :d], solved[:, d]
        model = RatingModel(mean, user_bias, item_bias, user_side, item_side)
        residuals = interactions.values - model.predict(users, interactions.items)
        yield RatingStep(iteration, model, float(np.sqrt(np.mean(np.square(residuals, dtype=np.float64)))))


def alternate_clicks(
    interactions: Interactions, *, width: int, ridge: float, alpha: float, iterations: int, rng: np.random.Generator
) -> Iterator[ClickStep]:
    """Hu et al. 2008 with confidence 1 + alpha on clicks. `implicit` counts the same with its alpha = 1 + ours."""
    order = order_by_item(interactions.user_ptr, interactions.items, interactions.num_items)
    V = (rng.standard_normal((interactions.num_items, width)) * 0.01).astype(np.float32)
    for iteration in range(1, iterations + 1):
        U = solve_clicks(interactions.user_ptr, interactions.items, V, ridge=ridge, alpha=alpha).astype(np.float32, copy=False)
        V = solve_clicks(order.item_ptr, order.users, U, ridge=ridge, alpha=alpha).astype(np.float32, copy=False)
        yield ClickStep(iteration, ClickModel(U, V))


def _with_one(vectors: Float32s) -> Float32s:
    """A last column of ones: the coordinate of the bias."""
    return np.concatenate([vectors, np.ones((len(vectors), 1), np.float32)], axis=1)


def _shrunk_item_means(order: ItemOrder, y: Float32s, *, prior_events: float = 5.0) -> Float32s:
    """Mean residual of each item, shrunk as if `prior_events` more had been zero."""
    counts = np.diff(order.item_ptr)
    sums = np.bincount(np.repeat(np.arange(len(counts)), counts), weights=y[order.positions], minlength=len(counts))
    return (sums / (counts + prior_events)).astype(np.float32)
