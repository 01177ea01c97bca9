"""Reductions of one or two rows to a number, such as sum, nnz, norm1, norm2 and dot (PS2 paper, Table 1).

Each operation returns a float for its shard; ``reduce`` is the method that combines the floats of all shards. Sums
accumulate in float64.
"""

from __future__ import annotations

import math

import numpy as np

from ps2.ops import kernels
from ps2.ops.guards import check_same_width, readable
from ps2.ops.parallel import over_blocks, sum_blocks
from ps2.ops.table import Row, op


@op(reduce="sum")
def sum(u: Row) -> float:
    """Return the sum of ``u``."""
    return sum_blocks(kernels.total, (readable(u),))


@op(reduce="sum")
def nnz(u: Row) -> float:
    """Return the number of nonzero columns of ``u``; NaN counts as nonzero."""
    return sum_blocks(kernels.count_nonzero, (readable(u),))


@op(reduce="sum")
def norm1(u: Row) -> float:
    """Return the sum of absolute values of ``u``."""
    return sum_blocks(kernels.total_absolute, (readable(u),))


@op(reduce="sum")
def norm2_squared(u: Row) -> float:
    """Return the square of the Euclidean norm of ``u``."""
    row = readable(u)
    return sum_blocks(kernels.dot, (row, row))


@op(reduce="sum")
def dot(u: Row, v: Row) -> float:
    """Return the inner product of ``u`` and ``v``."""
    check_same_width(u, v)
    return sum_blocks(kernels.dot, (readable(u), readable(v)))


@op(reduce="max")
def max(u: Row) -> float:
    """Return the largest value of ``u``; NaN if any value is NaN, -inf if the shard has no column."""
    return float(np.max(over_blocks(np.max, (u,)))) if u.size else -math.inf


@op(reduce="min")
def min(u: Row) -> float:
    """Return the smallest value of ``u``; NaN if any value is NaN, inf if the shard has no column."""
    return float(np.min(over_blocks(np.min, (u,)))) if u.size else math.inf


@op(reduce="sum")
def count(u: Row) -> float:
    """Return the number of columns of ``u``, or the number of keys that a sparse row stores."""
    return float(u.size)
