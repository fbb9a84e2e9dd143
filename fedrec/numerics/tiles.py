"""Register tiles: the innermost loops of item statistics and solves, written as vectors of eight
numbers.

Numba's own loops leave the accumulators of a small matrix product in memory. Here a tile's
accumulators are LLVM vectors that live in registers for the whole sum, which is what reaches a
third to a half of the machine's dense product rate on segments of a few hundred rows. Each tile is
one numba intrinsic for float32 or float64; `LANES` = 8 is an AVX-512 vector of doubles, an AVX2
vector of floats, and is split by LLVM where vectors are shorter.

Arrays are C-contiguous and flat; offsets count elements; nothing here checks bounds, the callers in
`kernels.py` do. A numba cache belongs to the caller's file: after a change here, delete the
callers' cached objects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from numba.core import cgutils as _cgutils
from numba.core import types
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic

LANES = 8  # float64 of an AVX-512 register; narrower processors use two
cgutils: Any = _cgutils  # half typed: for the checker, not at all
ir = cgutils.ir
_processor = cast(Callable[[], str], get_host_cpu_features)
WIDE = "+avx512f" in _processor()
"""32 registers of 64 bytes, in place of 16 of 32."""
_FITTING = 1024 if WIDE else 256
"""Bytes of accumulators that stay in registers, half of what the processor has of them: a sum that
leaves some in memory takes twice as long."""
tile = cast(Callable[[Any], Callable[..., None]], intrinsic)
"""A function that emits code, as the kernels see it: numba passes the typing context itself."""


class Vectors:
    """Vectors of `LANES` floats in one function being emitted: loads, stores and arithmetic, by
    pointer and offset."""

    def __init__(self, context: Any, builder: Any, element: Any) -> None:
        self.context = context
        self.builder = builder
        self.scalar = context.get_value_type(element)
        self.vector = ir.VectorType(self.scalar, LANES)
        self.bytes = element.bitwidth // 8
        self.zero = ir.Constant(self.vector, [ir.Constant(self.scalar, 0.0)] * LANES)
        self.suffix = f"v{LANES}f{element.bitwidth}"

    def index(self, value: int) -> Any:
        """A constant offset."""
        return self.context.get_constant(types.intp, value)

    def load(self, data: Any, offset: Any) -> Any:
        """Eight numbers from memory."""
        pointer = self.builder.bitcast(self.builder.gep(data, [offset]), self.vector.as_pointer())
        return self.builder.load(pointer, align=self.bytes)

    def store(self, value: Any, data: Any, offset: Any) -> None:
        """Eight numbers to memory."""
        pointer = self.builder.bitcast(self.builder.gep(data, [offset]), self.vector.as_pointer())
        self.builder.store(value, pointer, align=self.bytes)

    def spread(self, number: Any) -> Any:
        """One number in all lanes."""
        vector = ir.VectorType(number.type, LANES)
        single = self.builder.insert_element(
            ir.Constant(vector, ir.Undefined), number, ir.Constant(ir.IntType(32), 0)
        )
        mask = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return self.builder.shuffle_vector(single, ir.Constant(vector, ir.Undefined), mask)

    def spread_at(self, data: Any, offset: Any) -> Any:
        """One number of memory in all lanes."""
        return self.spread(self.builder.load(self.builder.gep(data, [offset])))

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """a * b + c, fused where the machine can."""
        signature = ir.FunctionType(self.vector, [self.vector] * 3)
        function = cgutils.get_or_insert_function(
            self.builder.module, signature, f"llvm.fmuladd.{self.suffix}"
        )
        return self.builder.call(function, [a, b, c])

    def sqrt(self, a: Any) -> Any:
        """Lane by lane."""
        signature = ir.FunctionType(self.vector, [self.vector])
        return self.builder.call(
            cgutils.get_or_insert_function(
                self.builder.module, signature, f"llvm.sqrt.{self.suffix}"
            ),
            [a],
        )

    def registers(self, count: int) -> list[Any]:
        """`count` vector variables at zero; LLVM keeps them in registers."""
        slots = [cgutils.alloca_once(self.builder, self.vector) for _ in range(count)]
        for slot in slots:
            self.builder.store(self.zero, slot)
        return slots

    def add_product(self, slot: Any, a: Any, b: Any) -> None:
        """slot += a * b."""
        self.builder.store(self.fma(a, b, self.builder.load(slot)), slot)


def data_of(context: Any, builder: Any, array_type: Any, array: Any) -> Any:
    """Pointer to an array's first number."""
    return context.make_array(array_type)(context, builder, value=array).data


def _outer(rows: int, vectors: int) -> Any:
    """Emit C[i:i+rows, j:j+8*vectors] += sum over k < n of left[k, i:i+rows]' right[k,
    j:j+8*vectors], as many rows at a time as fit the registers."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        left_type, right_type, C_type = signature.args[:3]
        left, right, C = (
            data_of(context, builder, t, a)
            for t, a in zip((left_type, right_type, C_type), args[:3], strict=True)
        )
        n, width, i, j = args[3:]
        v = Vectors(context, builder, C_type.dtype)
        fitting = min(rows, max(_FITTING // (vectors * LANES * v.bytes), 1))
        for top in range(0, rows, fitting):
            sums = v.registers(fitting * vectors)
            with cgutils.for_range(builder, n) as loop:
                at = builder.mul(loop.index, width)
                right_at = builder.add(at, j)
                left_at = builder.add(at, i)
                b = [
                    v.load(right, builder.add(right_at, v.index(LANES * c))) for c in range(vectors)
                ]
                for r in range(fitting):
                    a = v.spread_at(left, builder.add(left_at, v.index(top + r)))
                    for c in range(vectors):
                        v.add_product(sums[r * vectors + c], a, b[c])
            for r in range(fitting):
                row = builder.add(builder.mul(builder.add(i, v.index(top + r)), width), j)
                for c in range(vectors):
                    at = builder.add(row, v.index(LANES * c))
                    v.store(builder.fadd(v.load(C, at), builder.load(sums[r * vectors + c])), C, at)
        return context.get_dummy_value()

    return codegen


def _outer_signature(left: Any, right: Any, C: Any, n: Any, width: Any, i: Any, j: Any) -> Any:
    return types.void(left, right, C, types.intp, types.intp, types.intp, types.intp)


@tile
def outer_8x16(
    typing: Any, left: Any, right: Any, C: Any, n: Any, width: Any, i: Any, j: Any
) -> Any:
    """C[i:i+8, j:j+16] += left[:n, i:i+8]' right[:n, j:j+16], all of row length `width`."""
    return _outer_signature(left, right, C, n, width, i, j), _outer(8, 2)


@tile
def outer_8x8(
    typing: Any, left: Any, right: Any, C: Any, n: Any, width: Any, i: Any, j: Any
) -> Any:
    """C[i:i+8, j:j+8] += left[:n, i:i+8]' right[:n, j:j+8], all of row length `width`."""
    return _outer_signature(left, right, C, n, width, i, j), _outer(8, 1)


@tile
def weighted_sum(
    typing: Any, coefficients: Any, rows: Any, total: Any, n: Any, width: Any, j: Any
) -> Any:
    """total[j:j+8] += sum over k < n of coefficients[k] rows[k, j:j+8], in four partial sums; `n`
    is a multiple of 4."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        coefficients, rows, total = (
            data_of(context, builder, t, a)
            for t, a in zip(signature.args[:3], args[:3], strict=True)
        )
        n, width, j = args[3:]
        v = Vectors(context, builder, signature.args[2].dtype)
        sums = v.registers(4)
        with cgutils.for_range(builder, builder.udiv(n, v.index(4))) as loop:
            first = builder.mul(loop.index, v.index(4))
            for r in range(4):
                k = builder.add(first, v.index(r))
                v.add_product(
                    sums[r],
                    v.spread_at(coefficients, k),
                    v.load(rows, builder.add(builder.mul(k, width), j)),
                )
        s = [builder.load(slot) for slot in sums]
        v.store(
            builder.fadd(
                v.load(total, j), builder.fadd(builder.fadd(s[0], s[1]), builder.fadd(s[2], s[3]))
            ),
            total,
            j,
        )
        return context.get_dummy_value()

    return types.void(coefficients, rows, total, types.intp, types.intp, types.intp), codegen


@tile
def take_row(
    typing: Any, source: Any, start: Any, weight: Any, rows: Any, weighted: Any, at: Any, width: Any
) -> Any:
    """rows[at:at+width] = source[start:start+width] and weighted[...] = weight times it, widened to
    the rows' type."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source, rows, weighted = (
            data_of(context, builder, signature.args[k], args[k]) for k in (0, 3, 4)
        )
        start = args[1]
        weight = args[2]
        at = args[5]
        width = args[6]
        narrow = Vectors(context, builder, signature.args[0].dtype)
        v = Vectors(context, builder, signature.args[3].dtype)
        factor = v.spread(weight)

        def copy(shift: Any) -> None:
            value = narrow.load(source, builder.add(start, shift))
            if narrow.bytes < v.bytes:
                value = builder.fpext(value, v.vector)
            v.store(value, rows, builder.add(at, shift))
            v.store(builder.fmul(value, factor), weighted, builder.add(at, shift))

        stride = v.index(4 * LANES)  # four vectors at a time, then what is left
        fours = builder.udiv(width, stride)
        with cgutils.for_range(builder, fours) as loop:
            for r in range(4):
                copy(builder.add(builder.mul(loop.index, stride), v.index(r * LANES)))
        done = builder.mul(fours, stride)
        with cgutils.for_range(
            builder, builder.udiv(builder.sub(width, done), v.index(LANES))
        ) as loop:
            copy(builder.add(done, builder.mul(loop.index, v.index(LANES))))
        return context.get_dummy_value()

    return types.void(
        source, types.intp, rows.dtype, rows, weighted, types.intp, types.intp
    ), codegen


@tile
def prefetch(typing: Any, source: Any, at: Any, width: Any) -> Any:
    """Ask for the cache lines of source[at:at+width] before they are needed."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data, (at, width) = data_of(context, builder, signature.args[0], args[0]), args[1:]
        per_line = 64 * 8 // signature.args[0].dtype.bitwidth
        one = context.get_constant(types.intp, per_line)
        byte = ir.IntType(8).as_pointer()
        signature_ir = ir.FunctionType(
            ir.VoidType(), [byte, ir.IntType(32), ir.IntType(32), ir.IntType(32)]
        )
        function = cgutils.get_or_insert_function(builder.module, signature_ir, "llvm.prefetch.p0")
        flags = [ir.Constant(ir.IntType(32), value) for value in (0, 3, 1)]
        with cgutils.for_range(
            builder,
            builder.udiv(builder.add(width, context.get_constant(types.intp, per_line - 1)), one),
        ) as loop:
            line = builder.gep(data, [builder.add(at, builder.mul(loop.index, one))])
            builder.call(function, [builder.bitcast(line, byte), *flags])
        return context.get_dummy_value()

    return types.void(source, types.intp, types.intp), codegen
