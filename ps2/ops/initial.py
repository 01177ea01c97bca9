"""Initial values of sparse keys (``key_policy.Initial``). They depend only on the seed, the key and the matrix's row.

The random numbers are those of ``rows_random``, with the key in place of the row, and the row in place of the column. A
Box-Muller transform makes the normal values of two adjacent rows from the same two random numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ps2.matrix.key_policy import Initial
from ps2.ops.draws import GOLDEN, TO_UNIT, normal_pairs, scrambled
from ps2.ops.guards import readable
from ps2.ops.kernels import Int64s, kernel
from ps2.ops.parallel import over_blocks
from ps2.ops.table import Array

# The number of pairs of normal values that are computed together. Their intermediate values fit in the L1 cache.
PAIRS = 512
# The cost of one value, in element additions; see ``ps2.ops.parallel``.
COST = 24


def fill_initial(flat: Array, initial: Initial, keys: Int64s, starts: Int64s, rows: Int64s, offsets: Int64s) -> None:
    """Write the initial values of keys into ``flat``; do not change other elements.

    Args:
        flat: all values of the shard.
        starts: the index in ``flat`` of each key's value in row 0.
        rows: the rows to write, ascending; rows outside ``[initial.begin, initial.end)`` are skipped.
        offsets: for each row, the index of its value relative to the key's start.
    """
    is_random = (rows >= initial.begin) & (rows < initial.end)
    if initial.is_zero or not is_random.any() or not keys.size:
        return
    rows, offsets = readable(rows[is_random]), readable(offsets[is_random])
    seed, cost = np.uint64(initial.seed % 2**64), COST * rows.size
    if initial.kind == "normal":
        pairs, row_pairs = np.unique(rows // 2, return_inverse=True)
        distribution = seed, initial.scale, readable(2 * pairs)
        sides = readable(2 * row_pairs + rows % 2)
        over_blocks(_fill_normal, (readable(keys), readable(starts)), flat, sides, offsets, distribution, cost=cost)
    else:
        distribution = seed, initial.scale, rows
        over_blocks(_fill_uniform, (readable(keys), readable(starts)), flat, offsets, distribution, cost=cost)


@kernel
def _fill_uniform(keys: Int64s, starts: Int64s, flat: Array, offsets: Int64s, distribution: tuple[Any, ...]) -> None:
    seed, scale, rows = distribution
    start = scrambled(seed)
    for i in range(keys.size):
        state = scrambled(start + (np.uint64(keys[i]) + np.uint64(1)) * GOLDEN)
        for j in range(rows.size):
            bits = scrambled(state + np.uint64(rows[j] + 1) * GOLDEN)
            flat[starts[i] + offsets[j]] = scale * (2.0 * (np.float64(bits >> np.uint64(11)) * TO_UNIT) - 1.0)


@kernel
def _fill_normal(
    keys: Int64s, starts: Int64s, flat: Array, sides: Int64s, offsets: Int64s, distribution: tuple[Any, ...]
) -> None:
    """Write normal values.

    Args:
        sides: for each row, twice the index of its pair of rows, plus 1 if it is the second row of the pair.
        distribution: the seed, the scale, and the first row of each pair.
    """
    seed, scale, evens = distribution
    start, pairs = scrambled(seed), evens.size
    num_keys = max(1, PAIRS // pairs)
    draws, normals = np.empty((2, num_keys * pairs), np.uint64), np.empty((2, num_keys * pairs))
    for begin in range(0, keys.size, num_keys):
        count = min(num_keys, keys.size - begin)
        for i in range(count):
            state = scrambled(start + (np.uint64(keys[begin + i]) + np.uint64(1)) * GOLDEN)
            first, second = draws[0, i * pairs :], draws[1, i * pairs :]
            for j in range(pairs):
                pair = state + np.uint64(evens[j] + 1) * GOLDEN
                first[j], second[j] = scrambled(pair), scrambled(pair + GOLDEN)
        total = count * pairs
        normal_pairs(draws[0, :total], draws[1, :total], scale, normals[1, :total], normals[0, :total])
        for i in range(count):
            key_start = starts[begin + i]
            for j in range(sides.size):
                flat[key_start + offsets[j]] = normals[sides[j] & 1, i * pairs + (sides[j] >> 1)]
