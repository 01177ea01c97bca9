"""Functions that generate SIMD instructions, for numba intrinsics: LLVM vectors of eight float32 values.

LLVM vectorizes simple loops automatically. Kernels use these intrinsics in loops that LLVM does not vectorize.
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

# The number of float32 values in a vector.
LANES = 8
FLOAT_BYTES = 4
VECTOR = ir.VectorType(ir.FloatType(), LANES)
# LLVM may change the order of sums, and fuse products with sums. NaN and infinity follow IEEE 754.
FLAGS = ("reassoc", "contract", "nsz")


def row_pointer(context: Any, builder: Any, array_type: Any, matrix: Any, row: Any) -> Any:
    """Return a pointer to a row of a C-contiguous matrix."""
    array = context.make_array(array_type)(context, builder, matrix)
    offset = builder.mul(row, builder.extract_value(array.strides, 0))
    return builder.gep(builder.bitcast(array.data, cgutils.voidptr_t), [offset])


def vector_pointer(builder: Any, row: Any, column: Any) -> Any:
    """Return a pointer to the ``LANES`` values of a row from a column on; ``row``: a pointer to the row."""
    offset = builder.mul(column, ir.Constant(column.type, FLOAT_BYTES))
    return builder.bitcast(builder.gep(row, [offset]), VECTOR.as_pointer())


def broadcast(builder: Any, value: Any) -> Any:
    """Return a vector whose elements are all ``value``."""
    undefined, first = ir.Constant(VECTOR, ir.Undefined), ir.Constant(ir.IntType(32), 0)
    vector = builder.insert_element(undefined, value, first)
    return builder.shuffle_vector(vector, undefined, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))


def multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return builder.fadd(builder.fmul(a, b, flags=FLAGS), c, flags=FLAGS)


def sum_lanes(builder: Any, vector: Any) -> Any:
    """Return the sum of a vector's elements."""
    undefined, width = ir.Constant(VECTOR, ir.Undefined), LANES
    while width > 1:
        width //= 2
        upper_half = [*range(width, 2 * width), *[0] * (LANES - width)]
        other = builder.shuffle_vector(vector, undefined, ir.Constant(ir.VectorType(ir.IntType(32), LANES), upper_half))
        vector = builder.fadd(vector, other, flags=FLAGS)
    return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))


def _add_pair(_: Any, sums: Any, row: Any, first: Any, second: Any) -> Any:
    """Add two integers to the first two values of ``sums[row]``.

    The array is C-contiguous, shape (n, 2 or more), and has the integers' dtype. The index is not checked.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_type = signature.args[0]
        vector = ir.VectorType(context.get_data_type(array_type.dtype), 2)
        pair: Any = ir.Constant(vector, ir.Undefined)
        for index, value in enumerate(arguments[2:]):
            pair = builder.insert_element(pair, value, ir.Constant(ir.IntType(32), index))
        target = builder.bitcast(row_pointer(context, builder, array_type, *arguments[:2]), vector.as_pointer())
        align = array_type.dtype.bitwidth // 8
        builder.store(builder.add(builder.load(target, align=align), pair), target, align=align)
        return context.get_dummy_value()

    return types.void(sums, row, sums.dtype, sums.dtype), generate


add_pair: Any = intrinsic(_add_pair)  # numba infers the type
