"""Users in blocks of a fixed size, each with draws of its own: the same releases however many sites share the users.

Seeded noise is drawn a block at a time, by the block's number among all users. A site that holds whole blocks draws what one process
that holds everybody draws. Noise of a deployment is fresh for every block, and knows no numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedrec.data.impressions import Impressions

BLOCK = 16


def in_blocks(data: Impressions, *, first_user: int = 0) -> Iterator[tuple[int, Impressions]]:
    """Consecutive users of a site whose first has the number `first_user` among all, with the number of each block."""
    for start in range(0, data.num_users, BLOCK):
        yield (first_user + start) // BLOCK, data.users_subset(np.arange(start, min(start + BLOCK, data.num_users)))
