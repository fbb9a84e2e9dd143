"""Eight Cholesky solves at a time: one system per lane, so that small matrices fill the vector
unit.

Systems lie interleaved: number (row i, column k) of system l is `M[(i * width + k) * 8 + l]`. Every
lane does the same operations in the same order whatever its neighbours hold, so a system's solution
does not depend on the batch it came in. `width` is a multiple of 4 (`TILE`); unused rows are those
of the identity. A system that is not positive definite comes out as NaN in its lane and disturbs no
other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba.core import types

from fedrec.numerics import compiled
from fedrec.numerics.tiles import LANES, Vectors, cgutils, data_of, ir, tile

TILE = 4  # 4 x 4 sums and the 8 operands of a step stay in 32 registers


class _Tile:
    """A 4 x 4 tile of eight interleaved matrices, in registers."""

    def __init__(self, v: Vectors, M: Any, width: Any, i: Any, j: Any) -> None:
        self.v = v
        self.M = M
        self.width = width
        self.i = i
        self.j = j
        self.c = [[self._load(r, s) for s in range(TILE)] for r in range(TILE)]

    def at(self, row: Any, column: Any) -> Any:
        """Offset of lane 0 of (row, column)."""
        b = self.v.builder
        return b.mul(b.add(b.mul(row, self.width), column), self.v.index(LANES))

    def _load(self, r: int, s: int) -> Any:
        slot = cgutils.alloca_once(self.v.builder, self.v.vector)
        self.v.builder.store(self.v.load(self.M, self._offset(r, s)), slot)
        return slot

    def _offset(self, r: int, s: int) -> Any:
        b = self.v.builder
        return self.at(b.add(self.i, self.v.index(r)), b.add(self.j, self.v.index(s)))

    def subtract_products(self) -> None:
        """c[r, s] -= sum over k < j of M[i + r, k] M[j + s, k]."""
        v = self.v
        b = self.v.builder
        with cgutils.for_range(b, self.j) as loop:
            left = [
                v.load(self.M, self.at(b.add(self.i, v.index(r)), loop.index)) for r in range(TILE)
            ]
            right = [
                v.load(self.M, self.at(b.add(self.j, v.index(s)), loop.index)) for s in range(TILE)
            ]
            for r in range(TILE):
                minus = b.fneg(left[r])
                for s in range(TILE):
                    v.add_product(self.c[r][s], minus, right[s])

    def store(self, lower_only: bool) -> None:
        """Back to memory."""
        for r in range(TILE):
            for s in range(r + 1 if lower_only else TILE):
                self.v.store(self.v.builder.load(self.c[r][s]), self.M, self._offset(r, s))


def _tile_signature(M: Any, inverse: Any) -> Any:
    return types.void(M, inverse, types.intp, types.intp, types.intp)


@tile
def _diagonal_tile(typing: Any, M: Any, inverse: Any, width: Any, i: Any, j: Any) -> Any:
    """Factor the tile at (j, j) = (i, i); inverse[8 (j + s) + lane] = 1 / L[j + s, j + s]."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        v = Vectors(context, builder, M.dtype)
        data, out = (data_of(context, builder, signature.args[k], args[k]) for k in (0, 1))
        T = _Tile(v, data, args[2], args[3], args[4])
        T.subtract_products()
        one = v.spread(ir.Constant(v.scalar, 1.0))
        for s in range(TILE):
            pivot = v.sqrt(builder.load(T.c[s][s]))
            inverse_pivot = builder.fdiv(one, pivot)
            builder.store(pivot, T.c[s][s])
            v.store(
                inverse_pivot, out, builder.mul(builder.add(args[4], v.index(s)), v.index(LANES))
            )
            for r in range(s + 1, TILE):
                builder.store(builder.fmul(builder.load(T.c[r][s]), inverse_pivot), T.c[r][s])
            for r in range(s + 1, TILE):
                minus = builder.fneg(builder.load(T.c[r][s]))
                for t in range(s + 1, r + 1):
                    v.add_product(T.c[r][t], minus, builder.load(T.c[t][s]))
        T.store(lower_only=True)
        return context.get_dummy_value()

    return _tile_signature(M, inverse), codegen


@tile
def _lower_tile(typing: Any, M: Any, inverse: Any, width: Any, i: Any, j: Any) -> Any:
    """Replace the tile at (i, j), i > j, by that of the factor."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        v = Vectors(context, builder, M.dtype)
        data, inverses = (data_of(context, builder, signature.args[k], args[k]) for k in (0, 1))
        T = _Tile(v, data, args[2], args[3], args[4])
        T.subtract_products()
        for s in range(TILE):
            row = builder.add(args[4], v.index(s))
            inverse_pivot = v.load(inverses, builder.mul(row, v.index(LANES)))
            for r in range(TILE):
                builder.store(builder.fmul(builder.load(T.c[r][s]), inverse_pivot), T.c[r][s])
            for t in range(s + 1, TILE):
                minus = builder.fneg(v.load(data, T.at(builder.add(args[4], v.index(t)), row)))
                for r in range(TILE):
                    v.add_product(T.c[r][t], builder.load(T.c[r][s]), minus)
        T.store(lower_only=False)
        return context.get_dummy_value()

    return _tile_signature(M, inverse), codegen


@tile
def _forward(typing: Any, M: Any, inverse: Any, y: Any, width: Any) -> Any:
    """y <- L^-1 y, four rows at a time."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        v = Vectors(context, builder, M.dtype)
        data, inverses, out = (
            data_of(context, builder, signature.args[k], args[k]) for k in range(3)
        )
        width = args[3]
        lanes = v.index(LANES)
        with cgutils.for_range(builder, builder.udiv(width, v.index(TILE))) as block:
            first = builder.mul(block.index, v.index(TILE))
            rows = [builder.add(first, v.index(r)) for r in range(TILE)]
            at = [builder.mul(builder.mul(row, width), lanes) for row in rows]
            sums = v.registers(TILE)
            with cgutils.for_range(builder, first) as loop:
                shift = builder.mul(loop.index, lanes)
                minus = builder.fneg(v.load(out, shift))
                for r in range(TILE):
                    v.add_product(sums[r], v.load(data, builder.add(at[r], shift)), minus)
            for r in range(TILE):
                value = builder.fadd(
                    v.load(out, builder.mul(rows[r], lanes)), builder.load(sums[r])
                )
                for t in range(r):
                    shift = builder.mul(rows[t], lanes)
                    value = v.fma(
                        v.load(data, builder.add(at[r], shift)),
                        builder.fneg(v.load(out, shift)),
                        value,
                    )
                shift = builder.mul(rows[r], lanes)
                v.store(builder.fmul(value, v.load(inverses, shift)), out, shift)
        return context.get_dummy_value()

    return types.void(M, inverse, y, types.intp), codegen


@tile
def _backward_row(typing: Any, M: Any, inverse: Any, y: Any, width: Any, i: Any) -> Any:
    """y[i] <- y[i] / L[i, i], then y[k] -= L[i, k] y[i] for every k < i."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        v = Vectors(context, builder, M.dtype)
        data, inverses, out = (
            data_of(context, builder, signature.args[k], args[k]) for k in range(3)
        )
        width = args[3]
        i = args[4]
        lanes = v.index(LANES)
        here = builder.mul(i, lanes)
        value = builder.fmul(v.load(out, here), v.load(inverses, here))
        v.store(value, out, here)
        minus = builder.fneg(value)
        row = builder.mul(builder.mul(i, width), lanes)
        with cgutils.for_range(builder, i) as loop:
            shift = builder.mul(loop.index, lanes)
            v.store(
                v.fma(v.load(data, builder.add(row, shift)), minus, v.load(out, shift)), out, shift
            )
        return context.get_dummy_value()

    return types.void(M, inverse, y, types.intp, types.intp), codegen


@compiled(inner=True)
def solve_lanes(
    M: npt.NDArray[np.floating],
    inverse: npt.NDArray[np.floating],
    y: npt.NDArray[np.floating],
    width: int,
) -> None:
    """Solve eight interleaved systems M x = y: y becomes x, the lower half of M the factor;
    `inverse` is (8 width,) scratch."""
    for j in range(0, width, TILE):
        _diagonal_tile(M, inverse, width, j, j)
        for i in range(j + TILE, width, TILE):
            _lower_tile(M, inverse, width, i, j)
    _forward(M, inverse, y, width)
    for i in range(width - 1, -1, -1):
        _backward_row(M, inverse, y, width, i)
