"""Eigenvectors of many small symmetric matrices, and the projection made from them.

Householder tridiagonalisation of one matrix at a time and the implicit QL iteration of eight (Golub
and Van Loan, Matrix Computations, 8.3), with the eigenvectors kept as rows so that a rotation runs
along contiguous memory. LAPACK's divide and conquer is made for larger matrices, and its threads
fight with ours. What happens to a matrix does not depend on the others.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s, Floats, Int64s
from fedrec.numerics import compiled
from fedrec.numerics.kernels import add_outer, copy, fill
from fedrec.numerics.tiles import (
    LANES,
    chase_bulges,
    rotate_rows_8,
    rotate_rows_32,
    subtract_outer,
    subtract_outer_twice,
    take_row,
    weighted_sum,
)

_REASSOCIATE = {"reassoc", "contract", "nsz"}  # sums as vectors; the order is fixed when compiled
_MOST_SWEEPS = 60  # QL takes two or so for each eigenvalue; `done` says who ended


@compiled(inner=True, error_model="numpy", fastmath=_REASSOCIATE)
def _reflector(vector: Floats, i: int) -> tuple[np.floating, np.floating]:
    """Make vector[:i] the Householder vector that sends it to (0, ..., 0, value): (value, 2 /
    |vector|^2); 0 if it is there already."""
    norm2 = vector.dtype.type(0)
    for k in range(i):
        norm2 += vector[k] * vector[k]
    last = vector[i - 1]
    norm = np.sqrt(norm2)
    if norm2 == last * last:
        return last, vector.dtype.type(0)
    vector[i - 1] = last + norm if last > 0 else last - norm
    return (-norm if last > 0 else norm), vector.dtype.type(1) / (norm2 + norm * abs(last))


@compiled(inner=True, error_model="numpy", fastmath=_REASSOCIATE)
def _tridiagonalise(
    A: Floats, d: int, width: int, diagonal: Float64s, beside: Float64s, factors: Floats
) -> None:
    """Reduce A, flat with rows of `width`, to T = Q' A Q; row i of A keeps the Householder vector
    of step i in its first i entries.

    diagonal, beside: (d,) of T, `beside[i]` next to diagonal[i] and [i + 1]. factors[i]: 2 /
    |vector i|^2. A has rows, of finite numbers, up to a multiple of 4.
    """
    vector = np.empty(width, A.dtype)
    product = np.empty(width, A.dtype)
    for i in range(d - 1, 0, -1):
        columns = (i + LANES - 1) // LANES * LANES
        fill(vector, i, width - i, 0)
        copy(vector, 0, A, i * width, i)
        diagonal[i] = A[i * width + i]
        beside[i - 1], factors[i] = _reflector(vector, i)
        if factors[i] == 0:
            continue  # already tridiagonal here
        copy(A, i * width, vector, 0, i)
        fill(product, 0, width, 0)
        for j in range(0, columns, LANES):
            weighted_sum(vector, A, product, (i + 3) // 4 * 4, width, j)
        half = A.dtype.type(0)
        for k in range(i):
            product[k] *= factors[i]
            half += product[k] * vector[k]
        half *= factors[i] / 2
        for k in range(i):
            product[k] -= half * vector[k]
        fill(product, i, width - i, 0)
        subtract_outer_twice(A, vector, product, product, vector, i, columns, width)
    diagonal[0] = A[0]
    beside[d - 1] = 0


@compiled(inner=True, error_model="numpy")
def _accumulate(A: Floats, d: int, width: int, factors: Floats, Q: Floats, W: Floats) -> None:
    """W = Q', flat with rows of `width`, from the Householder vectors that `_tridiagonalise` left
    in A; Q is scratch like A."""
    vector = np.empty(width, A.dtype)
    product = np.empty(width, A.dtype)
    fill(Q, 0, len(Q), 0)
    for i in range(d):
        Q[i * width + i] = 1
    for i in range(1, d):
        if factors[i] == 0:
            continue
        columns = (i + LANES - 1) // LANES * LANES
        fill(vector, 0, width, 0)
        fill(product, 0, width, 0)
        vector[:i] = A[i * width : i * width + i]
        for j in range(0, columns, LANES):
            weighted_sum(vector, Q, product, (i + 3) // 4 * 4, width, j)
        for j in range(columns):
            product[j] *= factors[i]
        subtract_outer(Q, vector, product, i, columns, width)
    for i in range(d):
        for k in range(d):
            W[i * width + k] = Q[k * width + i]


@compiled(inner=True, error_model="numpy")
def _next_block(
    diagonal: Float64s, beside: Float64s, lane: int, first: int, tolerance: np.floating
) -> tuple[int, int]:
    """The first block [first, last] of this lane's T, from `first` on, that is not yet diagonal;
    first = d if none is left."""
    d = len(diagonal) // LANES
    while first < d:
        last = first
        at = first * LANES + lane
        while last < d - 1 and abs(beside[at]) > tolerance * (
            abs(diagonal[at]) + abs(diagonal[at + LANES])
        ):
            last = last + 1
            at = at + LANES
        if last > first:
            return first, last
        first += 1
    return d, d


@compiled(error_model="numpy")
def _sweep(
    diagonal: Float64s,
    beside: Float64s,
    first: Int64s,
    last: Int64s,
    state: Float64s,
    cosines: Floats,
    sines: Floats,
) -> None:
    """One implicit QL sweep of eight interleaved T, each on its own block; a lane outside its block
    keeps what it has.

    The lanes share the long latencies of a square root and a division. cosines, sines: (8 d,)
    rotations, to be applied later. state: (32,) scratch.
    """
    for lane in range(LANES):
        # sine, cosine, shift
        state[LANES + lane] = 1
        state[2 * LANES + lane] = 1
        state[3 * LANES + lane] = 0
        if last[lane] > first[lane]:
            low = first[lane] * LANES + lane
            high = last[lane] * LANES + lane
            half = (diagonal[low + LANES] - diagonal[low]) / (2 * beside[low])
            root = np.sqrt(half * half + 1)
            state[lane] = (
                diagonal[high]
                - diagonal[low]
                + beside[low] / (half + (root if half >= 0 else -root))
            )
    lowest = first[0]
    highest = last[0]
    for lane in range(1, LANES):
        lowest = min(lowest, first[lane])
        highest = max(highest, last[lane])
    chase_bulges(diagonal, beside, first, last, state, cosines, sines, lowest, highest)
    for lane in range(LANES):
        if last[lane] > first[lane]:
            diagonal[first[lane] * LANES + lane] -= state[3 * LANES + lane]
            beside[first[lane] * LANES + lane] = state[lane]
            beside[last[lane] * LANES + lane] = 0


@compiled(inner=True, error_model="numpy")
def _diagonalise(
    diagonal: Float64s,
    beside: Float64s,
    W: Floats,
    width: int,
    done: npt.NDArray[np.bool_],
    tolerance: np.floating,
) -> None:
    """Implicit QL on eight matrices: `diagonal` becomes the eigenvalues, W[lane] (flat, rows of
    `width`) the eigenvectors as rows.

    done: (8,), lanes to leave alone; at the end, those that converged.
    """
    d = len(diagonal) // LANES
    first = np.zeros(LANES, np.int64)
    last = np.zeros(LANES, np.int64)
    cosines = np.empty(d * LANES, W.dtype)
    sines = np.empty(d * LANES, W.dtype)
    state = np.zeros(4 * LANES, np.float64)
    for lane in range(LANES):
        first[lane] = d if done[lane] else 0
    for _ in range(_MOST_SWEEPS * d):
        finished = True
        for lane in range(LANES):
            first[lane], last[lane] = _next_block(diagonal, beside, lane, first[lane], tolerance)
            finished &= first[lane] == d
        if finished:
            break
        _sweep(diagonal, beside, first, last, state, cosines, sines)
        for lane in range(LANES):
            if last[lane] > first[lane]:
                for j in range(0, width, 4 * LANES):
                    if j + 4 * LANES <= width:
                        rotate_rows_32(
                            W[lane], cosines, sines, first[lane], last[lane], lane, width, j
                        )
                    else:
                        for k in range(j, width, LANES):
                            rotate_rows_8(
                                W[lane], cosines, sines, first[lane], last[lane], lane, width, k
                            )
    for lane in range(LANES):
        done[lane] = first[lane] == d


@compiled(inner=True, error_model="numpy")
def _lift(
    packed: Floats,
    values: Float64s,
    W: Floats,
    width: int,
    floor: float,
    rows: Floats,
    weighted: Floats,
    C: Floats,
) -> None:
    """packed += sum over values below `floor` of (floor - value) v v', v the rows of W; rows,
    weighted and C are scratch."""
    d = len(values)
    n = 0
    at = 0
    for i in range(d):
        if values[i] < floor:
            take_row(
                W, i * width, W.dtype.type(floor - values[i]), rows, weighted, n * width, width
            )
            n += 1
    if n == 0:
        return
    fill(C, 0, len(C), 0)
    add_outer(weighted, rows, C, n, width)
    for i in range(d):
        for k in range(i, d):
            packed[at] += C[i * width + k]
            at += 1


@compiled(error_model="numpy")
def project_range(
    first: int,
    last: int,
    packed: Floats,
    d: int,
    floor: float,
    projected: Floats,
    failed: npt.NDArray[np.bool_],
) -> None:
    """projected[row] = A + sum over eigenvalues below `floor` of (floor - value) v v'; a matrix
    without any is copied."""
    width = (d + LANES - 1) // LANES * LANES
    dtype = packed.dtype
    size = (d + 3) // 4 * 4 * width
    A = np.zeros(size, dtype)
    Q = np.empty(size, dtype)
    W = np.zeros((LANES, d * width), dtype)
    units = np.empty(LANES, dtype)
    diagonal = np.empty(d * LANES, np.float64)
    beside = np.empty(d * LANES, np.float64)
    main = np.empty(d, np.float64)
    off = np.empty(d, np.float64)
    rows = np.empty(d * width, dtype)
    weighted = np.empty(d * width, dtype)
    C = np.empty(width * width, dtype)
    factors = np.zeros(d, dtype)
    done = np.empty(LANES, np.bool_)
    tolerance = np.finfo(dtype).eps / 8
    for group in range(first, last, LANES):
        for lane in range(LANES):
            done[lane] = True
        for lane in range(min(LANES, last - group)):
            copy(projected[group + lane], 0, packed[group + lane], 0, packed.shape[1])
            units[lane] = _unpack_scaled(packed[group + lane], d, width, A)
            failed[group + lane] = not np.isfinite(units[lane])
            done[lane] = failed[group + lane]
            if not done[lane]:
                _tridiagonalise(A, d, width, main, off, factors)
                for i in range(d):
                    diagonal[i * LANES + lane] = main[i]
                    beside[i * LANES + lane] = off[i]
                _accumulate(A, d, width, factors, Q, W[lane])
        _diagonalise(diagonal, beside, W, width, done, tolerance)
        for lane in range(min(LANES, last - group)):
            failed[group + lane] |= not done[lane]
            if not failed[group + lane]:
                for i in range(d):
                    main[i] = diagonal[i * LANES + lane] * units[lane]
                _lift(projected[group + lane], main, W[lane], width, floor, rows, weighted, C)


@compiled(inner=True, error_model="numpy")
def _unpack_scaled(packed: Floats, d: int, width: int, A: Floats) -> np.floating:
    """A = the full matrix over its largest magnitude, which is returned (1 for zero), so that
    squares stay in range."""
    at = 0
    largest = packed.dtype.type(0)
    for k in range(len(packed)):
        largest = (
            max(largest, abs(packed[k])) if packed[k] == packed[k] else packed.dtype.type(np.inf)
        )
    unit = largest if largest > 0 else packed.dtype.type(1)
    for i in range(d):
        for k in range(i, d):
            A[i * width + k] = A[k * width + i] = packed[at] / unit
            at += 1
    return unit
