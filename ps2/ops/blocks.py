"""Blocks: the values of a column in all rows, which lie together in layout "column" (LDA's counts of a word, a vertex's
embedding: paper, sections 5.2.2 and 5.2.4).

Slots come in any order, and more than once: additions accumulate, and of several overwrites the last wins. Slot -1, an
absent sparse key, reads as zeros and is never written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import numpy as np

from ps2.errors import ShapeError
from ps2.ops.guards import check_slots, readable
from ps2.ops.kernels import Int64s, kernel
from ps2.ops.operands import BLOCK, SLOTS, along
from ps2.ops.parallel import assign, over_blocks
from ps2.ops.prefetch import AHEAD, prefetch
from ps2.ops.table import Array, Blocks, Slots, Values, op

BlockValues = Annotated[Values, along(SLOTS, BLOCK)]

# What it costs to find a block anywhere, in additions of one number to another; its values come on top.
FINDING_COST = 64


@op()
def columns_pull(m: Blocks, slots: Slots) -> Annotated[Array, along(SLOTS, BLOCK)]:
    """Return the blocks at the slots, shape (n, k), in the order given; zeros at slot -1.

    Raises:
        OutOfRangeError: a slot is not in the shard.
    """
    out = np.empty((slots.size, m.shape[1]), dtype=m.dtype)
    block = readable(m)
    cost = FINDING_COST + m.shape[1]
    over_blocks(lambda s, o: take(block, s, o), (check_slots(slots, m.shape[0]), out), cost=cost)
    return out


@op(writes=("m",), creates=True)
def columns_push(m: Blocks, slots: Slots, values: BlockValues) -> None:
    """Overwrite the blocks at the slots with values of shape (n, k); of several for one slot the last wins.

    Raises:
        ShapeError: values are not of that shape.
        OutOfRangeError: a slot is not in the shard.
    """
    _write(_set, m, slots, values)


@op(writes=("m",), creates=True)
def columns_add(m: Blocks, slots: Slots, values: BlockValues) -> None:
    """Add values of shape (n, k) to the blocks at the slots; duplicates accumulate; raises as ``columns_push``."""
    _write(_add, m, slots, values)


@op(writes=("m",))
def columns_fill(m: Blocks, *, value: float) -> None:
    """Set every element of all blocks to a number; of a sparse matrix those of the active keys."""
    assign(m.reshape(-1), m.dtype.type(value))


def _write(loop: Callable[[Array, Int64s, Array], None], m: Array, slots: Int64s, values: Array) -> None:
    if values.shape != (slots.size, m.shape[1]):
        raise ShapeError(f"values: expected shape ({slots.size}, {m.shape[1]}), got {values.shape}")
    # By one thread, as a slot may come twice; it is quicker than values can come.
    loop(m, check_slots(slots, m.shape[0]), readable(values))


@kernel
def take(m: Array, slots: Int64s, out: Array) -> None:
    """Set ``out[i]`` to the block at ``slots[i]``, and to zeros where that is -1."""
    # Element by element: an assignment of slices, which may overlap, takes three times as long.
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch(m, slots[i + AHEAD])
        slot = slots[i]
        if slot >= 0:
            for j in range(m.shape[1]):
                out[i, j] = m[slot, j]
        else:
            for j in range(m.shape[1]):
                out[i, j] = 0


@kernel
def _set(m: Array, slots: Int64s, values: Array) -> None:
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch(m, slots[i + AHEAD])
        slot = slots[i]
        if slot >= 0:
            for j in range(m.shape[1]):
                m[slot, j] = values[i, j]


@kernel
def _add(m: Array, slots: Int64s, values: Array) -> None:
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch(m, slots[i + AHEAD])
        slot = slots[i]
        if slot >= 0:
            for j in range(m.shape[1]):
                m[slot, j] += values[i, j]
