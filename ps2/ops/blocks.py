"""Blocks: one column's values in all rows, contiguous in layout "column".

LDA keeps a word's counts in a block, and embeddings a vertex's vector (paper, sections 5.2.2 and 5.2.4).

Slots may come in any order and repeatedly: additions accumulate, and the last of several overwrites wins. Slot -1
stands for an absent sparse key: it reads as zeros and is never written.
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

# Cost of finding a block anywhere in memory, in element additions; the cost of its values comes on top.
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
    """Overwrite the blocks at the slots with values of shape (n, k); the last of several values for one slot wins.

    Raises:
        ShapeError: the values have another shape.
        OutOfRangeError: a slot is not in the shard.
    """
    _write(_set, m, slots, values)


@op(writes=("m",), creates=True)
def columns_add(m: Blocks, slots: Slots, values: BlockValues) -> None:
    """Add values of shape (n, k) to the blocks at the slots; duplicates accumulate; raises like ``columns_push``."""
    _write(_add, m, slots, values)


@op(writes=("m",))
def columns_fill(m: Blocks, *, value: float) -> None:
    """Set every element of all blocks to the value; in a sparse matrix, every element of the active keys."""
    assign(m.reshape(-1), m.dtype.type(value))


def _write(loop: Callable[[Array, Int64s, Array], None], m: Array, slots: Int64s, values: Array) -> None:
    if values.shape != (slots.size, m.shape[1]):
        raise ShapeError(f"values: expected shape ({slots.size}, {m.shape[1]}), got {values.shape}")
    # One thread, as a slot may come twice. One thread is still faster than values can arrive.
    loop(m, check_slots(slots, m.shape[0]), readable(values))


@kernel
def take(m: Array, slots: Int64s, out: Array) -> None:
    """Set ``out[i]`` to the block at ``slots[i]``, or to zeros where the slot is -1."""
    # Element by element: slices might overlap, so assigning them takes three times as long.
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
