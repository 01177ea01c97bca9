"""Blocks: one column's values in all rows, contiguous in layout "column".

LDA keeps a word's counts in a block, and embeddings a vertex's vector (paper, sections 5.2.2 and 5.2.4).

Slots may come in any order and repeatedly: additions accumulate, and the last of several overwrites wins. Slot -1
stands for an absent sparse key: it reads as zeros and is never written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from ps2.errors import OutOfRangeError, ShapeError
from ps2.ops.guards import check_slots, readable
from ps2.ops.kernels import Int32s, Int64s, inline, kernel
from ps2.ops.operands import BLOCK, SLOTS, along
from ps2.ops.parallel import assign, over_blocks
from ps2.ops.prefetch import AHEAD, prefetch
from ps2.ops.table import Array, Blocks, Slots, Tiny, Unsigned, Values, op

BlockValues = Annotated[Values, along(SLOTS, BLOCK)]
BySlot = Annotated[Unsigned, along(SLOTS)]
ByChange = Annotated[Unsigned, along(SLOTS, by="sizes")]
Places = Annotated[ByChange, Tiny(lambda dtype: np.zeros(1, np.uint8))]
UNSIGNED = (np.uint8, np.uint16, np.uint32)

# Cost of finding a block anywhere in memory, in element additions; the cost of its values comes on top.
FINDING_COST = 64


@op(initial=True)
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
    _write(put, m, slots, values)


@op(writes=("m",), creates=True)
def columns_add(m: Blocks, slots: Slots, values: BlockValues) -> None:
    """Add values of shape (n, k) to the blocks at the slots; duplicates accumulate; raises like ``columns_push``."""
    _write(add, m, slots, values)


@op(writes=("m",), dtypes=("int32",), creates=True)
def columns_add_some(m: Blocks, slots: Slots, sizes: BySlot, places: Places, changes: ByChange) -> None:
    """Add to some values of the blocks at the slots, as where few of a word's counts change.

    Args:
        sizes: of each slot, how many values of its block change.
        places: of each of these, a block's side by side, where it is in the block.
        changes: by how much, as ``fold`` has it.

    Raises:
        OutOfRangeError: a slot is not in the shard, or a place is not in a block.
        ShapeError: there are not as many places and changes as the sizes say.
    """
    slots = check_slots(slots, m.shape[0])
    if len(places) != sizes.sum() or len(changes) != len(places):
        raise ShapeError(f"expected {sizes.sum()} places and changes, got {len(places)} and {len(changes)}")
    if len(places) and places.max() >= m.shape[1]:
        raise OutOfRangeError(f"places: expected numbers below {m.shape[1]}, got {places.max()}")
    by = np.empty(len(changes), np.int32)
    unfold(readable(changes.astype(np.uint32)).view(np.int32), by)
    add_some(m, slots, readable(sizes.astype(np.int32)), readable(places.astype(np.int32)), by)


def narrow_unsigned(numbers: npt.NDArray[Any], most: int) -> npt.NDArray[Any]:
    """Return numbers that are not negative as the narrowest unsigned integers that hold ``most``."""
    return numbers.astype(next(dtype for dtype in UNSIGNED if most <= np.iinfo(dtype).max))


def fold(changes: Int32s) -> npt.NDArray[Any]:
    """Return signed numbers as unsigned ones, as narrow as they can be: 0, -1, 1, -2 ... as 0, 1, 2, 3 ..."""
    folded = ((changes << 1) ^ (changes >> 31)).view(np.uint32)
    return narrow_unsigned(folded, int(folded.max(initial=0)))


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
def put(m: Array, slots: Int64s, values: Array) -> None:
    """Overwrite the blocks at the slots that are not -1; of several values for one slot the last wins."""
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch(m, slots[i + AHEAD])
        slot = slots[i]
        if slot >= 0:
            for j in range(m.shape[1]):
                m[slot, j] = values[i, j]


@kernel
def add(m: Array, slots: Int64s, values: Array) -> None:
    """Add to the first values of the blocks at the slots that are not -1."""
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch(m, slots[i + AHEAD])
        slot = slots[i]
        if slot >= 0:
            for j in range(values.shape[1]):
                m[slot, j] += values[i, j]


@kernel
def add_some(m: Array, slots: Int64s, sizes: Int32s, places: Int32s, changes: Int32s) -> None:
    """Add to the values at the places of each block, as many as its size says; not where the slot is -1."""
    at = 0
    for i in range(slots.size):
        if slots[i] >= 0:
            block = m[slots[i]]
            for j in range(at, at + sizes[i]):
                block[places[j]] += changes[j]
        at += sizes[i]


@kernel
def unfold(folded: Int32s, changes: Int32s) -> None:
    """Undo ``fold``; both may be the same array."""
    for i in range(folded.size):
        changes[i] = ((folded[i] >> 1) & np.int32(0x7FFFFFFF)) ^ -(folded[i] & np.int32(1))


@inline
def fit(sizes: Int32s, places: Int32s, width: int) -> bool:
    """Return True if sizes, all below 2**31, add up to the number of places, and each place is in a block."""
    total, fine = 0, True
    for i in range(sizes.size):
        total += sizes[i]
        fine &= sizes[i] >= 0
    for i in range(places.size):
        fine &= 0 <= places[i] < width
    return fine and total == places.size
