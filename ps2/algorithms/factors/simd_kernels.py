"""Loops over two rows, eight numbers at a time, as SIMD instructions do them.

LLVM vectorizes a plain loop by 32 numbers, and does the rest one by one. The part of a vector that shares a step is
seldom a multiple of 32.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.extending import intrinsic

from ps2.ops.simd import (
    FLAGS,
    FLOAT_BYTES,
    LANES,
    VECTOR,
    cgutils,
    multiply_add,
    place_of,
    row_of,
    spread,
    sum_of,
    types,
)


class _Rows:
    """Loads and stores of one row of each of two C-contiguous float32 matrices."""

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        self._builder = builder
        self._rows = [row_of(context, builder, signature.args[at], arguments[at], arguments[at + 1]) for at in (0, 2)]

    def load(self, which: int, at: Any) -> tuple[Any, Any]:
        """Return the place of eight numbers, and the numbers."""
        place = place_of(self._builder, self._rows[which], at)
        return place, self._builder.load(place, align=FLOAT_BYTES)


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
            builder.store(multiply_add(builder, a, b, builder.load(sums)), sums)
        return sum_of(builder, builder.load(sums))

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
        slope, shrink, *steps = (spread(builder, one) for one in cgutils.unpack_tuple(builder, arguments[6], 4))
        minus = builder.fneg(shrink)
        zero = ir.Constant(VECTOR, [0.0] * LANES)
        sums = [cgutils.alloca_once_value(builder, zero) for _ in range(2)]
        first, last = arguments[4], arguments[5]
        with cgutils.for_range_slice(builder, first, last, _whole(first, LANES)) as (at, _):
            places, values = zip(*(rows.load(which, at) for which in range(2)), strict=True)
            for which in range(2):
                other = builder.fmul(slope, values[1 - which], flags=FLAGS)
                gradient = multiply_add(builder, minus, values[which], other)
                builder.store(multiply_add(builder, gradient, gradient, builder.load(sums[which])), sums[which])
                changed = multiply_add(builder, steps[which], gradient, values[which])
                builder.store(changed, places[which], align=FLOAT_BYTES)
        return context.make_tuple(builder, returned, [sum_of(builder, builder.load(one)) for one in sums])

    given = types.UniTuple(number, 4)
    return returned(p, types.intp, q, types.intp, types.intp, types.intp, given), generate


def _whole(like: Any, number: int) -> Any:
    return ir.Constant(like.type, number)


dot_lanes: Any = intrinsic(_dot)  # numba infers the types
step_lanes: Any = intrinsic(_step)
