"""Random initial values of a matrix, independent of the number of servers and of the partitioning.

SplitMix64 computes each number from the seed, the row and the column alone, without any state. Normal numbers are
Box-Muller transforms of many pairs at once. Their logarithm, sine and cosine are evaluated by series, in loops that
LLVM turns into SIMD instructions: calls of the C library take five times as long, and differ in the last bits.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ps2 import splitmix
from ps2.ops.guards import check_row_ids, readable
from ps2.ops.kernels import Float64s, Int64s, inline, kernel
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
    """Fill the tiles of columns that begin at ``starts``; a tile ends at an even column of the matrix.

    ``steps``: distance in ``flat``, all numbers of the shard, from one row to the next, and from one column to the
    next. ``begin``: the shard's first column in the matrix. ``how``: seed, shift, scale, and True for normal
    numbers.
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


# Of float64: where the exponent's bits begin, their bias, and the bits of the fraction.
FRACTION_BITS, BIAS = 52, 1023
FRACTION = (1 << FRACTION_BITS) - 1
ONE = BIAS << FRACTION_BITS
RANDOM_BITS = 53
ROOT_2, LOG_2 = math.sqrt(2.0), math.log(2.0)
QUARTER_TURN = math.pi / 2


@inline
def normal_pairs(first: Any, second: Any, scale: float, sine: Float64s, cosine: Float64s) -> None:
    """Set ``cosine`` and ``sine`` to two independent normal numbers of each pair of draws; mean 0, deviation ``scale``.

    Of the draws, uint64, the upper 53 bits are used.
    """
    # (draw + 1) / 2**53 in (0, 1], whose logarithm is that of its fraction and a multiple of log 2.
    for i in range(first.size):
        sine[i] = np.float64(first[i] >> np.uint64(11)) + 1.0
    bits = sine.view(np.int64)
    for i in range(first.size):
        exponent = np.float64((bits[i] >> FRACTION_BITS) - (BIAS + RANDOM_BITS))
        bits[i] = (bits[i] & FRACTION) | ONE
        fraction = sine[i]
        is_large = fraction > ROOT_2
        fraction = fraction * 0.5 if is_large else fraction
        exponent = exponent + 1.0 if is_large else exponent
        cosine[i] = _log(fraction) + exponent * LOG_2
    for i in range(first.size):
        radius = scale * math.sqrt(-2.0 * cosine[i])
        turns = np.float64(second[i] >> np.uint64(11)) * (4.0 * TO_UNIT)
        quarter = math.floor(turns + 0.5)
        angle = (turns - quarter) * QUARTER_TURN
        square = angle * angle
        sin, cos = radius * _sine(angle, square), radius * _cosine(square)
        number = np.int64(quarter)
        is_odd, is_negative = (number & 1) != 0, (number & 2) != 0
        along, across = -sin if is_odd else cos, cos if is_odd else sin
        cosine[i] = -along if is_negative else along
        sine[i] = -across if is_negative else across


@inline
def _log(x: float) -> float:
    """Return the logarithm of a number in (0.7, 1.42): 2 artanh((x - 1) / (x + 1))."""
    part = (x - 1.0) / (x + 1.0)
    square = part * part
    total = 1.0 / 21.0
    for odd in (19.0, 17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0):
        total = total * square + 1.0 / odd
    return 2.0 * part + 2.0 * part * square * total


@inline
def _sine(x: float, square: float) -> float:
    """Return the sine of an angle within an eighth of a turn."""
    total = 1.0
    for number in (14.0, 12.0, 10.0, 8.0, 6.0, 4.0, 2.0):
        total = 1.0 - total * square * (1.0 / (number * (number + 1.0)))
    return x * total


@inline
def _cosine(square: float) -> float:
    """Return the cosine of an angle within an eighth of a turn, from its square."""
    total = 1.0
    for number in (15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0):
        total = 1.0 - total * square * (1.0 / (number * (number + 1.0)))
    return total
