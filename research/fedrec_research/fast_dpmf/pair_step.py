"""Loops of one stochastic gradient step: the product of two rows, and their exchange as vectors of
eight.

Rows are `width` numbers, a multiple of 8, of flat C-contiguous arrays of one float type. A row of
users and a row of items never overlap, which numba's own loops would test for at every event.
"""

from __future__ import annotations

from typing import Any

from numba.core import types

from fedrec.numerics.tiles import LANES, Vectors, cgutils, data_of, ir, tile

_UNROLLED = 4  # sums that do not wait for each other: additions overlap


@tile
def dot(typing: Any, left: Any, a: Any, right: Any, b: Any, width: Any) -> Any:
    """left[a:a+width] . right[b:b+width], in four partial sums of eight lanes."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x, y = (data_of(context, builder, signature.args[k], args[k]) for k in (0, 2))
        a = args[1]
        b = args[3]
        width = args[4]
        v = Vectors(context, builder, signature.args[0].dtype)
        sums = v.registers(_UNROLLED)

        def add(slot: Any, shift: Any) -> None:
            v.add_product(slot, v.load(x, builder.add(a, shift)), v.load(y, builder.add(b, shift)))

        _unrolled(v, width, lambda r, shift: add(sums[r], shift))
        s = [builder.load(slot) for slot in sums]
        total = builder.fadd(builder.fadd(s[0], s[1]), builder.fadd(s[2], s[3]))
        for lanes in (LANES // 2, LANES // 4, LANES // 8):
            total = _halved(v, total, lanes)
        return builder.extract_element(total, ir.Constant(ir.IntType(32), 0))

    return left.dtype(left, types.intp, right, types.intp, types.intp), codegen


@tile
def exchange(
    typing: Any, left: Any, a: Any, right: Any, b: Any, width: Any, keep: Any, step: Any
) -> Any:
    """x, y = keep x + step y, keep y + step x for x = left[a:a+width] and y = right[b:b+width]."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x, y = (data_of(context, builder, signature.args[k], args[k]) for k in (0, 2))
        a = args[1]
        b = args[3]
        width = args[4]
        v = Vectors(context, builder, signature.args[0].dtype)
        keep = v.spread(args[5])
        step = v.spread(args[6])

        def swap(r: int, shift: Any) -> None:
            at = builder.add(a, shift)
            beside = builder.add(b, shift)
            u = v.load(x, at)
            w = v.load(y, beside)
            v.store(v.fma(step, w, builder.fmul(keep, u)), x, at)
            v.store(v.fma(step, u, builder.fmul(keep, w)), y, beside)

        _unrolled(v, width, swap)
        return context.get_dummy_value()

    return types.void(
        left, types.intp, right, types.intp, types.intp, left.dtype, left.dtype
    ), codegen


def _unrolled(v: Vectors, width: Any, body: Any) -> None:
    """`body(r, shift)` for every vector of a row: four at a time, then what is left with r = 0."""
    builder = v.builder
    stride = v.index(_UNROLLED * LANES)
    fours = builder.udiv(width, stride)
    with cgutils.for_range(builder, fours) as loop:
        for r in range(_UNROLLED):
            body(r, builder.add(builder.mul(loop.index, stride), v.index(r * LANES)))
    done = builder.mul(fours, stride)
    with cgutils.for_range(builder, builder.udiv(builder.sub(width, done), v.index(LANES))) as loop:
        body(0, builder.add(done, builder.mul(loop.index, v.index(LANES))))


def _halved(v: Vectors, total: Any, lanes: int) -> Any:
    """Lane i plus lane i + lanes."""
    order = [(i + lanes) % LANES for i in range(LANES)]
    mask = ir.Constant(ir.VectorType(ir.IntType(32), LANES), order)
    return v.builder.fadd(
        total, v.builder.shuffle_vector(total, ir.Constant(v.vector, ir.Undefined), mask)
    )
