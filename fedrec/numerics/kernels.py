"""Compiled loops over rows: sums of (weighted) outer products per segment of events, and the solves
made from them.

A row is an item or a user; its events are `ids[ptr[row]:ptr[row + 1]]`, rows of a `source` matrix
padded to `width`, a multiple of 8. Values that belong to events sit at `positions[e]` of their
columns, or at `e` where `positions` is empty; empty `weights` or `targets` mean 1. Arrays are flat
and C-contiguous, sizes were checked by the callers (`item_statistics.py`, `least_squares.py`). A
row is summed by one thread in a fixed order: the cut into ranges never shows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Array, Floats, Int32s, Int64s
from fedrec.numerics import compiled
from fedrec.numerics.cholesky import solve_lanes
from fedrec.numerics.tiles import LANES, outer_8x8, outer_8x16, prefetch, take_row, weighted_sum

BLOCK_NUMBERS = 3072
"""Numbers gathered before a product: two such blocks of float32 fill a 32 kB first-level cache."""
AHEAD = 96
"""Events between asking for a source row and using it."""
EXACT_TERMS = 256
"""Products of 45 bits that float64 adds without rounding: 2^45 * 2^8 = 2^53."""


def pad_columns(vectors: npt.NDArray[np.number], dtype: npt.DTypeLike) -> Floats:
    """`vectors` (n, d) as C-contiguous `dtype` with zero columns up to a multiple of 8; the same
    array where it fits."""
    n, d = vectors.shape
    if d % LANES == 0:
        return np.ascontiguousarray(vectors, dtype=dtype)
    padded = np.zeros((n, d + -d % LANES), dtype)
    padded[:, :d] = vectors
    return padded


@compiled(inner=True)
def fill(target: Array, at: int, n: int, value: float) -> None:
    """target[at:at+n] = value.

    A loop: numba compiles slice assignments ten times slower, and every first run pays."""
    for k in range(at, at + n):
        target[k] = value


@compiled(inner=True)
def copy(target: Floats, at: int, source: Floats, start: int, n: int) -> None:
    """target[at:at+n] = source[start:start+n]."""
    for k in range(n):
        target[at + k] = source[start + k]


@compiled(inner=True)
def _block_rows(width: int, itemsize: int) -> int:
    """Rows gathered at a time: a multiple of 4, so that both blocks stay in the first-level
    cache."""
    return max(8, min(EXACT_TERMS, BLOCK_NUMBERS * 4 // (itemsize * width) // 4 * 4))


@compiled(inner=True)
def add_outer(left: Floats, right: Floats, C: Floats, n: int, width: int) -> None:
    """C += left' right on the upper triangle, in tiles of 8 x 16 (8 x 8 on the diagonal where the
    count is odd)."""
    for i in range(0, width, LANES):
        j = i
        if ((width - i) // LANES) % 2 == 1:
            outer_8x8(left, right, C, n, width, i, j)
            j += LANES
        while j < width:
            outer_8x16(left, right, C, n, width, i, j)
            j += 2 * LANES


@compiled(inner=True)
def _gather(
    start: int, n: int, ids: Int32s, positions: Int64s, source: Floats, width: int, weights: Array,
    targets: Array,
    rows: Floats, weighted: Floats, coefficients: Floats, factors: Floats,
) -> None:  # fmt: skip
    """Copy n source rows, their weighted copies and their targets; pad the targets with zeros to a
    multiple of 4."""
    one = rows.dtype.type(1.0)
    last = len(ids) - 1
    for k in range(n):
        e = start + k
        at = positions[e] if len(positions) > 0 else e
        coefficients[k] = targets[at] if len(targets) > 0 else one
        factors[k] = weights[at] if len(weights) > 0 else one
    for k in range(n):
        e = start + k
        prefetch(source, np.intp(ids[min(e + AHEAD, last)]) * width, width)
        take_row(source, np.intp(ids[e]) * width, factors[k], rows, weighted, k * width, width)
    for k in range(n, (n + 3) // 4 * 4):
        coefficients[k] = 0
        fill(rows, k * width, width, 0)


@compiled(inner=True)
def _add_segment(
    begin: int, end: int, ids: Int32s, positions: Int64s, source: Floats, width: int,
    weights: Array, targets: Array,
    C: Floats, b: Floats, rows: Floats, weighted: Floats, coefficients: Floats, factors: Floats,
) -> None:  # fmt: skip
    """C += sum w u u' (upper triangle) and b += sum t u over the events [begin, end)."""
    block = len(coefficients)
    for start in range(begin, end, block):
        n = min(block, end - start)
        _gather(
            start,
            n,
            ids,
            positions,
            source,
            width,
            weights,
            targets,
            rows,
            weighted,
            coefficients,
            factors,
        )
        add_outer(weighted, rows, C, n, width)
        for j in range(0, width, LANES):
            weighted_sum(coefficients, rows, b, (n + 3) // 4 * 4, width, j)


@compiled()
def statistics_range(
    first: int, last: int, ptr: Int64s, ids: Int32s, positions: Int64s, source: Floats, d: int,
    width: int, weights: Array, targets: Array,
    gram: Floats, moment: Floats,
) -> None:  # fmt: skip
    """gram[row] (packed upper triangle) and moment[row] of the rows [first, last)."""
    block = _block_rows(width, source.itemsize)
    rows = np.empty(block * width, source.dtype)
    weighted = np.empty(block * width, source.dtype) if len(weights) > 0 else rows
    coefficients = np.empty(block, source.dtype)
    factors = np.empty(block, source.dtype)
    C = np.empty(width * width, source.dtype)
    b = np.empty(width, source.dtype)
    for row in range(first, last):
        fill(C, 0, len(C), 0)
        fill(b, 0, len(b), 0)
        _add_segment(
            ptr[row],
            ptr[row + 1],
            ids,
            positions,
            source,
            width,
            weights,
            targets,
            C,
            b,
            rows,
            weighted,
            coefficients,
            factors,
        )
        copy(moment[row], 0, b, 0, d)
        at = 0
        for i in range(d):
            copy(gram[row], at, C, i * width + i, d - i)
            at += d - i


@compiled()
def exact_range(
    first: int, last: int, ptr: Int64s, ids: Int32s, positions: Int64s, source: Floats, d: int,
    width: int, coefficients: Int32s,
    outer: bool, total: Int64s,
) -> None:  # fmt: skip
    """total[row] += sum c x x' (packed) or sum c x, exactly: at most 256 terms of 45 bits in
    float64, then int64."""
    block = _block_rows(width, 8)
    rows = np.empty(block * width, np.float64)
    weighted = np.empty(block * width, np.float64)
    scratch = np.empty(block, np.float64)
    C = np.empty(width * width if outer else 0, np.float64)
    b = np.empty(width, np.float64)
    factors = np.empty(block, np.float64)
    none = np.empty(0, np.int32)
    for row in range(first, last):
        for begin in range(ptr[row], ptr[row + 1], EXACT_TERMS):
            end = min(begin + EXACT_TERMS, ptr[row + 1])
            if outer:
                fill(C, 0, len(C), 0)
                for start in range(begin, end, block):
                    n = min(block, end - start)
                    _gather(
                        start,
                        n,
                        ids,
                        positions,
                        source,
                        width,
                        coefficients,
                        none,
                        rows,
                        weighted,
                        scratch,
                        factors,
                    )
                    add_outer(weighted, rows, C, n, width)
                at = 0
                for i in range(d):
                    for j in range(i, d):
                        total[row, at] += np.int64(C[i * width + j])
                        at += 1
            else:
                fill(b, 0, len(b), 0)
                for start in range(begin, end, block):
                    n = min(block, end - start)
                    _gather(
                        start,
                        n,
                        ids,
                        positions,
                        source,
                        width,
                        none,
                        coefficients,
                        rows,
                        weighted,
                        scratch,
                        factors,
                    )
                    for j in range(0, width, LANES):
                        weighted_sum(scratch, rows, b, (n + 3) // 4 * 4, width, j)
                for j in range(d):
                    total[row, j] += np.int64(b[j])


@compiled(inner=True)
def _interleave(
    C: Floats, ridge: float, d: int, width: int, lane: int, M: Floats, side: int
) -> None:
    """Put C + ridge I (upper triangle) into one lane; the rows past d are the identity's."""
    for i in range(side):
        for k in range(i):
            M[(i * side + k) * LANES + lane] = C[k * width + i] if i < d else 0
        M[(i * side + i) * LANES + lane] = C[i * width + i] + ridge if i < d else 1


@compiled()
def solve_range(
    first: int, last: int, ptr: Int64s, ids: Int32s, positions: Int64s, source: Floats, d: int,
    width: int, weights: Array, targets: Array,
    ridges: Floats, base: Floats, solution: Floats,
) -> None:  # fmt: skip
    """solution[row] = (base + sum w v v' + ridges[row] I)^-1 sum t v for the rows [first, last);
    `base` is (width^2,)."""
    block = _block_rows(width, source.itemsize)
    side = (d + 3) // 4 * 4
    rows = np.empty(block * width, source.dtype)
    weighted = np.empty(block * width, source.dtype) if len(weights) > 0 else rows
    coefficients = np.empty(block, source.dtype)
    factors = np.empty(block, source.dtype)
    C = np.empty(width * width, source.dtype)
    b = np.empty(width, source.dtype)
    M = np.empty(side * side * LANES, source.dtype)
    inverse = np.empty(side * LANES, source.dtype)
    y = np.empty(side * LANES, source.dtype)
    for group in range(first, last, LANES):
        taken = min(LANES, last - group)
        fill(y, 0, len(y), 0)  # past d, too: what one row without a solution left is not a number
        for lane in range(LANES):
            row = group + min(lane, taken - 1)  # idle lanes repeat the last row
            copy(C, 0, base, 0, len(C))
            fill(b, 0, len(b), 0)
            if lane < taken:
                _add_segment(
                    ptr[row],
                    ptr[row + 1],
                    ids,
                    positions,
                    source,
                    width,
                    weights,
                    targets,
                    C,
                    b,
                    rows,
                    weighted,
                    coefficients,
                    factors,
                )
            _interleave(C, ridges[row] if lane < taken else 1, d, width, lane, M, side)
            for j in range(d):
                y[j * LANES + lane] = b[j]
        solve_lanes(M, inverse, y, side)
        for lane in range(taken):
            for j in range(d):
                solution[group + lane, j] = y[j * LANES + lane]


@compiled()
def solve_packed_range(
    first: int, last: int, packed: Floats, b: Floats, ridges: Floats, solution: Floats
) -> None:
    """solution[row] = (A_row + ridges[row] I)^-1 b[row], A_row given as a packed upper triangle."""
    d = b.shape[1]
    side = (d + 3) // 4 * 4
    M = np.empty(side * side * LANES, b.dtype)
    inverse = np.empty(side * LANES, b.dtype)
    y = np.empty(side * LANES, b.dtype)
    for group in range(first, last, LANES):
        taken = min(LANES, last - group)
        fill(y, 0, len(y), 0)  # past d, too: what one row without a solution left is not a number
        fill(M, 0, len(M), 0)
        for lane in range(LANES):
            row = group + min(lane, taken - 1)  # idle lanes repeat the last row
            at = 0
            for i in range(d):
                for k in range(i, d):
                    M[(k * side + i) * LANES + lane] = packed[row, at]
                    at += 1
                M[(i * side + i) * LANES + lane] += ridges[row]
                y[i * LANES + lane] = b[row, i]
            for i in range(d, side):
                M[(i * side + i) * LANES + lane] = 1
        solve_lanes(M, inverse, y, side)
        for lane in range(taken):
            for j in range(d):
                solution[group + lane, j] = y[j * LANES + lane]
