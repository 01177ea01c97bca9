"""Sums in two float64 numbers: the sum, and what rounding has taken from it. They do not depend on the shards."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.array_types import Float64s


def add_exactly(total: Float64s, values: npt.NDArray[Any]) -> None:
    """Add values to ``total[0]`` in place, and to ``total[1]`` what that loses (Knuth's TwoSum)."""
    added = total[0] + values
    part = added - total[0]
    total[1] += (total[0] - (added - part)) + (values - part)
    total[0] = added


def add_sums(total: Float64s, part: Float64s) -> None:
    """Add pairs of a sum and its rest to others in place; both have shape (kinds, 2, ...)."""
    for kind_total, kind_part in zip(total, part, strict=True):
        add_exactly(kind_total, kind_part[0])
        kind_total[1] += kind_part[1]


def sum_of_shards(results: Float64s, kinds: int) -> Float64s:
    """Return the sums of what shards returned, one after the other: shape (kinds, ...), of 2 * kinds rows each."""
    shape = kinds, 2, *results.shape[1:]
    total = np.zeros(shape)
    for shard in results.reshape(-1, *shape):
        add_sums(total, shard)
    return np.asarray(total[:, 0] + total[:, 1])
