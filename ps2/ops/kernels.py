"""Compiled loops over the arrays of one shard, for operations that NumPy cannot do in one pass.

Every 1-D array is C-contiguous, and every block is a C-contiguous ``(rows, width)`` array. Kernels check neither
indices nor lengths: the functions in ``ps2.ops.guards`` do so before a kernel is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from ps2 import array_types
from ps2.ops.compiling import compile_cached, compile_inline
from ps2.ops.table import Array
from ps2.splitmix import GOLDEN

# Users' operations import these types from here, with ``kernel``.
Int32s = array_types.Int32s
Int64s = array_types.Int64s
Float64s = array_types.Float64s
F = TypeVar("F", bound=Callable[..., Any])

# For at most this many elements, NumPy is as fast as a kernel. So a client with few keys avoids the first call of a
# kernel, which takes at least 0.3 s while numba initializes.
FEW = 1024
# Flags of LLVM that allow SIMD instructions for sums. They do not assume the absence of NaN and infinity.
REASSOCIATE = {"reassoc", "contract", "arcp", "nsz"}


def kernel(fn: F) -> F:
    """Compile a function on its first call; it runs without the GIL and with IEEE division."""
    return compile_cached(fn)


def reduction(fn: F) -> F:
    """Compile as ``kernel`` does, but allow any order of summation."""
    return compile_cached(fn, fastmath=REASSOCIATE)


def inline(fn: F) -> F:
    """Let kernels call a function. It is compiled as a part of each of them, with IEEE division."""
    return compile_inline(fn)


def inline_reduction(fn: F) -> F:
    """Compile as ``inline`` does, but allow any order of summation."""
    return compile_inline(fn, fastmath=REASSOCIATE)


@kernel
def extent(indices: Int64s) -> tuple[int, int, bool]:
    """Return (minimum, maximum, True if strictly ascending) of the indices, of which there is at least one."""
    smallest = largest = indices[0]
    ascending = True
    # The loop has no early exit, so LLVM compiles it to SIMD instructions (4 times faster).
    for i in range(1, indices.size):
        smallest = min(smallest, indices[i])
        largest = max(largest, indices[i])
        ascending &= indices[i - 1] < indices[i]
    return smallest, largest, ascending


@kernel
def gather(row: Array, slots: Int64s, out: Array) -> None:
    """Set ``out[i] = row[slots[i]]``, or 0 where the slot is -1."""
    zero = row.dtype.type(0)
    for i in range(slots.size):
        slot = slots[i]
        out[i] = row[slot] if slot >= 0 else zero


# Scatters process slots in order: duplicates accumulate, and of several overwrites the last one counts.


@kernel
def scatter_set(row: Array, slots: Int64s, values: Array) -> None:
    for i in range(slots.size):
        if slots[i] >= 0:
            row[slots[i]] = values[i]


@kernel
def scatter_add(row: Array, slots: Int64s, values: Array) -> None:
    for i in range(slots.size):
        if slots[i] >= 0:
            row[slots[i]] += values[i]


@kernel
def scatter_sub(row: Array, slots: Int64s, values: Array) -> None:
    for i in range(slots.size):
        if slots[i] >= 0:
            row[slots[i]] -= values[i]


@kernel
def scatter_mul(row: Array, slots: Int64s, values: Array) -> None:
    for i in range(slots.size):
        if slots[i] >= 0:
            row[slots[i]] *= values[i]


@kernel
def scatter_div(row: Array, slots: Int64s, values: Array) -> None:
    for i in range(slots.size):
        if slots[i] >= 0:
            row[slots[i]] /= values[i]


@kernel
def axpy(u: Array, v: Array, alpha: np.generic) -> None:
    """Set ``u += alpha * v``. Alpha has the rows' dtype: a float64 alpha would make float32 rows compute in float64."""
    for i in range(u.size):
        u[i] += alpha * v[i]


@reduction
def total(u: Array) -> float:
    result = 0.0
    for i in range(u.size):
        result += np.float64(u[i])
    return result


@reduction
def dot(u: Array, v: Array) -> float:
    result = 0.0
    for i in range(u.size):
        result += np.float64(u[i]) * np.float64(v[i])
    return result


@reduction
def total_absolute(u: Array) -> float:
    """Return the sum of absolute values."""
    result = 0.0
    for i in range(u.size):
        result += abs(np.float64(u[i]))
    return result


@kernel
def count_nonzero(u: Array) -> int:
    result = 0
    for i in range(u.size):
        result += u[i] != 0
    return result


@kernel
def rows_gather(block: Array, rows: Int64s, slots: Int64s, out: Array) -> None:
    """Set ``out[i, j] = block[rows[i], slots[j]]``, or 0 where the slot is -1."""
    zero = block.dtype.type(0)
    for i in range(rows.size):
        row = rows[i]
        for j in range(slots.size):
            slot = slots[j]
            out[i, j] = block[row, slot] if slot >= 0 else zero


@kernel
def rows_set(block: Array, rows: Int64s, values: Array) -> None:
    width = block.shape[1]
    for i in range(rows.size):
        row = rows[i]
        for j in range(width):
            block[row, j] = values[i * width + j]


@kernel
def rows_add(block: Array, rows: Int64s, values: Array) -> None:
    width = block.shape[1]
    for i in range(rows.size):
        row = rows[i]
        for j in range(width):
            block[row, j] += values[i * width + j]


@kernel
def rows_scatter_add(block: Array, rows: Int64s, slots: Int64s, values: Array) -> None:
    for i in range(rows.size):
        row = rows[i]
        for j in range(slots.size):
            if slots[j] >= 0:
                block[row, slots[j]] += values[i * slots.size + j]


@reduction
def rows_dot(block: Array, rows_a: Int64s, rows_b: Int64s, out: Float64s) -> None:
    for i in range(rows_a.size):
        a, b = rows_a[i], rows_b[i]
        result = 0.0
        for j in range(block.shape[1]):
            result += np.float64(block[a, j]) * np.float64(block[b, j])
        out[i] = result


@reduction
def gram(starts: Int64s, block: Array, rows_u: Int64s, rows_v: Int64s, tile: int) -> Float64s:
    """Return the inner products of all pairs of rows over the tiles of ``tile`` columns that begin at ``starts``."""
    out = np.zeros((rows_u.size, rows_v.size))
    for start in starts:
        end = min(start + tile, block.shape[1])
        for i in range(rows_u.size):
            u = block[rows_u[i], start:end]
            # Process four rows at a time: ``u`` is read and converted to float64 once for all four.
            end_of_fours = rows_v.size // 4 * 4
            for j in range(0, end_of_fours, 4):
                v0, v1 = block[rows_v[j], start:end], block[rows_v[j + 1], start:end]
                v2, v3 = block[rows_v[j + 2], start:end], block[rows_v[j + 3], start:end]
                dot0 = dot1 = dot2 = dot3 = 0.0
                for k in range(u.size):
                    x = np.float64(u[k])
                    dot0 += x * np.float64(v0[k])
                    dot1 += x * np.float64(v1[k])
                    dot2 += x * np.float64(v2[k])
                    dot3 += x * np.float64(v3[k])
                out[i, j] += dot0
                out[i, j + 1] += dot1
                out[i, j + 2] += dot2
                out[i, j + 3] += dot3
            for j in range(end_of_fours, rows_v.size):
                v = block[rows_v[j], start:end]
                result = 0.0
                for k in range(u.size):
                    result += np.float64(u[k]) * np.float64(v[k])
                out[i, j] += result
    return out


@kernel
def combine(starts: Int64s, u: Array, block: Array, rows: Int64s, alphas: Float64s, tile: int) -> None:
    """Set tiles of ``u`` to the sums of ``alphas[i] * block[rows[i]]``; ``u`` may be one of the rows."""
    sums = np.empty(tile)
    for start in starts:
        width = min(tile, u.size - start)
        sums[:] = 0
        for i in range(rows.size):
            alpha, v = alphas[i], block[rows[i], start : start + width]
            for k in range(width):
                sums[k] += alpha * np.float64(v[k])
        for k in range(width):
            u[start + k] = sums[k]


@kernel
def rows_axpy(block: Array, rows_y: Int64s, rows_x: Int64s, alphas: Array) -> None:
    """Set ``y += alpha * x`` for each pair of rows, in order; alphas have the block's dtype."""
    for i in range(rows_y.size):
        y, x, alpha = rows_y[i], rows_x[i], alphas[i]
        for j in range(block.shape[1]):
            block[y, j] += alpha * block[x, j]


@kernel
def index_rows(rows: Int64s, distinct: Int64s, positions: Int64s, cells: Int32s) -> int:
    """Find the distinct rows in the order of their first appearance; return their number.

    Args:
        rows: row ids, not negative.
        distinct: output of the length of ``rows``: the distinct rows.
        positions: output of the length of ``rows``: the position of each row in ``distinct``.
        cells: a hash table, filled with -1. Its size is a power of two, and larger than the number of rows.
    """
    last = cells.size - 1
    count = 0
    for i in range(rows.size):
        row = rows[i]
        cell = np.int64((np.uint64(row) * GOLDEN) >> np.uint64(32)) & last
        while cells[cell] >= 0 and distinct[cells[cell]] != row:
            cell = (cell + 1) & last
        if cells[cell] < 0:
            cells[cell] = count
            distinct[count] = row
            count += 1
        positions[i] = cells[cell]
    return count


@kernel
def rows_pair_update(
    block: Array,
    begin: int,
    rows_a: Int64s,
    rows_b: Int64s,
    old: Array,
    positions_a: Int64s,
    positions_b: Int64s,
    scales: Array,
) -> None:
    """For each pair of rows, add ``scale * old b`` to row a and ``scale * old a`` to row b, from column ``begin`` on.

    Args:
        block: the rows; changed.
        rows_a, rows_b: row ids in ``block``.
        old: the values of the columns before the call, one row for each distinct row id.
        positions_a, positions_b: the rows of ``old`` that belong to ``rows_a`` and ``rows_b``.
        scales: the scale of each pair, in the block's dtype.
    """
    width = old.shape[1]
    end = begin + width
    for i in range(rows_a.size):
        scale = scales[i]
        # Use slices of rows: with the index ``begin + j``, LLVM would not use SIMD instructions.
        target, source = block[rows_a[i], begin:end], old[positions_b[i]]
        for j in range(width):
            target[j] += scale * source[j]
        target, source = block[rows_b[i], begin:end], old[positions_a[i]]
        for j in range(width):
            target[j] += scale * source[j]
