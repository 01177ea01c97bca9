"""Operations on blocks. A block contains the values of one column in all rows; layout "column" stores it contiguously.

In LDA a block contains the counts of a word; in embeddings, the vector of a vertex (PS2 paper, sections 5.2.2, 5.2.4).

Slots can be in any order, with duplicates: additions accumulate, and of several overwrites the last one counts. Slot -1
stands for an absent sparse key: it reads as zeros, and is never written.
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
Positions = Annotated[ByChange, Tiny(lambda dtype: np.zeros(1, np.uint8))]
UNSIGNED = (np.uint8, np.uint16, np.uint32)

# The cost of a block's cache miss, in element additions, in addition to the cost of its values; see
# ``ps2.ops.parallel``.
ACCESS_COST = 64


@op(initial=True)
def columns_pull(m: Blocks, slots: Slots) -> Annotated[Array, along(SLOTS, BLOCK)]:
    """Return the blocks at the slots, shape (n, k), in order of the slots; zeros at slot -1.

    Raises:
        OutOfRangeError: a slot is not in the shard.
    """
    out = np.empty((slots.size, m.shape[1]), dtype=m.dtype)
    block = readable(m)
    cost = ACCESS_COST + m.shape[1]
    over_blocks(lambda s, o: take(block, s, o), (check_slots(slots, m.shape[0]), out), cost=cost)
    return out


@op(writes=("m",), creates=True)
def columns_push(m: Blocks, slots: Slots, values: BlockValues) -> None:
    """Overwrite the blocks at the slots with values of shape (n, k); the last of several values for a slot counts.

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
def columns_add_some(m: Blocks, slots: Slots, sizes: BySlot, positions: Positions, changes: ByChange) -> None:
    """Change some of the values in the blocks at the slots, such as a few of the counts of a word.

    Args:
        sizes: the number of changed values at each slot.
        positions: the position of each changed value in its block, ordered by slot.
        changes: the number that is added to each of these values, encoded by ``fold``.

    Raises:
        OutOfRangeError: a slot is not in the shard, or a position is not in a block.
        ShapeError: the number of positions or changes is not the sum of the sizes.
    """
    slots = check_slots(slots, m.shape[0])
    if len(positions) != sizes.sum() or len(changes) != len(positions):
        raise ShapeError(f"expected {sizes.sum()} positions and changes, got {len(positions)} and {len(changes)}")
    if len(positions) and positions.max() >= m.shape[1]:
        raise OutOfRangeError(f"positions: expected values below {m.shape[1]}, got {positions.max()}")
    deltas = np.empty(len(changes), np.int32)
    unfold(readable(changes.astype(np.uint32)).view(np.int32), deltas)
    add_some(m, slots, readable(sizes.astype(np.int32)), readable(positions.astype(np.int32)), deltas)


def narrow_unsigned(values: npt.NDArray[Any], limit: int) -> npt.NDArray[Any]:
    """Return integers from 0 to ``limit`` in the smallest unsigned dtype that can represent ``limit``."""
    return values.astype(next(dtype for dtype in UNSIGNED if limit <= np.iinfo(dtype).max))


def fold(changes: Int32s) -> npt.NDArray[Any]:
    """Map 0, -1, 1, -2 ... to 0, 1, 2, 3 ... (zigzag encoding), in the smallest unsigned dtype."""
    folded = ((changes << 1) ^ (changes >> 31)).view(np.uint32)
    return narrow_unsigned(folded, int(folded.max(initial=0)))


@op(writes=("m",))
def columns_fill(m: Blocks, *, value: float) -> None:
    """Set every element of all blocks to the value; in a sparse matrix, the elements of all stored keys."""
    assign(m.reshape(-1), m.dtype.type(value))


def _write(kernel: Callable[[Array, Int64s, Array], None], m: Array, slots: Int64s, values: Array) -> None:
    if values.shape != (slots.size, m.shape[1]):
        raise ShapeError(f"values: expected shape ({slots.size}, {m.shape[1]}), got {values.shape}")
    # Slots may repeat, so only one thread writes. It is faster than the network that delivers the values.
    kernel(m, check_slots(slots, m.shape[0]), readable(values))


@kernel
def take(m: Array, slots: Int64s, out: Array) -> None:
    """Set ``out[i]`` to the block at ``slots[i]``, or to zeros where the slot is -1."""
    # Copy element by element: numba assumes that slices overlap, so a copy of slices would take three times as long.
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
    """Overwrite the blocks at the slots that are not -1; the last of several values for a slot counts."""
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch(m, slots[i + AHEAD])
        slot = slots[i]
        if slot >= 0:
            for j in range(m.shape[1]):
                m[slot, j] = values[i, j]


@kernel
def add(m: Array, slots: Int64s, values: Array) -> None:
    """Add rows of ``values`` to the first values of the blocks at the slots that are not -1."""
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch(m, slots[i + AHEAD])
        slot = slots[i]
        if slot >= 0:
            for j in range(values.shape[1]):
                m[slot, j] += values[i, j]


@kernel
def add_some(m: Array, slots: Int64s, sizes: Int32s, positions: Int32s, changes: Int32s) -> None:
    """Add changes to ``sizes[i]`` values of the block at ``slots[i]``; skip slot -1."""
    first = 0
    for i in range(slots.size):
        if slots[i] >= 0:
            block = m[slots[i]]
            for j in range(first, first + sizes[i]):
                block[positions[j]] += changes[j]
        first += sizes[i]


@kernel
def unfold(folded: Int32s, changes: Int32s) -> None:
    """Decode the result of ``fold`` into ``changes``; both arguments may be the same array."""
    for i in range(folded.size):
        changes[i] = ((folded[i] >> 1) & np.int32(0x7FFFFFFF)) ^ -(folded[i] & np.int32(1))


@inline
def fit(sizes: Int32s, positions: Int32s, width: int) -> bool:
    """Return True if the sizes are >= 0, their sum is the number of positions, and positions are in [0, width)."""
    total, is_valid = 0, True
    for i in range(sizes.size):
        total += sizes[i]
        is_valid &= sizes[i] >= 0
    for i in range(positions.size):
        is_valid &= 0 <= positions[i] < width
    return is_valid and total == positions.size
