"""Clicks of people of whom only the items are said."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedrec.data.interactions import Interactions


def clicks_of(histories: Sequence[set[int]], num_items: int) -> Interactions:
    """One person for each set."""
    users = np.repeat(np.arange(len(histories)), [len(items) for items in histories])
    items = np.array([item for history in histories for item in history], np.int64)
    return Interactions.from_columns(
        users,
        items,
        None,
        num_users=len(histories),
        num_items=num_items,
        value_range=(0, 1),
        kind="clicks",
    )
