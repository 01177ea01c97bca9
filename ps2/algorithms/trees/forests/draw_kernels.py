"""Compiled draws of random forests: how often a tree has each row, and the features of a node.

Hashes draw them: of seed, tree and row, or of seed, tree and node. So a forest does not depend on where rows lie.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ps2.algorithms.trees.search_kernels import permuted
from ps2.ops.draws import GOLDEN, TO_UNIT, scrambled
from ps2.ops.kernels import Float64s, Int64s, kernel

UInt8s = npt.NDArray[np.uint8]


@kernel
def count_draws(ids: Int64s, key: int, below: Float64s, out: UInt8s) -> int:
    """Set how often a tree has each row; return its number of rows. ``below``: P(at most 0, 1, ... draws)."""
    some = 0
    for i in range(len(ids)):
        state = scrambled(scrambled(np.uint64(key)) + GOLDEN * np.uint64(ids[i]))
        drawn = np.float64(state >> np.uint64(11)) * TO_UNIT
        count = 0
        while count < len(below) and drawn >= below[count]:
            count += 1
        out[i] = count
        some += count > 0
    return some


@kernel
def draw_features(usable: Int64s, key: int, place: int, turn: int, drawn: int, out: Int64s) -> int:
    """Set the features that a node draws, ascending, other ones in each turn; return their number. 0 drawn: all."""
    if drawn == 0:
        for i in range(len(usable)):
            out[i] = usable[i]
        return len(usable) if turn == 0 else 0
    mine = int(scrambled(np.uint64(key) + GOLDEN * np.uint64(place)) >> np.uint64(1))
    begin = turn * drawn
    count = max(min(drawn, len(usable) - begin), 0)
    for i in range(count):
        out[i] = usable[permuted(begin + i, len(usable), mine)]
    out[:count].sort()
    return count
