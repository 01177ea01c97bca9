"""SIMD code for the dot products and updates of a group: two inputs and all outputs at a time.

Separate loops over inputs and over outputs would read every row twice, and load three values for two multiplications.
LLVM does not vectorize a loop over both, because it cannot prove that rows do not overlap.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.extending import intrinsic

from ps2.ops.simd import (
    FLOAT_BYTES,
    LANES,
    VECTOR,
    broadcast,
    cgutils,
    multiply_add,
    row_pointer,
    sum_lanes,
    types,
    vector_pointer,
)

# The numbers of inputs and outputs that are updated at once: two inputs, a target and the usual five negatives.
INPUTS, OUTPUTS = 2, 6


def _update(_: Any, table: Any, first: Any, second: Any, old: Any, changes: Any, end: Any, factors: Any) -> Any:
    """Add multiples of the outputs to two inputs, and multiples of the inputs' old values to the outputs' changes.

    Args:
        first, second: the inputs, different rows of ``table``.
        old, changes: the outputs and their changes, the first ``OUTPUTS`` rows.
        end: the number of columns.
        factors: the multiples: for the first input and each output, then for the second input.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        inputs = [row_pointer(context, builder, kinds[0], arguments[0], arguments[index]) for index in (1, 2)]
        count = arguments[5]
        indices = [ir.Constant(count.type, j) for j in range(OUTPUTS)]
        outputs = [row_pointer(context, builder, kinds[3], arguments[3], j) for j in indices]
        changed = [row_pointer(context, builder, kinds[4], arguments[4], j) for j in indices]
        factors = [
            broadcast(builder, factor) for factor in cgutils.unpack_tuple(builder, arguments[6], INPUTS * OUTPUTS)
        ]
        zero, step = ir.Constant(count.type, 0), ir.Constant(count.type, LANES)
        with cgutils.for_range_slice(builder, zero, count, step) as (offset, _):
            addresses = [vector_pointer(builder, row, offset) for row in inputs]
            before = [builder.load(address, align=FLOAT_BYTES) for address in addresses]
            after = list(before)
            for j in range(OUTPUTS):
                output = builder.load(vector_pointer(builder, outputs[j], offset), align=FLOAT_BYTES)
                target = vector_pointer(builder, changed[j], offset)
                change = builder.load(target, align=FLOAT_BYTES)
                for i in range(INPUTS):
                    factor = factors[i * OUTPUTS + j]
                    change = multiply_add(builder, factor, before[i], change)
                    after[i] = multiply_add(builder, factor, output, after[i])
                builder.store(change, target, align=FLOAT_BYTES)
            for address, value in zip(addresses, after, strict=True):
                builder.store(value, address, align=FLOAT_BYTES)
        return context.get_dummy_value()

    factor_types = types.UniTuple(types.float32, INPUTS * OUTPUTS)
    return types.void(table, types.intp, types.intp, old, changes, types.intp, factor_types), generate


def _multiply(_: Any, table: Any, first: Any, second: Any, old: Any, end: Any) -> Any:
    """Return the dot products of the first input with each output, then those of the second input."""
    returned = types.UniTuple(types.float32, INPUTS * OUTPUTS)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        inputs = [row_pointer(context, builder, kinds[0], arguments[0], arguments[index]) for index in (1, 2)]
        count = arguments[4]
        outputs = [
            row_pointer(context, builder, kinds[3], arguments[3], ir.Constant(count.type, j)) for j in range(OUTPUTS)
        ]
        empty = ir.Constant(VECTOR, [0.0] * LANES)
        sums = [cgutils.alloca_once_value(builder, empty) for _ in range(INPUTS * OUTPUTS)]
        for total in sums:
            builder.store(empty, total)
        zero, step = ir.Constant(count.type, 0), ir.Constant(count.type, LANES)
        with cgutils.for_range_slice(builder, zero, count, step) as (offset, _):
            values = [builder.load(vector_pointer(builder, row, offset), align=FLOAT_BYTES) for row in inputs]
            for j in range(OUTPUTS):
                output = builder.load(vector_pointer(builder, outputs[j], offset), align=FLOAT_BYTES)
                for i in range(INPUTS):
                    target = sums[i * OUTPUTS + j]
                    builder.store(multiply_add(builder, values[i], output, builder.load(target)), target)
        return context.make_tuple(builder, returned, [sum_lanes(builder, builder.load(total)) for total in sums])

    return returned(table, types.intp, types.intp, old, types.intp), generate


multiply_lanes: Any = intrinsic(_multiply)  # numba infers the types
update_lanes: Any = intrinsic(_update)  # numba infers the types
