"""Compiled loops over the arrays of one shard, for operations that NumPy cannot do in one pass.

Every 1-D array is C-contiguous, and every block is a C-contiguous ``(rows, width)`` array. Kernels check neither
indices nor lengths: the functions in ``ps2.ops.guards`` do so before a kernel is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from ps2 import array_types
from ps2.ops.compiling import compile_inline, compile_kept
from ps2.ops.table import Array
from ps2.splitmix import GOLDEN

# Users' operations import these types from here, with ``kernel``.
Int32s = array_types.Int32s
Int64s = array_types.Int64s
Float64s = array_types.Float64s
F = TypeVar("F", bound=Callable[..., Any])

# For at most this many numbers, NumPy is as fast as a kernel. The first kernel call of a process also takes 0.3 s or
# more, while numba initialises; clients with few keys avoid that.
FEW = 1024
# Flags that let sums use SIMD instructions. Flags that assume there is no NaN and no infinity are not among them.
REASSOCIATE = {"reassoc", "contract", "arcp", "nsz"}


def kernel(fn: F) -> F:
    """Compile a function on its first call; it runs without the GIL and with IEEE division."""
    return compile_kept(fn)


def reduction(fn: F) -> F:
    """Compile like ``kernel``, and allow sums to be evaluated in any order."""
    return compile_kept(fn, fastmath=REASSOCIATE)


def inline(fn: F) -> F:
    """Let kernels call a function, which is compiled into each of them, with IEEE division."""
    return compile_inline(fn)


def inline_reduction(fn: F) -> F:
    """Compile like ``inline``, and allow sums to be evaluated in any order."""
    return compile_inline(fn, fastmath=REASSOCIATE)


@kernel
def extent(indices: Int64s) -> tuple[int, int, bool]:
    """Return the smallest and the largest of at least one index, and whether the indices ascend strictly."""
    smallest = largest = indices[0]
    ascending = True
    # Without an early exit, LLVM turns this loop into SIMD instructions (4 times faster).
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


# Scatters process slots strictly in order, so that duplicates accumulate and the last write wins.


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
    """Set ``u += alpha * v``; alpha has the rows' dtype, so that float32 is not widened."""
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
def total_size(u: Array) -> float:
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
    """Return the inner products of all pairs of ``rows_u`` and ``rows_v`` over some tiles of columns.

    Args:
        starts: the first column of each tile of ``tile`` columns; a tile of all rows fits a processor's cache.
    """
    out = np.zeros((rows_u.size, rows_v.size))
    for start in starts:
        end = min(start + tile, block.shape[1])
        for i in range(rows_u.size):
            u = block[rows_u[i], start:end]
            # Four rows at a time, so that ``u`` is read and widened once for all four.
            fours = rows_v.size // 4 * 4
            for j in range(0, fours, 4):
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
            for j in range(fours, rows_v.size):
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
    """Set ``y += alpha * x`` pair by pair, in order; alphas have the block's dtype."""
    for i in range(rows_y.size):
        y, x, alpha = rows_y[i], rows_x[i], alphas[i]
        for j in range(block.shape[1]):
            block[y, j] += alpha * block[x, j]


@kernel
def number_rows(rows: Int64s, distinct: Int64s, numbers: Int64s, cells: Int32s) -> int:
    """Number rows 0, 1, 2... in the order of their first appearance; return the number of distinct rows.

    Args:
        rows: row ids, not negative.
        distinct: the row of each number; written; as long as ``rows``.
        numbers: the number of each row; written; as long as ``rows``.
        cells: a hash table, filled with -1; its size is a power of two, larger than that of ``rows``.
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
        numbers[i] = cells[cell]
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
    """Add ``scale * old b`` target row a and ``scale * old a`` target row b of each pair, in columns from ``begin`` on.

    Args:
        block: changed.
        rows_a, rows_b: rows of ``block``.
        old: the values of the changed columns before the call, one row for each distinct row.
        positions_a, positions_b: the rows of ``old`` that belong target ``rows_a`` and ``rows_b``.
        scales: one number for each pair, in the block's dtype.
    """
    width = old.shape[1]
    end = begin + width
    for i in range(rows_a.size):
        scale = scales[i]
        # Rows as slices: with the index ``begin + j``, the compiler would not use SIMD instructions.
        target, source = block[rows_a[i], begin:end], old[positions_b[i]]
        for j in range(width):
            target[j] += scale * source[j]
        target, source = block[rows_b[i], begin:end], old[positions_a[i]]
        for j in range(width):
            target[j] += scale * source[j]
