"""What servers compute for k-means: sums of rows are added, and centres are moved to their means, where they lie.

A column of the matrices is a feature; its block has a number for each cluster. Sums over features are taken in two
float64 numbers, the second one being what the first one has lost. So they do not depend on how features are cut into
shards.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ps2.errors import OutOfRangeError, ShapeError
from ps2.ops.guards import check_slots, readable
from ps2.ops.kernels import Float64s, Int32s, Int64s, kernel
from ps2.ops.operands import BLOCK, SLOTS, along
from ps2.ops.parallel import over_blocks
from ps2.ops.table import FLOATS, Array, Blocks, Floats, Of, Row, Slots, Tiny, Unsigned, Values, op

# What a number costs to move, in additions.
MOVE_COST = 8
# The rows of the result of ``move``: squared lengths of the centres, and squared distances that they moved. Each is a
# sum, and what rounding has taken from it.
LENGTH, LENGTH_REST, MOVED, MOVED_REST = range(4)

Sums = Annotated[Blocks, Of("float64")]
BySlot = Annotated[Unsigned, along(SLOTS)]
Places = Annotated[Unsigned, along(SLOTS, by="sizes"), Tiny(lambda dtype: np.zeros(1, np.uint8))]


@op(writes=("u",), dtypes=("float64",))
def raise_to(u: Row, slots: Slots, values: Annotated[Values, along(SLOTS)]) -> None:
    """Set elements to values that are larger."""
    np.maximum.at(u, check_slots(slots, u.size), values)


@op(writes=("sizes", "shifts"), dtypes=("float64",))
def shift(highs: Row, lows: Row, held: Row, sizes: Row, shifts: Row, *, rows: float) -> None:
    """Set what is subtracted from features, and their largest absolute values after it.

    A feature that all rows hold, and that is never 0, loses the middle of its values: an offset would cost digits of
    sums and distances. Others lose nothing, as rows that do not hold a feature would have to hold it then.

    Args:
        highs, lows: the largest value of each feature, and the largest of its negatives.
        held: how many rows hold it.
        rows: how many there are.
    """
    sizes[:] = np.maximum(np.maximum(highs, lows), 0.0)
    shifts[:] = 0.0
    some = (held == rows) & (held > 0) & ((highs < 0) | (lows < 0))
    high, low = highs[some], -lows[some]
    shifts[some] = high / 2 + low / 2
    sizes[some] = np.maximum(high - shifts[some], shifts[some] - low)


@op(writes=("m",), dtypes=FLOATS)
def gather(
    m: Blocks, slots: Slots, sizes: BySlot, clusters: Places, values: Annotated[Values, along(SLOTS, by="sizes")]
) -> None:
    """Add to some values of the blocks at the slots.

    Args:
        sizes: of each slot, how many values of its block change.
        clusters: of each of these, a block's side by side, where it is in the block.
        values: what is added to each.

    Raises:
        OutOfRangeError: a slot is not in the shard, or a cluster is not in a block.
        ShapeError: there are not as many clusters and values as the sizes say.
    """
    _gather(m, *_checked(m, slots, sizes, clusters, values))


@op(writes=("m",), dtypes=FLOATS)
def place(
    m: Blocks, slots: Slots, sizes: BySlot, clusters: Places, values: Annotated[Values, along(SLOTS, by="sizes")]
) -> None:
    """Overwrite some values of the blocks at the slots; arguments and errors are those of ``gather``."""
    _put(m, *_checked(m, slots, sizes, clusters, values))


@op(reduce="concat", dtypes=FLOATS)
def squares(m: Blocks) -> Annotated[Float64s, along(2, BLOCK)]:
    """Return the sum of squares of each cluster's numbers on this shard, and what it has lost."""
    totals = np.zeros((2, m.shape[1]))
    for some in over_blocks(_squares, (readable(m),), cost=MOVE_COST * m.shape[1]):
        add_exactly(totals[0], totals[1], some[0])
        totals[1] += some[1]
    return totals


@op(writes=("m", "sums"), reduce="concat", dtypes=FLOATS)
def move(m: Blocks, sums: Sums, divisors: Annotated[Floats, along(BLOCK)]) -> Annotated[Float64s, along(4, BLOCK)]:
    """Move centres to their sums by their divisors; a centre whose divisor is 0 stays. Sums are 0 afterwards.

    Returns:
        Of this shard, by the rows ``LENGTH``, ``LENGTH_REST``, ``MOVED`` and ``MOVED_REST``.
    """
    totals = np.zeros((4, m.shape[1]))
    for some in over_blocks(_move, (m, sums), readable(divisors), cost=MOVE_COST * m.shape[1]):
        for total, rest in ((LENGTH, LENGTH_REST), (MOVED, MOVED_REST)):
            add_exactly(totals[total], totals[rest], some[total])
            totals[rest] += some[rest]
    return totals


def _checked(
    m: Array, slots: Int64s, sizes: Array, clusters: Array, values: Array
) -> tuple[Int64s, Int32s, Int32s, Array]:
    """Return the arguments of ``gather`` in the form that kernels take."""
    slots = check_slots(slots, m.shape[0])
    if len(clusters) != sizes.sum() or len(values) != len(clusters):
        raise ShapeError(f"expected {sizes.sum()} clusters and values, got {len(clusters)} and {len(values)}")
    if len(clusters) and clusters.max() >= m.shape[1]:
        raise OutOfRangeError(f"clusters: expected numbers below {m.shape[1]}, got {clusters.max()}")
    return slots, readable(sizes.astype(np.int32)), readable(clusters.astype(np.int32)), readable(values)


def add_exactly(total: Float64s, rest: Float64s, values: Float64s) -> None:
    """Add values to totals in place, and to the rests what the totals lose (Knuth's TwoSum)."""
    added = total + values
    of_values = added - total
    rest += (total - (added - of_values)) + (values - of_values)
    total[:] = added


@kernel
def _gather(m: Array, slots: Int64s, sizes: Int32s, clusters: Int32s, values: Array) -> None:
    entry = 0
    for i in range(slots.size):
        slot = slots[i]
        for _ in range(sizes[i]):
            if slot >= 0:
                m[slot, clusters[entry]] += values[entry]
            entry += 1


@kernel
def _put(m: Array, slots: Int64s, sizes: Int32s, clusters: Int32s, values: Array) -> None:
    entry = 0
    for i in range(slots.size):
        slot = slots[i]
        for _ in range(sizes[i]):
            if slot >= 0:
                m[slot, clusters[entry]] = values[entry]
            entry += 1


@kernel
def _squares(m: Array) -> Float64s:
    totals = np.zeros((2, m.shape[1]))
    for f in range(m.shape[0]):
        for c in range(m.shape[1]):
            value = np.float64(m[f, c])
            square = value * value
            total = totals[0, c]
            added = total + square
            part = added - total
            totals[1, c] += (total - (added - part)) + (square - part)
            totals[0, c] = added
    return totals


@kernel
def _move(m: Array, sums: Array, divisors: Float64s) -> Float64s:
    totals = np.zeros((4, m.shape[1]))
    for f in range(m.shape[0]):
        for c in range(m.shape[1]):
            old = np.float64(m[f, c])
            if divisors[c] > 0:
                m[f, c] = sums[f, c] / divisors[c]
            sums[f, c] = 0.0
            new = np.float64(m[f, c])
            for which in range(2):
                square = new * new if which == 0 else (new - old) * (new - old)
                total = totals[2 * which, c]
                added = total + square
                part = added - total
                totals[2 * which + 1, c] += (total - (added - part)) + (square - part)
                totals[2 * which, c] = added
    return totals
