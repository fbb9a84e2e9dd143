"""The k best items of a large catalogue, exactly, by one pass over 8-bit codes of its vectors for a
whole batch of queries.

Item j is coded as x_j = s_j q_j + r_j, q_j integers up to 127. The score from codes is then off by
at most |r_j| |u| and rounding, so that what could be among the k best is known after one pass; it
is scored again by `ranking.rescored`, which alone decides scores, order and ties. Every item that
could tie with the last is a candidate: an answer is `ranking.Exact`'s to the last bit. The codes
add a little over a quarter to the item vectors. Codes lie in blocks of `BLOCK` items: code d of
item i of block b is `codes[b, d, i]`, so that a vector register holds one coordinate of 16 items,
for `GROUP` queries at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numba.core import types

from fedrec.arrays import Float32s, Int8s, Int64s
from fedrec.numerics import compiled
from fedrec.numerics.threads import map_ranges
from fedrec.numerics.tiles import WIDE, cgutils, data_of, ir, tile
from fedrec.serving.ranking import Best, Catalogue, Query, rescored

BLOCK = 64  # items whose codes lie together: a cache line of each coordinate
GROUP = 8 if WIDE else 5
"""Queries whose sums over 16 items stay in registers: without AVX-512 a pass for 5, 6 and 8 of them
took 2.8, 5.2 and 11.4 ms."""
PAIR = 2  # queries, where fewer than a group are left
_LANES = 16  # float32 of 64 bytes
_PART = 1 << 10
"""Blocks that are coded at a time."""
_ROUNDINGS = 8
"""Beyond the D of a dot product: of a scale, a bias, both bounds and the result; with a margin."""
_CAPACITY = 1 << 12
"""Candidates of one query before those that fell behind are dropped."""


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
def _pair(
    typing: Any, codes: Any, start: Any, U: Any, first: Any, out: Any, width: Any, padded: Any
) -> Any:
    return _signature(codes, U, out), _products(PAIR, 2)


@tile
def _group(
    typing: Any, codes: Any, start: Any, U: Any, first: Any, out: Any, width: Any, padded: Any
) -> Any:
    return _signature(codes, U, out), _products(GROUP, 1)


def _with_padding(queries: int) -> int:
    """Columns of so many queries: groups, and a pair where no more than two are left over."""
    whole, left = divmod(queries, GROUP)
    return whole * GROUP + (PAIR if 0 < left <= PAIR else GROUP * (left > 0))


@compiled(fastmath={"nnan", "nsz", "contract"})
def _scaled(out: Float32s, q: int, scales: Float32s, bias: Float32s, first: int) -> np.float32:
    """Turn products into scores; the best of them."""
    best = np.float32(-3e38)
    for i in range(BLOCK):
        score = out[q * BLOCK + i] * scales[first + i] + bias[first + i]
        out[q * BLOCK + i] = score
        best = max(best, score)
    return best


@compiled()
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
        for group in range(0, padded - PAIR, GROUP):
            _group(codes, start, U, group, out, width, padded)
        if padded % GROUP:
            _pair(codes, start, U, padded - PAIR, out, width, padded)
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


class Compressed:
    """Every item is looked at, in 8 bits a number; raises nothing that `ranking.Exact` does not.

    codes: (blocks, width, BLOCK) int8, which a query passes over."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        m, width = catalogue.items.shape
        blocks = -(-m // BLOCK)
        self.codes = np.zeros((blocks, width, BLOCK), np.int8)
        self._scales = np.zeros(blocks * BLOCK, np.float32)
        self._bias = np.full(blocks * BLOCK, -np.inf, np.float32)
        self._bias[:m] = catalogue.bias
        self._errors = np.zeros(blocks, np.float32)
        longest = 0.0
        for start in range(0, blocks, _PART):
            x = catalogue.items[start * BLOCK : (start + _PART) * BLOCK]
            x = np.pad(x, ((0, -len(x) % BLOCK), (0, 0)))
            scales = np.maximum(np.abs(x).max(axis=1) / 127, np.finfo(np.float32).tiny)
            # the nearest of 255 codes: `left` is how far it is off
            codes = np.rint(x / scales[:, None]).clip(-127, 127)
            left = np.linalg.norm(x - scales[:, None].astype(np.float64) * codes, axis=1)
            part = slice(start, start + len(x) // BLOCK)
            self.codes[part] = codes.reshape(-1, BLOCK, width).transpose(0, 2, 1)
            self._scales[start * BLOCK : start * BLOCK + len(x)] = scales
            self._errors[part] = left.reshape(-1, BLOCK).max(axis=1) * (1 + 1e-6)
            longest = max(longest, float((np.linalg.norm(x, axis=1) + left).max()))
        self._longest = longest
        self._largest_bias = float(np.abs(catalogue.bias).max(initial=0.0))

    @property
    def nbytes(self) -> int:
        """Memory beside the catalogue's own."""
        return sum(a.nbytes for a in (self.codes, self._scales, self._bias, self._errors))

    def __call__(self, queries: Sequence[Query]) -> list[Best]:
        """Implements `ranking.Ranker`."""
        U = np.concatenate([self.catalogue.users(query.coefficients[None]) for query in queries])
        pools = list[_Pools]()
        blocks = len(self._errors)

        def scan(first: int, last: int) -> None:
            pools.append(self._scanned(queries, U, first, last))

        map_ranges(scan, blocks, pieces_per_core=1)
        found = list[Best]()
        for q, (query, u) in enumerate(zip(queries, U, strict=True)):
            lows = np.sort(np.concatenate([pool.best(q) for pool in pools]))
            floor = float(lows[-pools[0].k[q]])
            rows = np.sort(np.concatenate([pool.rows_above(q, floor) for pool in pools]))
            found.append(rescored(self.catalogue, u, rows, query.k))
        return found

    def _scanned(self, queries: Sequence[Query], U: Float32s, first: int, last: int) -> _Pools:
        lengths = np.linalg.norm(U.astype(np.float64), axis=1)
        sizes = lengths * self._longest + self._largest_bias
        slacks = 2.0 * (U.shape[1] + _ROUNDINGS) * 2.0**-23 * sizes
        norms = (lengths * (1 + 1e-6)).astype(np.float32)
        padded = _with_padding(len(U))
        columns = np.zeros((U.shape[1], padded), np.float32)
        columns[:, : len(U)] = U.T
        pools = _Pools(queries, len(self.catalogue.items))
        while first < last:
            first = scan_blocks(
                first, last, self.codes.reshape(-1), self._scales, self._bias, self._errors,
                self.catalogue.categories, len(self.catalogue.items),
                columns.reshape(-1), U.shape[1], padded, norms, slacks.astype(np.float32),
                pools.wanted, pools.k, pools.lows, pools.rows, pools.highs, pools.sizes,
            )  # fmt: skip
            if first < last:
                pools.make_room()
        return pools


class _Pools:
    """Candidates of each query of a batch, as `scan_blocks` takes them."""

    def __init__(self, queries: Sequence[Query], m: int) -> None:
        self.k: Int64s = np.array([min(query.k, m) for query in queries])
        self.wanted = np.array([query.categories for query in queries], np.uint64)
        self.lows = np.full((len(queries), int(self.k.max())), -np.inf, np.float32)
        shape = len(queries), max(_CAPACITY, 4 * int(self.k.max()))
        self.rows: Int64s = np.empty(shape, np.int64)
        self.highs: Float32s = np.empty(shape, np.float32)
        self.sizes: Int64s = np.zeros(len(queries), np.int64)

    def best(self, q: int) -> Float32s:
        """(k,) rising lower bounds; no item of the k best is below the first."""
        return np.asarray(self.lows[q, self.lows.shape[1] - self.k[q] :])

    def rows_above(self, q: int, floor: float) -> Int64s:
        """Candidates that reach it."""
        size = self.sizes[q]
        return np.asarray(self.rows[q, :size][self.highs[q, :size] >= floor])

    def make_room(self) -> None:
        """Drop what fell behind; twice the room where that leaves more than half."""
        for q in range(len(self.k)):
            size = self.sizes[q]
            kept = self.highs[q, :size] >= self.best(q)[0]
            self.sizes[q] = left = int(kept.sum())
            self.rows[q, :left] = self.rows[q, :size][kept]
            self.highs[q, :left] = self.highs[q, :size][kept]
        if 2 * max(BLOCK, int(self.sizes.max())) > self.rows.shape[1]:
            self.rows = np.concatenate([self.rows, np.empty_like(self.rows)], axis=1)
            self.highs = np.concatenate([self.highs, np.empty_like(self.highs)], axis=1)
