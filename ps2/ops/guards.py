"""Checks that operations make before they write. Kernels do not check indices."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from ps2.errors import OutOfRangeError, ShapeError
from ps2.ops import kernels
from ps2.ops.kernels import Float64s, Int64s
from ps2.ops.parallel import over_blocks
from ps2.ops.table import Array


def readable(array: Array) -> Array:
    """Return a read-only, aligned, C-contiguous view of the array, or a copy if the array is not aligned or contiguous.

    Arrays in messages are read-only, and can be misaligned. Numba compiles a kernel for each combination of such flags.
    Because all inputs have the same flags, ``warm`` can compile all variants of the kernels in advance.
    """
    view: Array = np.require(array, requirements=("C", "A")).view()
    view.flags.writeable = False
    return view


def check_same_width(*rows: Array) -> None:
    """Raise ShapeError unless all rows have the same width."""
    for row in rows:
        if row.size != rows[0].size:
            raise ShapeError(f"expected rows of equal width, got {rows[0].size} and {row.size}")


def check_length(name: str, array: Array, expected: int) -> None:
    """Raise ShapeError unless the array has ``expected`` elements."""
    if array.size != expected:
        raise ShapeError(f"{name}: expected {expected} elements, got {array.size}")


def rounded(name: str, values: Float64s, dtype: np.dtype[Any]) -> Array:
    """Return the values in another dtype; raise OutOfRangeError if a finite value would become infinite."""
    try:
        with np.errstate(all="ignore", over="raise"):
            return readable(values.astype(dtype))
    except FloatingPointError:
        largest = np.finfo(dtype).max
        index = int(np.argmax(np.isfinite(values) & (np.abs(values) > largest)))
        raise OutOfRangeError(f"{name}: {values[index]} (at position {index}) does not fit {dtype}") from None


def check_slots(slots: Int64s, width: int) -> Int64s:
    """Return the slots as a ``readable`` array; raise OutOfRangeError unless each is -1 or in ``[0, width)``."""
    return _check("slot", slots, -1, width)[0]


def check_targets(slots: Int64s, width: int) -> tuple[Int64s, bool]:
    """Check like ``check_slots``; also return True if the slots are strictly ascending (and so distinct)."""
    return _check("slot", slots, -1, width)


def check_row_ids(rows: Int64s, count: int) -> Int64s:
    """Return the row ids as a ``readable`` array; raise OutOfRangeError unless each is in ``[0, count)``."""
    return _check("row", rows, 0, count)[0]


def _check(name: str, indices: Int64s, low: int, high: int) -> tuple[Int64s, bool]:
    """Return the indices as a ``readable`` array, and True if they are strictly ascending; check ``[low, high)``."""
    indices = readable(indices)
    if not indices.size:
        return indices, True
    extents = over_blocks(kernels.extent, (indices,))  # (minimum, maximum, is strictly ascending) of each block
    if min(smallest for smallest, _, _ in extents) < low or max(largest for _, largest, _ in extents) >= high:
        index = int(np.argmax((indices < low) | (indices >= high)))
        raise OutOfRangeError(f"{name} {indices[index]} (at position {index}) is outside [{low}, {high})")
    is_ascending = all(ascending for _, _, ascending in extents)
    return indices, is_ascending and all(block[1] < next_block[0] for block, next_block in pairwise(extents))
