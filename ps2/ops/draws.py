"""Random initial values of a matrix, independent of the number of servers and of the partitioning.

SplitMix64 computes each number from the seed, the row and the column alone, without any state.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ps2 import splitmix
from ps2.ops.guards import check_row_ids, readable
from ps2.ops.kernels import Int64s, inline, kernel
from ps2.ops.parallel import over_blocks
from ps2.ops.table import FLOATS, Array, Block, Blocks, Partition, RowIds, op

# SplitMix64, as a part of kernels.
GOLDEN, scrambled = splitmix.GOLDEN, inline(splitmix.scrambled)
TO_UNIT = 2.0**-53
TURN = 2 * math.pi
# Columns that one iteration fills, in all rows; must be even.
TILE = 2048
# Cost of one random number, in element additions.
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
    """Overwrite rows with ``shift + scale * x``, where seed, row and column give x: uniform in [0, 1) or normal.

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
    """Like ``rows_random``, for a shard with layout "column"."""
    numbers = check_row_ids(rows, m.shape[1])
    _fill(m.reshape(-1), numbers, (1, m.shape[1]), (part.begin, m.shape[0]), _how(seed, shift, scale, normal))


def _how(seed: int, shift: float, scale: float, normal: bool) -> tuple[Any, ...]:
    return np.uint64(seed % 2**64), shift, scale, normal


def _fill(flat: Array, rows: Int64s, steps: tuple[int, int], columns: tuple[int, int], how: tuple[Any, ...]) -> None:
    begin, width = columns
    # Tiles begin at even columns of the matrix, as two neighbouring columns share the draws for their normal numbers.
    starts = readable(np.append(0, np.arange(TILE - begin % 2, width, TILE)))
    over_blocks(fill_random, (starts,), flat, rows, steps, begin, width, how, cost=COST * TILE * rows.size)


@kernel
def fill_random(
    starts: Int64s, flat: Array, rows: Int64s, steps: tuple[int, int], begin: int, width: int, how: tuple[Any, ...]
) -> None:
    """Fill some tiles of columns.

    Args:
        starts: first column of each tile, counted within the shard; a tile ends at an even column of the matrix.
        flat: all numbers of the shard.
        steps: distance in ``flat`` from one row to the next, and from one column to the next.
        begin: the shard's first column in the matrix.
        width: number of columns in the shard.
        how: seed, shift, scale, and True for normal numbers.
    """
    seed, shift, scale, normal = how
    for start in starts:
        end = min(start + TILE - (begin + start) % 2, width)
        for i in range(rows.size):
            key = scrambled(scrambled(seed) + np.uint64(rows[i] + 1) * GOLDEN)
            origin = rows[i] * steps[0]
            if not normal:
                for column in range(start, end):
                    bits = scrambled(key + np.uint64(begin + column + 1) * GOLDEN)
                    flat[origin + column * steps[1]] = shift + scale * (np.float64(bits >> np.uint64(11)) * TO_UNIT)
                continue
            # Box-Muller transform: two draws give two normal numbers.
            for even in range(start - (begin + start) % 2, end, 2):
                state = key + np.uint64(begin + even + 1) * GOLDEN
                first, second = scrambled(state), scrambled(state + GOLDEN)
                radius = scale * math.sqrt(-2.0 * math.log((np.float64(first >> np.uint64(11)) + 1.0) * TO_UNIT))
                angle = TURN * TO_UNIT * np.float64(second >> np.uint64(11))
                if even >= start:
                    flat[origin + even * steps[1]] = shift + radius * math.cos(angle)
                if even + 1 < end:
                    flat[origin + (even + 1) * steps[1]] = shift + radius * math.sin(angle)
