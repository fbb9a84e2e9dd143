"""Interactions of MovieLens-10M's shape, generated: a long tail of items and of users, distinct
pairs, nothing from a file."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedrec.data.interactions import Interactions


@dataclass(frozen=True)
class Shape:
    """Sizes of a benchmark."""

    users: int
    items: int
    events: int


ML10M = Shape(users=69_878, items=10_677, events=10_000_000)
QUICK = Shape(users=700, items=110, events=20_000)


def generate(shape: Shape, *, rng: np.random.Generator) -> Interactions:
    """Exactly `shape.events` distinct pairs; items follow (rank + items / 90)^-1.3, users a
    log-normal law: the first item has .4%."""
    popularity = (np.arange(shape.items) + shape.items / 90) ** -1.3
    cumulative = np.cumsum(rng.permutation(popularity))
    activity = np.minimum(rng.lognormal(0, 0.9, shape.users), 12)
    pairs = np.empty(0, np.int64)
    while len(pairs) < shape.events:
        draws = shape.events // 4 + shape.events - len(pairs)
        users = np.repeat(np.arange(shape.users), rng.multinomial(draws, activity / activity.sum()))
        items = np.searchsorted(cumulative, rng.random(draws) * cumulative[-1])
        pairs = np.unique(
            np.concatenate([pairs, users * shape.items + items.clip(0, shape.items - 1)])
        )
    kept = np.ones(len(pairs), np.bool_)
    kept[rng.choice(len(pairs), len(pairs) - shape.events, replace=False)] = False
    pairs = pairs[kept]
    return Interactions.from_columns(
        pairs // shape.items,
        pairs % shape.items,
        None,
        num_users=shape.users,
        num_items=shape.items,
        value_range=(0.0, 1.0),
        kind="clicks",
    )
