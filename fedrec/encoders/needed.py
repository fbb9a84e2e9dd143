"""The news that a step needs, each once: text work is done on them, and clicks look vectors up.

A step of a few hundred impressions names tens of thousands of news and a few thousand different
ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Int64s

ABSENT = -1
"""In place of a news: there is none."""


@dataclass(frozen=True)
class NeededNews:
    """items: (u,) int64 ascending, each once; the anonymous news alone where none is named, so that
    u >= 1.

    history, candidates: int64, as given, with positions in `items`; absent ones stay -1.
    """

    items: Int64s
    history: Int64s
    candidates: Int64s


def needed_news(
    history: npt.NDArray[np.integer], candidates: npt.NDArray[np.integer], *, num_news: int
) -> NeededNews:
    """Collect the news of `history` and `candidates`, any shapes, ids in [0, num_news] (num_news is
    the anonymous one) or -1.

    Raises ValueError for other ids.
    """
    lowest, highest = (
        f(
            part.max(initial=-1) if f is max else part.min(initial=0)
            for part in (history, candidates)
        )
        for f in (min, max)
    )
    if lowest < ABSENT or highest > num_news:
        raise ValueError(f"news must be in [-1, {num_news}], found {lowest} to {highest}")
    used = np.zeros(num_news + 2, bool)  # the last place is that of -1
    used[history] = used[candidates] = True
    used[ABSENT] = False
    used[num_news] |= not used.any()
    items = np.flatnonzero(used)
    position = np.full(num_news + 2, ABSENT, np.int64)
    position[items] = np.arange(len(items))
    return NeededNews(items, position[history], position[candidates])
