"""Packed symmetric matrices, padded rows, and ranges of rows with equal work for the threads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Floats, Int64s
from fedrec.numerics.threads import cores, map_ranges
from fedrec.numerics.tiles import LANES

PIECES = 32
"""Ranges of rows with equal work; more than the cores, so that none waits long for the last."""


SMALL = 100_000
"""Work of less than about a tenth of a millisecond, which handing over to threads would only slow
down."""


def unpack(packed: Floats, width: int) -> Floats:
    """(..., d(d+1)/2) upper triangles as full symmetric (..., d, d)."""
    rows, columns = np.triu_indices(width)
    full = np.empty((*packed.shape[:-1], width, width), packed.dtype)
    full[..., rows, columns] = packed
    full[..., columns, rows] = packed
    return full


def pack(full: Floats) -> Floats:
    """Upper triangles (..., d(d+1)/2) of symmetric (..., d, d)."""
    rows, columns = np.triu_indices(full.shape[-1])
    # indexing alone leaves the packed axis outermost in memory
    return np.ascontiguousarray(full[..., rows, columns])


def pad_columns(vectors: npt.NDArray[np.number], dtype: npt.DTypeLike) -> Floats:
    """`vectors` (n, d) as C-contiguous `dtype` with zero columns up to a multiple of 8; the same
    array where it fits."""
    n, d = vectors.shape
    if d % LANES == 0:
        return np.ascontiguousarray(vectors, dtype=dtype)
    padded = np.zeros((n, d + -d % LANES), dtype)
    padded[:, :d] = vectors
    return padded


def map_rows(kernel: Callable[[int, int], None], ptr: Int64s, *, row_cost: int = 8) -> None:
    """Call `kernel(first_row, last_row)` on ranges of equal work: a row costs its events plus
    `row_cost`."""
    work = ptr + row_cost * np.arange(len(ptr))
    if work[-1] < SMALL:
        kernel(0, len(ptr) - 1)
        return
    bounds = np.searchsorted(work, np.linspace(0, work[-1], PIECES + 1)).clip(0, len(ptr) - 1)
    bounds[0] = 0
    bounds[-1] = len(ptr) - 1
    map_ranges(
        lambda a, b: kernel(int(bounds[a]), int(bounds[b])),
        PIECES,
        pieces_per_core=PIECES // cores() or 1,
    )
