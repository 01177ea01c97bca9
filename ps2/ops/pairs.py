"""Two whole numbers side by side that are added at once: LLVM does not do so by itself in sums of pairs."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.extending import intrinsic

from ps2.ops.simd import row_of, types


def _add_pair(_: Any, sums: Any, at: Any, first: Any, second: Any) -> Any:
    """Add two numbers to the first two of ``sums[at]``.

    The array is C-contiguous, shape (n, 2 or more), of the numbers' integer dtype. The index is not checked.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0]
        vector = ir.VectorType(context.get_data_type(kind.dtype), 2)
        pair: Any = ir.Constant(vector, ir.Undefined)
        for place, number in enumerate(arguments[2:]):
            pair = builder.insert_element(pair, number, ir.Constant(ir.IntType(32), place))
        target = builder.bitcast(row_of(context, builder, kind, *arguments[:2]), vector.as_pointer())
        align = kind.dtype.bitwidth // 8
        builder.store(builder.add(builder.load(target, align=align), pair), target, align=align)
        return context.get_dummy_value()

    return types.void(sums, at, sums.dtype, sums.dtype), generate


add_pair: Any = intrinsic(_add_pair)  # numba infers the type
