"""Operations of k-means: servers add up the sums of rows, and move the centres to the means of their rows.

A column of the matrices is a feature; its block has a value for each cluster. Sums over features are exact, so that
they do not depend on how features are cut into shards.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ps2.errors import OutOfRangeError, ShapeError
from ps2.ops.exact_sums import add_sums
from ps2.ops.guards import check_slots, readable
from ps2.ops.kernels import Float64s, Int32s, Int64s, kernel
from ps2.ops.operands import BLOCK, SLOTS, along
from ps2.ops.parallel import over_blocks
from ps2.ops.table import FLOATS, Array, Blocks, Floats, Of, Row, Slots, Tiny, Unsigned, Values, op

# The cost of moving one value of a centre, in additions.
MOVE_COST = 8

Sums = Annotated[Blocks, Of("float64")]
BySlot = Annotated[Unsigned, along(SLOTS)]
Positions = Annotated[Unsigned, along(SLOTS, by="sizes"), Tiny(lambda dtype: np.zeros(1, np.uint8))]


@op(writes=("u",), dtypes=("float64",))
def raise_to(u: Row, slots: Slots, values: Annotated[Values, along(SLOTS)]) -> None:
    """Set elements to values that are larger."""
    np.maximum.at(u, check_slots(slots, u.size), values)


@op(writes=("sizes", "shifts"), dtypes=("float64",))
def shift(highs: Row, lows: Row, held: Row, sizes: Row, shifts: Row, *, rows: float) -> None:
    """Set the shift that is subtracted from each feature, and its largest absolute value after the subtraction.

    The shift is the middle of the feature's values if all rows store the feature and its values have one sign: an
    offset would cost digits of sums and distances. Else it is 0: a shift would turn absent values into nonzero ones.

    Args:
        highs, lows: the largest value of each feature, and its largest negated value.
        held: the number of rows that store each feature; there are ``rows`` rows.
    """
    sizes[:] = np.maximum(np.maximum(highs, lows), 0.0)
    shifts[:] = 0.0
    is_shifted = (held == rows) & (held > 0) & ((highs < 0) | (lows < 0))
    high, low = highs[is_shifted], -lows[is_shifted]
    shifts[is_shifted] = high / 2 + low / 2
    sizes[is_shifted] = np.maximum(high - shifts[is_shifted], shifts[is_shifted] - low)


@op(writes=("m",), dtypes=FLOATS)
def gather(
    m: Blocks, slots: Slots, sizes: BySlot, clusters: Positions, values: Annotated[Values, along(SLOTS, by="sizes")]
) -> None:
    """Add to some values of the blocks at the slots.

    Args:
        sizes: the number of values of each slot's block that change.
        clusters: the positions of these values in the block, block by block.
    """
    _gather(m, *_checked(m, slots, sizes, clusters, values))


@op(writes=("m",), dtypes=FLOATS)
def place(
    m: Blocks, slots: Slots, sizes: BySlot, clusters: Positions, values: Annotated[Values, along(SLOTS, by="sizes")]
) -> None:
    """Overwrite some values of the blocks at the slots; arguments and errors are those of ``gather``."""
    _put(m, *_checked(m, slots, sizes, clusters, values))


@op(reduce="concat", dtypes=FLOATS)
def squares(m: Blocks) -> Annotated[Float64s, along(2, BLOCK)]:
    """Return the sum of squares of each cluster's values on this shard, and its rounding error."""
    totals = np.zeros((2, m.shape[1]))
    for partial in over_blocks(_squares, (readable(m),), cost=MOVE_COST * m.shape[1]):
        add_sums(totals[None], partial[None])
    return totals


@op(writes=("m", "sums"), reduce="concat", dtypes=FLOATS)
def move(m: Blocks, sums: Sums, divisors: Annotated[Floats, along(BLOCK)]) -> Annotated[Float64s, along(4, BLOCK)]:
    """Set each centre to its sum divided by its divisor, unless that is 0; then set the sums to 0.

    Returns:
        The squared lengths of the centres, and the squared distances that they moved, on this shard: each as a sum and
        its rounding error.
    """
    totals = np.zeros((2, 2, m.shape[1]))
    for partial in over_blocks(_move, (m, sums), readable(divisors), cost=MOVE_COST * m.shape[1]):
        add_sums(totals, partial)
    return totals.reshape(4, -1)


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
    totals = np.zeros((2, 2, m.shape[1]))
    for f in range(m.shape[0]):
        for c in range(m.shape[1]):
            old = np.float64(m[f, c])
            if divisors[c] > 0:
                m[f, c] = sums[f, c] / divisors[c]
            sums[f, c] = 0.0
            new = np.float64(m[f, c])
            for which in range(2):
                square = new * new if which == 0 else (new - old) * (new - old)
                total = totals[which, 0, c]
                added = total + square
                part = added - total
                totals[which, 1, c] += (total - (added - part)) + (square - part)
                totals[which, 0, c] = added
    return totals
