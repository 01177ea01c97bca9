"""Compiled loops over the arrays of one shard: what the operations do where a numpy call would need a second pass.

Every 1-D array is C-contiguous and every block is a C-contiguous ``(rows, width)``. Nothing here checks an index or a
length: ``ps2.ops.guards`` does, before a kernel is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from numba import njit

from ps2.ops.table import Array

Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]
F = TypeVar("F", bound=Callable[..., Any])

# Enough for a sum to use SIMD lanes; the flags that assume away NaN and infinity are left out.
REASSOCIATE = {"reassoc", "contract", "arcp"}


def _compile(fn: F, **options: Any) -> F:
    try:
        compiled: F = njit(cache=True, nogil=True, error_model="numpy", **options)(fn)
    except RuntimeError:
        # No directory that a compiled kernel could be kept in: a read-only install and no home directory.
        compiled = njit(nogil=True, error_model="numpy", **options)(fn)
    return compiled


def kernel(fn: F) -> F:
    """Compile a function on its first call, to run without the GIL and with IEEE division."""
    return _compile(fn)


def reduction(fn: F) -> F:
    """Compile as ``kernel`` does, and allow a sum to be taken in any order."""
    return _compile(fn, fastmath=REASSOCIATE)


@kernel
def first_outside(indices: Int64s, low: int, high: int) -> int:
    """Return the position of the first index outside ``[low, high)``, or -1."""
    for i in range(indices.size):
        if indices[i] < low or indices[i] >= high:
            return i
    return -1


@kernel
def gather(row: Array, slots: Int64s, out: Array) -> None:
    """Set ``out[i] = row[slots[i]]``, and 0 where the slot is -1."""
    zero = row.dtype.type(0)
    for i in range(slots.size):
        slot = slots[i]
        out[i] = row[slot] if slot >= 0 else zero


# The scatters go strictly in order, so that duplicates accumulate and the last write wins.


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
    """Set ``u += alpha * v``; alpha has the rows' dtype, so that float32 stays float32."""
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


@kernel
def count_nonzero(u: Array) -> int:
    result = 0
    for i in range(u.size):
        result += u[i] != 0
    return result


@kernel
def rows_gather(block: Array, rows: Int64s, slots: Int64s, out: Array) -> None:
    """Set ``out[i, j] = block[rows[i], slots[j]]``, and 0 where the slot is -1."""
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


@kernel
def rows_axpy(block: Array, rows_y: Int64s, rows_x: Int64s, alphas: Array) -> None:
    """Set ``y += alpha * x`` pair by pair, in order; alphas have the block's dtype."""
    for i in range(rows_y.size):
        y, x, alpha = rows_y[i], rows_x[i], alphas[i]
        for j in range(block.shape[1]):
            block[y, j] += alpha * block[x, j]
