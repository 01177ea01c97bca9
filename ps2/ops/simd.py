"""Parts of kernels that use SIMD instructions explicitly, with LLVM vectors of eight float32 numbers.

LLVM vectorizes simple loops by itself; intrinsics that are built from these functions are for other loops.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types as numba_types
from numba.core import cgutils as numba_cgutils
from numba.extending import intrinsic

# Numba annotates only some of its functions.
types: Any = numba_types
cgutils: Any = numba_cgutils

# The number of float32 numbers of a vector.
LANES = 8
FLOAT_BYTES = 4
VECTOR = ir.VectorType(ir.FloatType(), LANES)
# Sums may be evaluated in any order, and products may be fused with sums. NaN and infinity follow IEEE 754.
FLAGS = ("reassoc", "contract", "nsz")


def row_of(context: Any, builder: Any, kind: Any, matrix: Any, number: Any) -> Any:
    """Return a pointer to a row of a C-contiguous matrix."""
    array = context.make_array(kind)(context, builder, matrix)
    offset = builder.mul(number, builder.extract_value(array.strides, 0))
    return builder.gep(builder.bitcast(array.data, cgutils.voidptr_t), [offset])


def place_of(builder: Any, row: Any, at: Any) -> Any:
    """Return a pointer to ``LANES`` numbers of a row."""
    offset = builder.mul(at, ir.Constant(at.type, FLOAT_BYTES))
    return builder.bitcast(builder.gep(row, [offset]), VECTOR.as_pointer())


def spread(builder: Any, number: Any) -> Any:
    """Return a vector whose elements are all ``number``."""
    undefined, first = ir.Constant(VECTOR, ir.Undefined), ir.Constant(ir.IntType(32), 0)
    vector = builder.insert_element(undefined, number, first)
    return builder.shuffle_vector(vector, undefined, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))


def multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return builder.fadd(builder.fmul(a, b, flags=FLAGS), c, flags=FLAGS)


def sum_of(builder: Any, vector: Any) -> Any:
    """Return the sum of a vector's numbers."""
    undefined, width = ir.Constant(VECTOR, ir.Undefined), LANES
    while width > 1:
        width //= 2
        moved = [*range(width, 2 * width), *[0] * (LANES - width)]
        other = builder.shuffle_vector(vector, undefined, ir.Constant(ir.VectorType(ir.IntType(32), LANES), moved))
        vector = builder.fadd(vector, other, flags=FLAGS)
    return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))


def _add_pair(_: Any, sums: Any, at: Any, first: Any, second: Any) -> Any:
    """Add two numbers to the first two of ``sums[at]``.

    The array is C-contiguous, shape (n, 2 or more), of the numbers' integer dtype. The index is not checked.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0]
        vector = ir.VectorType(context.get_data_type(kind.dtype), 2)
        pair: Any = ir.Constant(vector, ir.Undefined)
        for index, number in enumerate(arguments[2:]):
            pair = builder.insert_element(pair, number, ir.Constant(ir.IntType(32), index))
        target = builder.bitcast(row_of(context, builder, kind, *arguments[:2]), vector.as_pointer())
        align = kind.dtype.bitwidth // 8
        builder.store(builder.add(builder.load(target, align=align), pair), target, align=align)
        return context.get_dummy_value()

    return types.void(sums, at, sums.dtype, sums.dtype), generate


add_pair: Any = intrinsic(_add_pair)  # numba infers the type
