"""Compensated sums: the rounded sum and its rounding error, both float64. They do not depend on the partitioning."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.array_types import Float64s
from ps2.ops.kernels import inline


@inline
def two_sum(total: Any, value: Any) -> tuple[Any, Any]:
    """Return the rounded sum of two numbers, and its rounding error (Knuth's TwoSum). Kernels may call it."""
    rounded = total + value
    rounded_value = rounded - total
    return rounded, (total - (rounded - rounded_value)) + (value - rounded_value)


def add_exactly(total: Float64s, values: npt.NDArray[Any]) -> None:
    """Add values to ``total[0]`` in place, and the rounding errors of these additions to ``total[1]``."""
    total[0], errors = two_sum(total[0], values)
    total[1] += errors


def add_sums(total: Float64s, addend: Float64s) -> None:
    """Add compensated sums to ``total`` in place. Both have shape (kinds, 2, ...), for several kinds of sums."""
    for kind_total, kind_addend in zip(total, addend, strict=True):
        add_exactly(kind_total, kind_addend[0])
        kind_total[1] += kind_addend[1]


def sum_of_shards(results: Float64s, kinds: int) -> Float64s:
    """Add up the shards' compensated sums; return the totals, shape (kinds, ...).

    ``results``: the concatenated results of all shards, with 2 * kinds rows for each shard.
    """
    shape = kinds, 2, *results.shape[1:]
    total = np.zeros(shape)
    for shard in results.reshape(-1, *shape):
        add_sums(total, shard)
    return np.asarray(total[:, 0] + total[:, 1])
