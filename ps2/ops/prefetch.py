"""CPU prefetch instructions, for loops that visit scattered blocks of memory larger than the caches."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

# How many blocks ahead to prefetch: by its turn, a block has arrived in the cache.
AHEAD = 8
LINE_BYTES = 64
# The hardware prefetches the rest of a longer block itself. For a shorter block, prefetching costs as much as it saves.
LONGEST_BYTES, SHORTEST_BYTES = 512, 128
# Arguments of llvm.prefetch: read; keep in all cache levels; data.
FLAGS = [ir.Constant(ir.IntType(32), flag) for flag in (0, 3, 1)]


def _prefetch(_: Any, blocks: Any, number: Any) -> Any:
    """Prefetch a block of a C-contiguous array of shape (n, k) without waiting; any block number is safe, even -1."""

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


prefetch: Any = intrinsic(_prefetch)  # numba infers the type


def _prefetch_short(_: Any, blocks: Any, number: Any) -> Any:
    """Prefetch the line in which a block of a C-contiguous array of shape (n, k) begins; like ``_prefetch``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        size = builder.extract_value(array.strides, 0)
        block = builder.gep(builder.bitcast(array.data, cgutils.voidptr_t), [builder.mul(arguments[1], size)])
        takes = [cgutils.voidptr_t, *(flag.type for flag in FLAGS)]
        fetch = builder.module.declare_intrinsic("llvm.prefetch", takes[:1], ir.FunctionType(ir.VoidType(), takes))
        builder.call(fetch, [block, *FLAGS])
        return context.get_dummy_value()

    return types.void(blocks, types.intp), generate


# For blocks of at most one line. The hardware does not predict visits of such blocks with gaps between them.
prefetch_short: Any = intrinsic(_prefetch_short)
