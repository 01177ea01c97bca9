"""CPU prefetch instructions, for loops over scattered blocks of an array that is larger than the caches."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

# Number of blocks between the current block and the prefetched block. In this time, the block arrives in the cache.
AHEAD = 8
LINE_BYTES = 64
# Only the first MAX_BYTES of a block are prefetched, because the hardware prefetches the remaining ones. Blocks below
# MIN_BYTES are not prefetched, because the instructions would cost as much time as they save.
MAX_BYTES, MIN_BYTES = 512, 128
# Arguments of llvm.prefetch: 0 (read), 3 (keep in all cache levels) or 2 (not in the L1 cache), 1 (data, not code).
FLAGS, L2_FLAGS = ([ir.Constant(ir.IntType(32), flag) for flag in (0, level, 1)] for level in (3, 2))


def _prefetch(_: Any, blocks: Any, number: Any) -> Any:
    """Prefetch a block of a C-contiguous array of shape (n, k), and do not wait. Any index is safe, even -1."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        size = builder.extract_value(array.strides, 0)
        block = builder.gep(builder.bitcast(array.data, cgutils.voidptr_t), [builder.mul(arguments[1], size)])
        zero, line, min_size, max_size = (
            ir.Constant(size.type, count) for count in (0, LINE_BYTES, MIN_BYTES, MAX_BYTES)
        )
        num_bytes = builder.select(builder.icmp_signed("<", size, max_size), size, max_size)
        num_bytes = builder.select(builder.icmp_signed("<", size, min_size), zero, num_bytes)
        argument_types = [cgutils.voidptr_t, *(flag.type for flag in FLAGS)]
        fetch = builder.module.declare_intrinsic(
            "llvm.prefetch", argument_types[:1], ir.FunctionType(ir.VoidType(), argument_types)
        )
        with cgutils.for_range_slice(builder, zero, num_bytes, line) as (offset, _):
            builder.call(fetch, [builder.gep(block, [offset]), *FLAGS])
        return context.get_dummy_value()

    return types.void(blocks, types.intp), generate


prefetch: Any = intrinsic(_prefetch)  # numba infers the type


def _prefetch_short(_: Any, blocks: Any, number: Any) -> Any:
    """Prefetch only the first cache line of a block; see ``_prefetch``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        size = builder.extract_value(array.strides, 0)
        block = builder.gep(builder.bitcast(array.data, cgutils.voidptr_t), [builder.mul(arguments[1], size)])
        argument_types = [cgutils.voidptr_t, *(flag.type for flag in FLAGS)]
        fetch = builder.module.declare_intrinsic(
            "llvm.prefetch", argument_types[:1], ir.FunctionType(ir.VoidType(), argument_types)
        )
        builder.call(fetch, [block, *FLAGS])
        return context.get_dummy_value()

    return types.void(blocks, types.intp), generate


# For blocks of at most one cache line. The hardware does not predict accesses to scattered blocks.
prefetch_short: Any = intrinsic(_prefetch_short)


def _prefetch_row(_: Any, rows: Any, number: Any) -> Any:
    """Prefetch a row of at most two cache lines into the L2 cache; see ``_prefetch``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        size = builder.extract_value(array.strides, 0)
        first = builder.gep(builder.bitcast(array.data, cgutils.voidptr_t), [builder.mul(arguments[1], size)])
        last = builder.gep(first, [builder.sub(size, ir.Constant(size.type, 1))])
        argument_types = [cgutils.voidptr_t, *(flag.type for flag in L2_FLAGS)]
        fetch = builder.module.declare_intrinsic(
            "llvm.prefetch", argument_types[:1], ir.FunctionType(ir.VoidType(), argument_types)
        )
        for byte in (first, last):
            builder.call(fetch, [byte, *L2_FLAGS])
        return context.get_dummy_value()

    return types.void(rows, types.intp), generate


# For loops that use the L1 cache for other data.
prefetch_row: Any = intrinsic(_prefetch_row)
