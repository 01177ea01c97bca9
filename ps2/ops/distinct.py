"""Distinct keys of a batch, and sums of the values that belong to equal keys."""

from __future__ import annotations

import numpy as np

from ps2.ops.guards import readable
from ps2.ops.kernels import Int64s, kernel
from ps2.ops.table import Array


def find_distinct(keys: Int64s) -> tuple[Int64s, Int64s]:
    """Return the distinct keys, ascending, and the position of each given key among them, int64.

    Args:
        keys: int64 of shape (n,), any order.
    """
    distinct, positions = np.unique(keys, return_inverse=True)
    return distinct, positions.astype(np.int64, copy=False).reshape(-1)


def sum_rows(values: Array, positions: Int64s, count: int) -> Array:
    """Return the sums of rows with equal positions, shape (count, k), added in the order given.

    Args:
        values: float32 of shape (n, k).
        positions: int64 of shape (n,), each in [0, count).
    """
    sums = np.zeros((count, values.shape[1]), values.dtype)
    _add_rows(readable(values), readable(positions), sums)
    return sums


@kernel
def _add_rows(values: Array, positions: Int64s, sums: Array) -> None:
    for i in range(positions.size):
        at = positions[i]
        for j in range(values.shape[1]):
            sums[at, j] += values[i, j]
