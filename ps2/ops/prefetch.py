"""A processor's prefetch, for loops that go from block to block through memory larger than its caches."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

# Blocks ahead: by its turn, a block that was asked for so much earlier has come.
AHEAD = 8
LINE_BYTES = 64
# What follows of a longer block comes by itself, as it is read in order; to ask for a shorter one costs what it spares.
LONGEST_BYTES, SHORTEST_BYTES = 512, 128
# llvm.prefetch: to read; to stay in all caches; data.
FLAGS = [ir.Constant(ir.IntType(32), flag) for flag in (0, 3, 1)]


def _prefetch(_: Any, blocks: Any, number: Any) -> Any:
    """Ask for a block of a C-contiguous array of shape (n, k), and do not wait; any number will do, -1 too."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        size = builder.extract_value(array.strides, 0)
        block = builder.gep(builder.bitcast(array.data, cgutils.voidptr_t), [builder.mul(arguments[1], size)])
        none, line, shortest, longest = (
            ir.Constant(size.type, count) for count in (0, LINE_BYTES, SHORTEST_BYTES, LONGEST_BYTES)
        )
        asked = builder.select(builder.icmp_signed("<", size, longest), size, longest)
        asked = builder.select(builder.icmp_signed("<", size, shortest), none, asked)
        takes = [cgutils.voidptr_t, *(flag.type for flag in FLAGS)]
        fetch = builder.module.declare_intrinsic("llvm.prefetch", takes[:1], ir.FunctionType(ir.VoidType(), takes))
        with cgutils.for_range_slice(builder, none, asked, line) as (offset, _):
            builder.call(fetch, [builder.gep(block, [offset]), *FLAGS])
        return context.get_dummy_value()

    return types.void(blocks, types.intp), generate


prefetch: Any = intrinsic(_prefetch)  # which numba types as what it was made of
