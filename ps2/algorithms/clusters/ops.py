"""Server operations of k-means: they add up the rows of each cluster, and move the centres to the means.

A column of the matrices is a feature; its block has a value for each cluster. Sums over features are computed with
their rounding errors, so the totals do not depend on how features are divided among shards.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ps2.errors import OutOfRangeError, ShapeError
from ps2.ops.exact_sums import add_sums, two_sum
from ps2.ops.guards import check_slots, readable
from ps2.ops.kernels import Float64s, Int32s, Int64s, kernel
from ps2.ops.operands import BLOCK, SLOTS, along
from ps2.ops.parallel import over_blocks
from ps2.ops.table import FLOATS, Array, Blocks, Floats, Of, Row, Slots, Tiny, Unsigned, Values, op

# The cost of moving one value of a centre, in element additions.
MOVE_COST = 8

Sums = Annotated[Blocks, Of("float64")]
BySlot = Annotated[Unsigned, along(SLOTS)]
ByValue = Annotated[Unsigned, along(SLOTS, by="sizes"), Tiny(lambda dtype: np.zeros(1, np.uint8))]


@op(writes=("u",), dtypes=("float64",))
def raise_to(u: Row, slots: Slots, values: Annotated[Values, along(SLOTS)]) -> None:
    """Set each element at the slots to the maximum of the element and the value for its slot."""
    np.maximum.at(u, check_slots(slots, u.size), values)


@op(writes=("sizes", "shifts"), dtypes=("float64",))
def shift(highs: Row, lows: Row, held: Row, sizes: Row, shifts: Row, *, rows: float) -> None:
    """Choose the shift that is subtracted from each feature, and compute the largest absolute value after it.

    If all rows store a feature and its values have one sign, the shift is the midrange, because a common offset would
    cost digits of sums and distances. Otherwise the shift is 0, so values that sparse rows do not store remain 0.

    Args:
        highs: the largest value of each feature.
        lows: the smallest value of each feature, negated.
        held: the number of rows that store each feature.
        sizes: output: the largest absolute value of each feature after the shift.
        shifts: output: the shift of each feature.
        rows: the number of all rows.
    """
    sizes[:] = np.maximum(np.maximum(highs, lows), 0.0)
    shifts[:] = 0.0
    is_shifted = (held == rows) & (held > 0) & ((highs < 0) | (lows < 0))
    high, low = highs[is_shifted], -lows[is_shifted]
    shifts[is_shifted] = high / 2 + low / 2
    sizes[is_shifted] = np.maximum(high - shifts[is_shifted], shifts[is_shifted] - low)


@op(writes=("m",), dtypes=FLOATS)
def gather(
    m: Blocks, slots: Slots, sizes: BySlot, clusters: ByValue, values: Annotated[Values, along(SLOTS, by="sizes")]
) -> None:
    """Add values to some clusters' entries of the blocks at the slots.

    Args:
        sizes: the number of values for each slot.
        clusters: the cluster of each value, in the order of the slots.
        values: the values, in the same order.
    """
    _write(m, *_check_entries(m, slots, sizes, clusters, values), True)


@op(writes=("m",), dtypes=FLOATS)
def place(
    m: Blocks, slots: Slots, sizes: BySlot, clusters: ByValue, values: Annotated[Values, along(SLOTS, by="sizes")]
) -> None:
    """Overwrite some clusters' entries of the blocks at the slots; arguments and errors are as in ``gather``."""
    _write(m, *_check_entries(m, slots, sizes, clusters, values), False)


@op(reduce="concat", dtypes=FLOATS)
def squares(m: Blocks) -> Annotated[Float64s, along(2, BLOCK)]:
    """Return the sum of squares of each cluster's values on this shard, and the sum's rounding error."""
    totals = np.zeros((2, m.shape[1]))
    for block_totals in over_blocks(_squares, (readable(m),), cost=MOVE_COST * m.shape[1]):
        add_sums(totals[None], block_totals[None])
    return totals


@op(writes=("m", "sums"), reduce="concat", dtypes=FLOATS)
def move(m: Blocks, sums: Sums, divisors: Annotated[Floats, along(BLOCK)]) -> Annotated[Float64s, along(4, BLOCK)]:
    """Set each centre to its sum divided by its divisor, and the sums to 0. A centre with divisor 0 does not change.

    Returns:
        Sums over this shard's features, shape (4, k): the squared norms of the centres, and their rounding errors; the
        squared distances that the centres moved, and their rounding errors.
    """
    totals = np.zeros((2, 2, m.shape[1]))
    for block_totals in over_blocks(_move, (m, sums), readable(divisors), cost=MOVE_COST * m.shape[1]):
        add_sums(totals, block_totals)
    return totals.reshape(4, -1)


def _check_entries(
    m: Array, slots: Int64s, sizes: Array, clusters: Array, values: Array
) -> tuple[Int64s, Int32s, Int32s, Array]:
    """Check the arguments of ``gather``; return them with the dtypes of ``_write``'s arguments."""
    slots = check_slots(slots, m.shape[0])
    if len(clusters) != sizes.sum() or len(values) != len(clusters):
        raise ShapeError(f"expected {sizes.sum()} clusters and values, got {len(clusters)} and {len(values)}")
    if len(clusters) and clusters.max() >= m.shape[1]:
        raise OutOfRangeError(f"clusters: expected clusters below {m.shape[1]}, got {clusters.max()}")
    return slots, readable(sizes.astype(np.int32)), readable(clusters.astype(np.int32)), readable(values)


@kernel
def _write(m: Array, slots: Int64s, sizes: Int32s, clusters: Int32s, values: Array, adds: bool) -> None:
    entry = 0
    for i in range(slots.size):
        slot = slots[i]
        for _ in range(sizes[i]):
            if slot >= 0:
                if adds:
                    m[slot, clusters[entry]] += values[entry]
                else:
                    m[slot, clusters[entry]] = values[entry]
            entry += 1


@kernel
def _squares(m: Array) -> Float64s:
    totals = np.zeros((2, m.shape[1]))
    for f in range(m.shape[0]):
        for c in range(m.shape[1]):
            value = np.float64(m[f, c])
            totals[0, c], error = two_sum(totals[0, c], value * value)
            totals[1, c] += error
    return totals


@kernel
def _move(m: Array, sums: Array, divisors: Float64s) -> Float64s:
    totals = np.zeros((2, 2, m.shape[1]))
    for f in range(m.shape[0]):
        for c in range(m.shape[1]):
            old = np.float64(m[f, c])
            if divisors[c] > 0:
                m[f, c] = sums[f, c] / divisors[c]
            sums[f, c] = 0.0
            new = np.float64(m[f, c])
            totals[0, 0, c], error = two_sum(totals[0, 0, c], new * new)
            totals[0, 1, c] += error
            totals[1, 0, c], error = two_sum(totals[1, 0, c], (new - old) * (new - old))
            totals[1, 1, c] += error
    return totals
