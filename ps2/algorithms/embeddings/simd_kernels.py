"""The updates of a group in one pass over its rows, as SIMD instructions do them: two inputs and all outputs at a time.

Separate loops for inputs and for outputs read every row twice, and load three numbers for two multiplications. LLVM
does not vectorize a loop over all of them, as it cannot tell that the rows are different ones.
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

# Numbers that an instruction takes; inputs and outputs that are updated at once. Five negatives are usual.
LANES, INPUTS, OUTPUTS = 8, 2, 6
BYTES = 4
VECTOR = ir.VectorType(ir.FloatType(), LANES)
# Sums may be evaluated in any order, and a product may be fused with a sum; NaN and infinity stay what they are.
FLAGS = ("reassoc", "contract", "nsz")


def _row(context: Any, builder: Any, kind: Any, matrix: Any, number: Any) -> Any:
    """Return where a row of a C-contiguous matrix begins."""
    array = context.make_array(kind)(context, builder, matrix)
    offset = builder.mul(number, builder.extract_value(array.strides, 0))
    return builder.gep(builder.bitcast(array.data, cgutils.voidptr_t), [offset])


def _place(builder: Any, row: Any, at: Any) -> Any:
    """Return where ``LANES`` numbers of a row begin."""
    offset = builder.mul(at, ir.Constant(at.type, BYTES))
    return builder.bitcast(builder.gep(row, [offset]), VECTOR.as_pointer())


def _spread(builder: Any, number: Any) -> Any:
    """Return a vector of equal numbers."""
    undefined, first = ir.Constant(VECTOR, ir.Undefined), ir.Constant(ir.IntType(32), 0)
    one = builder.insert_element(undefined, number, first)
    return builder.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))


def _multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return builder.fadd(builder.fmul(a, b, flags=FLAGS), c, flags=FLAGS)


def _update(_: Any, table: Any, one: Any, other: Any, old: Any, changes: Any, end: Any, by: Any) -> Any:
    """Add outputs to two inputs, and the inputs' values from before to the outputs' changes.

    Args:
        table: float32 matrix, C-contiguous; ``one`` and ``other`` are different rows of it, the inputs.
        old, changes: float32 matrices, C-contiguous: the first ``OUTPUTS`` rows are the outputs.
        end: how many numbers; a multiple of ``LANES``.
        by: coefficients, float32: the first input's, output by output, then the second's.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        inputs = [_row(context, builder, kinds[0], arguments[0], arguments[at]) for at in (1, 2)]
        count = arguments[5]
        numbers = [ir.Constant(count.type, j) for j in range(OUTPUTS)]
        outputs = [_row(context, builder, kinds[3], arguments[3], j) for j in numbers]
        changed = [_row(context, builder, kinds[4], arguments[4], j) for j in numbers]
        factors = [_spread(builder, one) for one in cgutils.unpack_tuple(builder, arguments[6], INPUTS * OUTPUTS)]
        zero, step = ir.Constant(count.type, 0), ir.Constant(count.type, LANES)
        with cgutils.for_range_slice(builder, zero, count, step) as (at, _):
            places = [_place(builder, row, at) for row in inputs]
            before = [builder.load(place, align=BYTES) for place in places]
            after = list(before)
            for j in range(OUTPUTS):
                output = builder.load(_place(builder, outputs[j], at), align=BYTES)
                to = _place(builder, changed[j], at)
                change = builder.load(to, align=BYTES)
                for i in range(INPUTS):
                    factor = factors[i * OUTPUTS + j]
                    change = _multiply_add(builder, factor, before[i], change)
                    after[i] = _multiply_add(builder, factor, output, after[i])
                builder.store(change, to, align=BYTES)
            for place, value in zip(places, after, strict=True):
                builder.store(value, place, align=BYTES)
        return context.get_dummy_value()

    given = types.UniTuple(types.float32, INPUTS * OUTPUTS)
    return types.void(table, types.intp, types.intp, old, changes, types.intp, given), generate


def _multiply(_: Any, table: Any, one: Any, other: Any, old: Any, end: Any) -> Any:
    """Return the products of two inputs and all outputs: the first input's, output by output, then the second's.

    Args:
        table, one, other, old, end: as of ``update_lanes``.
    """
    returned = types.UniTuple(types.float32, INPUTS * OUTPUTS)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        inputs = [_row(context, builder, kinds[0], arguments[0], arguments[at]) for at in (1, 2)]
        count = arguments[4]
        outputs = [_row(context, builder, kinds[3], arguments[3], ir.Constant(count.type, j)) for j in range(OUTPUTS)]
        empty = ir.Constant(VECTOR, [0.0] * LANES)
        sums = [cgutils.alloca_once_value(builder, empty) for _ in range(INPUTS * OUTPUTS)]
        for one in sums:
            builder.store(empty, one)
        zero, step = ir.Constant(count.type, 0), ir.Constant(count.type, LANES)
        with cgutils.for_range_slice(builder, zero, count, step) as (at, _):
            values = [builder.load(_place(builder, row, at), align=BYTES) for row in inputs]
            for j in range(OUTPUTS):
                output = builder.load(_place(builder, outputs[j], at), align=BYTES)
                for i in range(INPUTS):
                    to = sums[i * OUTPUTS + j]
                    builder.store(_multiply_add(builder, values[i], output, builder.load(to)), to)
        return context.make_tuple(builder, returned, [_sum(builder, builder.load(one)) for one in sums])

    return returned(table, types.intp, types.intp, old, types.intp), generate


def _sum(builder: Any, vector: Any) -> Any:
    """Return the sum of a vector's numbers."""
    undefined, width = ir.Constant(VECTOR, ir.Undefined), LANES
    while width > 1:
        width //= 2
        moved = [*range(width, 2 * width), *[0] * (LANES - width)]
        other = builder.shuffle_vector(vector, undefined, ir.Constant(ir.VectorType(ir.IntType(32), LANES), moved))
        vector = builder.fadd(vector, other, flags=FLAGS)
    return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))


multiply_lanes: Any = intrinsic(_multiply)  # numba infers the types
update_lanes: Any = intrinsic(_update)  # numba infers the types
