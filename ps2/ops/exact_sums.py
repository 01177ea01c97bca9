"""Sums as two float64 numbers, the rounded sum and its rounding error, so that they do not depend on the shards."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.array_types import Float64s
from ps2.ops.kernels import inline


@inline
def two_sum(total: Any, value: Any) -> tuple[Any, Any]:
    """Return the rounded sum of two numbers, and its rounding error (Knuth's TwoSum); kernels may call it."""
    added = total + value
    part = added - total
    return added, (total - (added - part)) + (value - part)


def add_exactly(total: Float64s, values: npt.NDArray[Any]) -> None:
    """Add values to ``total[0]`` in place, and the rounding errors of these additions to ``total[1]``."""
    total[0], errors = two_sum(total[0], values)
    total[1] += errors


def add_sums(total: Float64s, part: Float64s) -> None:
    """Add sums with their rounding errors to ``total`` in place; both have shape (kinds, 2, ...)."""
    for kind_total, kind_part in zip(total, part, strict=True):
        add_exactly(kind_total, kind_part[0])
        kind_total[1] += kind_part[1]


def sum_of_shards(results: Float64s, kinds: int) -> Float64s:
    """Add up the shards' results, which are concatenated, each of 2 * kinds rows; return shape (kinds, ...)."""
    shape = kinds, 2, *results.shape[1:]
    total = np.zeros(shape)
    for shard in results.reshape(-1, *shape):
        add_sums(total, shard)
    return np.asarray(total[:, 0] + total[:, 1])
