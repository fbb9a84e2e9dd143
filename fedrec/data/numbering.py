"""Ids of a column as numbers from 0, in the order of the ids."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Int32s

Ids = npt.NDArray[np.integer]


def number_ids(ids: Ids) -> tuple[Int32s, Ids]:
    """Ids of any size to 0..k-1 in increasing order: (n,) int32 numbers, and the (k,) ids they
    stand for."""
    if _fits_table(ids):
        present = np.bincount(ids) > 0
        return (np.cumsum(present, dtype=np.int32) - np.int32(1))[ids], np.flatnonzero(present)
    known, numbers = np.unique(ids, return_inverse=True)
    return numbers.astype(np.int32), known


def positions_in(ids: Ids, known: Ids) -> Int32s:
    """Where each id stands in `known` (distinct, in any order), -1 where it does not."""
    if _fits_table(ids) and _fits_table(known):
        table = np.full(max(int(ids.max()), int(known.max())) + 1, -1, dtype=np.int32)
        table[known] = np.arange(len(known), dtype=np.int32)
        return table[ids]
    order = np.argsort(known, kind="stable")
    place = np.minimum(np.searchsorted(known, ids, sorter=order), len(known) - 1)
    found = order[place].astype(np.int32)
    return np.where(known[found] == ids, found, np.int32(-1))


def _fits_table(ids: Ids) -> bool:
    """Whether a table over all ids, several times faster than a sort, stays small."""
    return bool(len(ids)) and int(ids.min()) >= 0 and int(ids.max()) < max(1 << 20, 8 * len(ids))
