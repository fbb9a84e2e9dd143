"""Walker's alias method: draws by weight in constant time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Int32s


def alias_table(weights: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], Int32s]:
    """Walker's alias method (Vose 1991): item j of a uniform draw stands for itself below
    `threshold[j]`, else for `alias[j]`."""
    m = len(weights)
    threshold = weights * (m / weights.sum())
    alias = np.arange(m, dtype=np.int32)
    small = [int(j) for j in np.flatnonzero(threshold < 1)]
    large = [int(j) for j in np.flatnonzero(threshold >= 1)]
    while small and large:
        less = small.pop()
        more = large[-1]
        alias[less] = more
        threshold[more] -= 1 - threshold[less]
        if threshold[more] < 1:
            small.append(large.pop())
    threshold[small + large] = 1.0
    return threshold, alias
