"""Popular and rare items: the slices in which every metric is also shown (AM-SSP Fig. 9).

Under privacy the rare items suffer first, and one average over all of them hides it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Int8s


def popularity_buckets(train_counts: npt.NDArray[np.integer], *, buckets: int = 5) -> Int8s:
    """(m,) int8 bucket of each item, equally many items in each: 0 the rarest, `buckets` - 1 the
    most frequent.

    Items are sorted by increasing count in train, equal counts by id; where m is not a multiple of
    `buckets`, sizes differ by one. Raises ValueError unless 1 <= buckets <= 127.
    """
    if not 1 <= buckets <= 127:
        raise ValueError(f"buckets must be in 1..127, found {buckets}")
    m = len(train_counts)
    bucket = np.empty(m, np.int8)
    bucket[np.argsort(train_counts, kind="stable")] = np.arange(m) * buckets // max(m, 1)
    return bucket
