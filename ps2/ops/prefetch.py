"""CPU prefetch instructions, for loops that visit scattered blocks of memory larger than the caches."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

# The distance of prefetching, in blocks: after so many blocks, a prefetched block has arrived in the cache.
AHEAD = 8
LINE_BYTES = 64
# Only the first MAX_BYTES of a block are prefetched, as the hardware prefetches the others. Blocks below MIN_BYTES are
# not prefetched, as it would cost as much as it saves.
MAX_BYTES, MIN_BYTES = 512, 128
# Arguments of llvm.prefetch: read; keep in all cache levels; data.
FLAGS = [ir.Constant(ir.IntType(32), flag) for flag in (0, 3, 1)]


def _prefetch(_: Any, blocks: Any, number: Any) -> Any:
    """Prefetch a block of a C-contiguous array of shape (n, k) without waiting; any block number is safe, even -1."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        size = builder.extract_value(array.strides, 0)
        block = builder.gep(builder.bitcast(array.data, cgutils.voidptr_t), [builder.mul(arguments[1], size)])
        zero, line, min_size, max_size = (
            ir.Constant(size.type, count) for count in (0, LINE_BYTES, MIN_BYTES, MAX_BYTES)
        )
        fetched = builder.select(builder.icmp_signed("<", size, max_size), size, max_size)
        fetched = builder.select(builder.icmp_signed("<", size, min_size), zero, fetched)
        takes = [cgutils.voidptr_t, *(flag.type for flag in FLAGS)]
        fetch = builder.module.declare_intrinsic("llvm.prefetch", takes[:1], ir.FunctionType(ir.VoidType(), takes))
        with cgutils.for_range_slice(builder, zero, fetched, line) as (offset, _):
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


# For blocks of at most one cache line. The hardware does not predict accesses to scattered blocks.
prefetch_short: Any = intrinsic(_prefetch_short)
