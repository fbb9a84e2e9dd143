"""Alternating minimisation of clicks without privacy (Hu, Koren and Volinsky 2008), a state per
iteration; of ratings: `variational`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedrec.arrays import Float32s
from fedrec.data.interactions import Interactions, order_by_item
from fedrec.factorization.least_squares import solve_clicks


@dataclass(frozen=True)
class ClickModel:
    """U (n, d) and V (m, d) float32: a user's score of an item is u.v."""

    U: Float32s
    V: Float32s


@dataclass(frozen=True)
class ClickStep:
    """After one iteration: its number from 1 and the model."""

    iteration: int
    model: ClickModel


def alternate_clicks(
    interactions: Interactions,
    *,
    width: int,
    ridge: float,
    alpha: float,
    iterations: int,
    rng: np.random.Generator,
) -> Iterator[ClickStep]:
    """Hu et al. 2008 with confidence 1 + alpha on clicks. `implicit` counts the same with its alpha
    = 1 + ours.
    """
    order = order_by_item(interactions.user_ptr, interactions.items, interactions.num_items)
    V = (rng.standard_normal((interactions.num_items, width)) * 0.01).astype(np.float32)
    for iteration in range(1, iterations + 1):
        U = solve_clicks(
            interactions.user_ptr, interactions.items, V, ridge=ridge, alpha=alpha
        ).astype(np.float32, copy=False)
        V = solve_clicks(order.item_ptr, order.users, U, ridge=ridge, alpha=alpha).astype(
            np.float32, copy=False
        )
        yield ClickStep(iteration, ClickModel(U, V))
