"""Clicks of made-up people with tastes, as a data frame: what the examples use in the place of your
own."""

import numpy as np
import polars as pl


def clicks(
    *, users: int, items: int, each: int = 20, tastes: int = 4, seed: int = 1
) -> pl.DataFrame:
    """Columns user_id, item_id and clicked_at: nine of ten clicks of a user fall into one of
    `tastes` groups of items."""
    rng = np.random.default_rng(seed)
    user = np.repeat(np.arange(users), each)
    own = np.repeat(rng.integers(0, tastes, users), each)
    taste = np.where(rng.random(len(user)) < 0.9, own, rng.integers(0, tastes, len(user)))
    item = taste * (items // tastes) + np.minimum(
        rng.geometric(0.08, len(user)) - 1, items // tastes - 1
    )
    return pl.DataFrame(
        {
            "user_id": [f"user-{n}" for n in user],
            "item_id": item,
            "clicked_at": 1_700_000_000 + rng.permutation(len(user)),
        }
    )
