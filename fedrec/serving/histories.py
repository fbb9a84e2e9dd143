"""History of H places that a query is made from: a rule, which anybody may know, that chooses a
user's events.

The latest H items that were clicked, or rated at least `liked`; the place of a click follows from
when it was made. Where there are no times, the H that come first in one public order of all items.
In both cases exchanging one click for another exchanges at most one place: by time the others stay
where they are; in the public order, the one that leaves makes room for one, and the one that joins
pushes one out, which is the one that leaves or the one that took its place. So the bound of
`asking` holds for the whole set of clicks.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedrec.data.interactions import Interactions
from fedrec.randomness import Streams


def latest_liked(events: Interactions, *, places: int, liked: float) -> npt.NDArray[np.int32]:
    """(num_users, places) item rows, oldest first, -1 in front where there are fewer."""
    likes = events.liked(liked)
    when = _public_order(events.num_items)[likes.items] if likes.times is None else likes.times
    users = likes.users
    order = np.lexsort((likes.items, when, users))
    # of the sorted rows: a user's rows stay together
    from_end = likes.user_ptr[1:][users] - 1 - np.arange(len(likes))
    kept = from_end < places
    table = np.full((events.num_users, places), -1, np.int32)
    table[users[kept], places - 1 - from_end[kept]] = likes.items[order][kept]
    return table


def _public_order(items: int) -> npt.NDArray[np.int64]:
    return Streams(0).numpy("history-order").permutation(items)
