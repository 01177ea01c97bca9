"""Loops over two rows, eight numbers at a time, as SIMD instructions do them.

LLVM vectorizes a plain loop by 32 numbers, and does the rest one by one. The part of a vector that shares a step is
seldom a multiple of 32.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types as numba_types
from numba.core import cgutils as numba_cgutils
from numba.extending import intrinsic

# Numba has annotations for some of its functions only.
types: Any = numba_types
cgutils: Any = numba_cgutils

# Numbers that an instruction takes.
LANES = 8
FLOAT = ir.FloatType()
BYTES = 4
VECTOR = ir.VectorType(FLOAT, LANES)
# Sums may be evaluated in any order, and a product may be fused with a sum; NaN and infinity stay what they are.
FLAGS = ("reassoc", "contract", "nsz")


class _Rows:
    """Loads and stores of one row of each of two C-contiguous float32 matrices."""

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        self._builder = builder
        self._rows = [self._row(context, signature.args[at], arguments[at], arguments[at + 1]) for at in (0, 2)]

    def _row(self, context: Any, kind: Any, matrix: Any, number: Any) -> Any:
        builder, array = self._builder, context.make_array(kind)(context, self._builder, matrix)
        offset = builder.mul(number, builder.extract_value(array.strides, 0))
        return builder.gep(builder.bitcast(array.data, cgutils.voidptr_t), [offset])

    def place(self, which: int, at: Any) -> Any:
        """Return where eight numbers of a row begin."""
        builder = self._builder
        offset = builder.mul(at, ir.Constant(at.type, BYTES))
        return builder.bitcast(builder.gep(self._rows[which], [offset]), VECTOR.as_pointer())

    def load(self, which: int, at: Any) -> tuple[Any, Any]:
        """Return the place of eight numbers, and the numbers."""
        place = self.place(which, at)
        return place, self._builder.load(place, align=BYTES)


def _spread(builder: Any, number: Any) -> Any:
    """Return a vector of equal numbers."""
    undefined, first = ir.Constant(VECTOR, ir.Undefined), ir.Constant(ir.IntType(32), 0)
    one = builder.insert_element(undefined, number, first)
    return builder.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))


def _sum(builder: Any, vector: Any) -> Any:
    """Return the sum of a vector's numbers."""
    undefined, width = ir.Constant(VECTOR, ir.Undefined), LANES
    while width > 1:
        width //= 2
        moved = [*range(width, 2 * width), *[0] * (LANES - width)]
        other = builder.shuffle_vector(vector, undefined, ir.Constant(ir.VectorType(ir.IntType(32), LANES), moved))
        vector = builder.fadd(vector, other, flags=FLAGS)
    return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))


def _multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return builder.fadd(builder.fmul(a, b, flags=FLAGS), c, flags=FLAGS)


def _dot(_: Any, p: Any, of_p: Any, q: Any, of_q: Any, end: Any) -> Any:
    """Return the product of the first numbers of two rows.

    Args:
        p, q: float32 matrices, C-contiguous; ``of_p`` and ``of_q`` are numbers of rows.
        end: how many numbers; a multiple of ``LANES``.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows = _Rows(context, builder, signature, arguments)
        sums = cgutils.alloca_once_value(builder, ir.Constant(VECTOR, [0.0] * LANES))
        count = arguments[4]
        with cgutils.for_range_slice(builder, _whole(count, 0), count, _whole(count, LANES)) as (at, _):
            a, b = rows.load(0, at)[1], rows.load(1, at)[1]
            builder.store(_multiply_add(builder, a, b, builder.load(sums)), sums)
        return _sum(builder, builder.load(sums))

    return types.float32(p, types.intp, q, types.intp, types.intp), generate


def _step(_: Any, p: Any, of_p: Any, q: Any, of_q: Any, begin: Any, end: Any, by: Any) -> Any:
    """Change numbers of two rows by their gradients; return the sums of the squared gradients.

    ``p += step_p * g`` with ``g = slope * q - shrink * p``, and likewise q, from the values before.

    Args:
        begin, end: of the numbers; they are multiples of ``LANES`` apart.
        by: slope, shrink, step_p, step_q: float32.
    """
    number = types.float32
    returned = types.UniTuple(number, 2)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows = _Rows(context, builder, signature, arguments)
        slope, shrink, *steps = (_spread(builder, one) for one in cgutils.unpack_tuple(builder, arguments[6], 4))
        minus = builder.fneg(shrink)
        zero = ir.Constant(VECTOR, [0.0] * LANES)
        sums = [cgutils.alloca_once_value(builder, zero) for _ in range(2)]
        first, last = arguments[4], arguments[5]
        with cgutils.for_range_slice(builder, first, last, _whole(first, LANES)) as (at, _):
            places, values = zip(*(rows.load(which, at) for which in range(2)), strict=True)
            for which in range(2):
                other = builder.fmul(slope, values[1 - which], flags=FLAGS)
                gradient = _multiply_add(builder, minus, values[which], other)
                builder.store(_multiply_add(builder, gradient, gradient, builder.load(sums[which])), sums[which])
                changed = _multiply_add(builder, steps[which], gradient, values[which])
                builder.store(changed, places[which], align=BYTES)
        return context.make_tuple(builder, returned, [_sum(builder, builder.load(one)) for one in sums])

    given = types.UniTuple(number, 4)
    return returned(p, types.intp, q, types.intp, types.intp, types.intp, given), generate


def _whole(like: Any, number: int) -> Any:
    return ir.Constant(like.type, number)


dot_lanes: Any = intrinsic(_dot)  # numba infers the types
step_lanes: Any = intrinsic(_step)
