"""Random numbers that a matrix is filled with: the same on any number of servers, however it is cut.

The number of a row and column is made of these and the seed alone, by the finaliser of SplitMix64 (Steele, Lea and
Flood, "Fast splittable pseudorandom number generators"): no state goes from one to the next.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ps2.ops.guards import check_row_ids, readable
from ps2.ops.kernels import Int64s, kernel
from ps2.ops.parallel import over_blocks
from ps2.ops.table import FLOATS, Array, Block, Blocks, Partition, RowIds, op

# 2**64 over the golden ratio, and the multipliers of SplitMix64.
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST = np.uint64(0xBF58476D1CE4E5B9)
SECOND = np.uint64(0x94D049BB133111EB)
TO_UNIT = 2.0**-53
TURN = 2 * math.pi
# Columns that one turn fills, in all rows: an even number.
TILE = 2048
# What a number costs, in additions.
COST = 64


@op(writes=("m",), dtypes=FLOATS)
def rows_random(
    m: Block,
    rows: RowIds,
    part: Partition,
    *,
    seed: int,
    shift: float = 0.0,
    scale: float = 1.0,
    normal: bool = False,
) -> None:
    """Overwrite rows with ``shift + scale * x``, x uniform in [0, 1) or standard normal, by seed, row and column.

    Raises:
        OutOfRangeError: a row is not in the matrix.
    """
    numbers = check_row_ids(rows, m.shape[0])
    _fill(m.reshape(-1), numbers, (m.shape[1], 1), (part.begin, m.shape[1]), _how(seed, shift, scale, normal))


@op(writes=("m",), dtypes=FLOATS)
def columns_random(
    m: Blocks,
    rows: RowIds,
    part: Partition,
    *,
    seed: int,
    shift: float = 0.0,
    scale: float = 1.0,
    normal: bool = False,
) -> None:
    """Do what ``rows_random`` does in a shard with layout "column"."""
    numbers = check_row_ids(rows, m.shape[1])
    _fill(m.reshape(-1), numbers, (1, m.shape[1]), (part.begin, m.shape[0]), _how(seed, shift, scale, normal))


def _how(seed: int, shift: float, scale: float, normal: bool) -> tuple[Any, ...]:
    return np.uint64(seed % 2**64), shift, scale, normal


def _fill(flat: Array, rows: Int64s, steps: tuple[int, int], columns: tuple[int, int], how: tuple[Any, ...]) -> None:
    begin, width = columns
    # Tiles begin at even columns of the matrix, as two columns share the draws of their normal numbers.
    starts = readable(np.append(0, np.arange(TILE - begin % 2, width, TILE)))
    over_blocks(fill_random, (starts,), flat, rows, steps, begin, width, how, cost=COST * TILE * rows.size)


@kernel
def scrambled(number: np.uint64) -> np.uint64:
    """Return what SplitMix64 makes of a state."""
    number = (number ^ (number >> np.uint64(30))) * FIRST
    number = (number ^ (number >> np.uint64(27))) * SECOND
    return number ^ (number >> np.uint64(31))


@kernel
def fill_random(
    starts: Int64s, flat: Array, rows: Int64s, steps: tuple[int, int], begin: int, width: int, how: tuple[Any, ...]
) -> None:
    """Fill some tiles of columns.

    Args:
        starts: first column of each, among those that are here; it ends at the next even column of the matrix.
        flat: all numbers that are here; ``steps``: from a row to the next in it, and from a column to the next.
        begin: the first column that is here; ``width``: how many are.
        how: seed, shift, scale, and whether numbers are normal.
    """
    seed, shift, scale, normal = how
    for start in starts:
        end = min(start + TILE - (begin + start) % 2, width)
        for i in range(rows.size):
            key = scrambled(scrambled(seed) + np.uint64(rows[i] + 1) * GOLDEN)
            at = rows[i] * steps[0]
            if not normal:
                for column in range(start, end):
                    drawn = scrambled(key + np.uint64(begin + column + 1) * GOLDEN)
                    flat[at + column * steps[1]] = shift + scale * (np.float64(drawn >> np.uint64(11)) * TO_UNIT)
                continue
            # Box and Muller: two numbers of two draws.
            for even in range(start - (begin + start) % 2, end, 2):
                state = key + np.uint64(begin + even + 1) * GOLDEN
                first, second = scrambled(state), scrambled(state + GOLDEN)
                radius = scale * math.sqrt(-2.0 * math.log((np.float64(first >> np.uint64(11)) + 1.0) * TO_UNIT))
                angle = TURN * TO_UNIT * np.float64(second >> np.uint64(11))
                if even >= start:
                    flat[at + even * steps[1]] = shift + radius * math.cos(angle)
                if even + 1 < end:
                    flat[at + (even + 1) * steps[1]] = shift + radius * math.sin(angle)
