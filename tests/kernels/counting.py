"""Operations of somebody else's: what a package of a user's brings to the servers."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ps2.ops.kernels import Int64s, kernel
from ps2.ops.operands import along
from ps2.ops.table import Array, Block, Partition, Row, Slots, Values, op


@kernel
def _count_above(u: Array, value: float) -> int:
    count = 0
    for i in range(u.size):
        count += u[i] > value
    return count


@op(reduce="sum")
def count_above(u: Row, *, value: float) -> float:
    """Return how many elements are above a value."""
    return float(_count_above(u, value))


@op(reduce="concat")
def columns_above(u: Row, partition: Partition, *, value: float) -> Annotated[Int64s, along("")]:
    """Return the columns whose elements are above a value."""
    return np.flatnonzero(u > value) + partition.begin


@op(writes=("u",))
def fetch_add(u: Row, slots: Slots, values: Annotated[Values, along("slots")]) -> Annotated[Array, along("slots")]:
    """Add values at slots; return what was there before."""
    before = u[slots]
    u[slots] += values
    return before


@op(reduce="list")
def shapes(m: Block) -> Annotated[Int64s, along(2)]:
    """Return the shape of each shard."""
    return np.array(m.shape)
