"""One pass over 8-bit vectors for a batch of queries, which selects on the way: what could be among
the k best by a bound on each score.

Vectors lie in blocks of `BLOCK`: code d of item i of block b is `codes[b, d, i]`, so that a vector
register holds one coordinate of 16 items, for 8 queries at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit
from numba.core import types

from fedrec.arrays import Float32s, Int8s, Int64s
from fedrec.numerics.tiles import cgutils, data_of, ir, tile

BLOCK = 64
GROUP = 8
_LANES = 16


def _products(queries: int, tiles: int) -> Any:
    """Emit out[q, i] = sum over d of U[d, q] codes[d, i] for `queries` queries and 16 `tiles` items
    at a time."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        codes, U, out = (data_of(context, builder, signature.args[k], args[k]) for k in (0, 2, 4))
        start = args[1]
        first = args[3]
        width = args[5]
        padded = args[6]
        single = ir.FloatType()
        vector = ir.VectorType(single, _LANES)
        narrow = ir.VectorType(ir.IntType(8), _LANES)
        number = context.get_constant
        zero = ir.Constant(vector, [ir.Constant(single, 0.0)] * _LANES)
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), _LANES), [0] * _LANES)
        nothing = ir.Constant(vector, ir.Undefined)
        kind = ir.FunctionType(vector, [vector] * 3)
        fma = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fmuladd.v{_LANES}f32")
        slots = [cgutils.alloca_once(builder, vector) for _ in range(queries * tiles)]
        for item in range(0, BLOCK, _LANES * tiles):
            for slot in slots:
                builder.store(zero, slot)
            with cgutils.for_range(builder, width) as loop:
                row = builder.add(start, builder.mul(loop.index, number(types.intp, BLOCK)))
                coefficients = builder.add(builder.mul(loop.index, padded), first)
                x = list[Any]()
                for t in range(tiles):
                    at = builder.add(row, number(types.intp, item + t * _LANES))
                    place = builder.bitcast(builder.gep(codes, [at]), narrow.as_pointer())
                    x.append(builder.sitofp(builder.load(place, align=1), vector))
                for q in range(queries):
                    at = builder.add(coefficients, number(types.intp, q))
                    u = builder.load(builder.gep(U, [at]))
                    one = builder.insert_element(nothing, u, ir.Constant(ir.IntType(32), 0))
                    spread = builder.shuffle_vector(one, nothing, lanes)
                    for t in range(tiles):
                        slot = slots[q * tiles + t]
                        builder.store(builder.call(fma, [spread, x[t], builder.load(slot)]), slot)
            for q in range(queries):
                for t in range(tiles):
                    query = builder.add(first, number(types.intp, q))
                    at = builder.mul(query, number(types.intp, BLOCK))
                    to = builder.gep(out, [builder.add(at, number(types.intp, item + t * _LANES))])
                    value = builder.load(slots[q * tiles + t])
                    builder.store(value, builder.bitcast(to, vector.as_pointer()), align=4)
        return context.get_dummy_value()

    return codegen


def _signature(codes: Any, U: Any, out: Any) -> Any:
    return types.void(codes, types.intp, U, types.intp, out, types.intp, types.intp)


@tile
def _one(
    typing: Any, codes: Any, start: Any, U: Any, first: Any, out: Any, width: Any, padded: Any
) -> Any:
    return _signature(codes, U, out), _products(1, 4)


@tile
def _eight(
    typing: Any, codes: Any, start: Any, U: Any, first: Any, out: Any, width: Any, padded: Any
) -> Any:
    return _signature(codes, U, out), _products(GROUP, 1)


@njit(nogil=True, cache=True, fastmath={"nnan", "nsz", "contract"})
def _scaled(out: Float32s, q: int, scales: Float32s, bias: Float32s, first: int) -> np.float32:
    """Turn products into scores; the best of them."""
    best = np.float32(-3e38)
    for i in range(BLOCK):
        score = out[q * BLOCK + i] * scales[first + i] + bias[first + i]
        out[q * BLOCK + i] = score
        best = max(best, score)
    return best


@njit(nogil=True, cache=True)
def scan_blocks(
    first: int, last: int, codes: Int8s, scales: Float32s, bias: Float32s, errors: Float32s,
    categories: npt.NDArray[np.unsignedinteger], m: int,
    U: Float32s, width: int, padded: int, norms: Float32s, slacks: Float32s,
    wanted: npt.NDArray[np.uint64], k: Int64s,
    lows: Float32s, rows: Int64s, highs: Float32s, sizes: Int64s,
) -> int:  # fmt: skip
    """Scan the blocks [first, last); returns where it stopped: `last`, or a block before which some
    query's candidates are too many for their arrays.

    codes, scales, bias: flat, of whole blocks; errors: (blocks,) the longest difference of a vector
    and its codes. U: (width, padded) flat. lows: (queries, most) rising, the k[q] largest lower
    bounds of a score in the last places, -inf where there are none yet. rows, highs: (queries,
    capacity) candidates and their upper bounds, sizes[q] of them.
    """
    queries = len(norms)
    most = lows.shape[1]
    out = np.empty(padded * BLOCK, np.float32)
    for block in range(first, last):
        for q in range(queries):
            if sizes[q] + BLOCK > rows.shape[1]:
                return block
        start = block * BLOCK * width
        if padded == 1:
            _one(codes, start, U, 0, out, width, padded)
        else:
            for group in range(0, padded, GROUP):
                _eight(codes, start, U, group, out, width, padded)
        for q in range(queries):
            error = errors[block] * norms[q] + slacks[q]
            floor = lows[q, most - k[q]]
            if _scaled(out, q, scales, bias, block * BLOCK) + error < floor:
                continue
            for i in range(BLOCK):
                high = out[q * BLOCK + i] + error
                row = block * BLOCK + i
                if high < floor or row >= m:
                    continue
                if wanted[q] != 0 and (np.uint64(categories[row]) & wanted[q]) == 0:
                    continue
                rows[q, sizes[q]] = row
                highs[q, sizes[q]] = high
                sizes[q] += 1
                low = high - 2 * error
                if low > floor:
                    place = most - k[q]
                    while place + 1 < most and lows[q, place + 1] < low:
                        lows[q, place] = lows[q, place + 1]
                        place += 1
                    lows[q, place] = low
                    floor = lows[q, most - k[q]]
    return last
