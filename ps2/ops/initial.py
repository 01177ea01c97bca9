"""Initial values of sparse keys: functions of the seed, the key and the position alone (``ps2.matrix.key_life``).

The numbers are those of ``rows_random`` with the key as row and the position as column: two neighbouring positions
share the draws for their normal numbers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ps2.matrix.key_life import Initial
from ps2.ops.draws import COST, GOLDEN, TO_UNIT, TURN, scrambled
from ps2.ops.guards import readable
from ps2.ops.kernels import Int64s, kernel
from ps2.ops.parallel import over_blocks
from ps2.ops.table import Array


def fill_initial(flat: Array, initial: Initial, keys: Int64s, at: Int64s, positions: Int64s, offsets: Int64s) -> None:
    """Write initial values into an array; other elements keep their values.

    Args:
        flat: the array, one-dimensional and contiguous.
        keys: the keys.
        at: where in ``flat`` each key's values begin.
        positions: the positions to write, ascending; those outside ``[begin, end)`` are skipped.
        offsets: where each position's value is, from a key's ``at`` on.
    """
    drawn = (positions >= initial.begin) & (positions < initial.end)
    if initial.is_zero or not drawn.any() or not keys.size:
        return
    positions, offsets = readable(positions[drawn]), readable(offsets[drawn])
    how = (np.uint64(initial.seed % 2**64), initial.scale, initial.kind == "normal")
    cost = COST * positions.size
    over_blocks(_fill, (readable(keys), readable(at)), flat, positions, offsets, how, cost=cost)


@kernel
def _fill(keys: Int64s, at: Int64s, flat: Array, positions: Int64s, offsets: Int64s, how: tuple[Any, ...]) -> None:
    seed, scale, normal = how
    start = scrambled(seed)
    for i in range(keys.size):
        state = scrambled(start + (np.uint64(keys[i]) + np.uint64(1)) * GOLDEN)
        if not normal:
            for j in range(positions.size):
                drawn = scrambled(state + np.uint64(positions[j] + 1) * GOLDEN)
                flat[at[i] + offsets[j]] = scale * (2.0 * (np.float64(drawn >> np.uint64(11)) * TO_UNIT) - 1.0)
            continue
        even, cosine, sine = np.int64(-1), 0.0, 0.0
        for j in range(positions.size):
            if even != positions[j] - positions[j] % 2:
                even = positions[j] - positions[j] % 2
                pair = state + np.uint64(even + 1) * GOLDEN
                first, second = scrambled(pair), scrambled(pair + GOLDEN)
                radius = scale * math.sqrt(-2.0 * math.log((np.float64(first >> np.uint64(11)) + 1.0) * TO_UNIT))
                angle = TURN * TO_UNIT * np.float64(second >> np.uint64(11))
                cosine, sine = radius * math.cos(angle), radius * math.sin(angle)
            flat[at[i] + offsets[j]] = cosine if positions[j] % 2 == 0 else sine
