"""Random initial values of a matrix, independent of the number of servers and of the partitioning.

SplitMix64 computes each value from the seed, the row and the column, without any state. ``normal_pairs`` computes many
normal values at once by Box-Muller transforms. It evaluates logarithms, sines and cosines as series, in loops that LLVM
compiles to SIMD instructions. Calls of the C library would take five times as long, and differ in the last bits between
systems.
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

# SplitMix64, for kernels: its increment, and its hash.
GOLDEN, scrambled = splitmix.GOLDEN, inline(splitmix.scrambled)
# The factor that maps 53-bit integers to [0, 1).
TO_UNIT = 2.0**-53
TURN = 2 * math.pi
# The number of columns that a thread fills in all rows at a time; it is even, because columns are computed in pairs.
TILE = 2048
# The cost of one random value, in element additions; see ``ps2.ops.parallel``.
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
    """Overwrite rows with ``shift + scale * x``, where x is random: uniform in [0, 1), or standard normal.

    x depends only on seed, row and column.

    Raises:
        OutOfRangeError: a row is not in the matrix.
    """
    distribution = np.uint64(seed % 2**64), shift, scale, normal
    row_ids = check_row_ids(rows, m.shape[0])
    _fill(m.reshape(-1), row_ids, (m.shape[1], 1), (part.begin, m.shape[1]), distribution)


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
    """Do the same as ``rows_random``, for a shard with layout "column"."""
    distribution = np.uint64(seed % 2**64), shift, scale, normal
    row_ids = check_row_ids(rows, m.shape[1])
    _fill(m.reshape(-1), row_ids, (1, m.shape[1]), (part.begin, m.shape[0]), distribution)


def _fill(
    flat: Array, rows: Int64s, strides: tuple[int, int], columns: tuple[int, int], distribution: tuple[Any, ...]
) -> None:
    begin, width = columns
    # Tiles begin at even columns of the matrix, because the normal values of an even column and the next one are
    # computed together.
    starts = readable(np.append(0, np.arange(TILE - begin % 2, width, TILE)))
    over_blocks(fill_random, (starts,), flat, rows, strides, begin, width, distribution, cost=COST * TILE * rows.size)


@kernel
def fill_random(
    starts: Int64s,
    flat: Array,
    rows: Int64s,
    strides: tuple[int, int],
    begin: int,
    width: int,
    distribution: tuple[Any, ...],
) -> None:
    """Fill the tiles of columns that begin at ``starts``; a tile ends at an even column of the matrix.

    Args:
        flat: all values of the shard.
        strides: the distance in ``flat`` between adjacent rows, and between adjacent columns.
        begin, width: the shard's first column in the matrix, and its number of columns.
        distribution: seed, shift, scale, and True for normal values.
    """
    seed, shift, scale, normal = distribution
    for start in starts:
        end = min(start + TILE - (begin + start) % 2, width)
        for i in range(rows.size):
            key = scrambled(scrambled(seed) + np.uint64(rows[i] + 1) * GOLDEN)
            origin = rows[i] * strides[0]
            if not normal:
                for column in range(start, end):
                    bits = scrambled(key + np.uint64(begin + column + 1) * GOLDEN)
                    flat[origin + column * strides[1]] = shift + scale * (np.float64(bits >> np.uint64(11)) * TO_UNIT)
                continue
            # The Box-Muller transform computes two normal values from two uniform ones.
            for even in range(start - (begin + start) % 2, end, 2):
                state = key + np.uint64(begin + even + 1) * GOLDEN
                first, second = scrambled(state), scrambled(state + GOLDEN)
                radius = scale * math.sqrt(-2.0 * math.log((np.float64(first >> np.uint64(11)) + 1.0) * TO_UNIT))
                angle = TURN * TO_UNIT * np.float64(second >> np.uint64(11))
                if even >= start:
                    flat[origin + even * strides[1]] = shift + radius * math.cos(angle)
                if even + 1 < end:
                    flat[origin + (even + 1) * strides[1]] = shift + radius * math.sin(angle)


# The format of float64: the number of bits of the fraction, the bias of the exponent, the mask of the fraction, and the
# bits of 1.0.
FRACTION_BITS, BIAS = 52, 1023
FRACTION = (1 << FRACTION_BITS) - 1
ONE = BIAS << FRACTION_BITS
# The number of bits of a random integer that are used.
RANDOM_BITS = 53
ROOT_2, LOG_2 = math.sqrt(2.0), math.log(2.0)
QUARTER_TURN = math.pi / 2


@inline
def normal_pairs(first: Any, second: Any, scale: float, sine: Float64s, cosine: Float64s) -> None:
    """Compute two independent normal values from each pair of random integers, with standard deviation ``scale``.

    Args:
        first, second: the random integers, uint64; their upper 53 bits are used.
        sine, cosine: outputs: the normal values.
    """
    # log((integer + 1) / 2**53) is the logarithm of the float's fraction plus its exponent times log 2.
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
        quadrant = np.int64(quarter)
        is_odd, is_negative = (quadrant & 1) != 0, (quadrant & 2) != 0
        x, y = -sin if is_odd else cos, cos if is_odd else sin
        cosine[i] = -x if is_negative else x
        sine[i] = -y if is_negative else y


@inline
def _log(x: float) -> float:
    """Return the logarithm of a number in (0.7, 1.42): 2 artanh((x - 1) / (x + 1))."""
    ratio = (x - 1.0) / (x + 1.0)
    square = ratio * ratio
    total = 1.0 / 21.0
    for odd in (19.0, 17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0):
        total = total * square + 1.0 / odd
    return 2.0 * ratio + 2.0 * ratio * square * total


@inline
def _sine(x: float, square: float) -> float:
    """Return the sine of an angle in [-pi / 4, pi / 4], from the angle and its square (Taylor series)."""
    total = 1.0
    for order in (14.0, 12.0, 10.0, 8.0, 6.0, 4.0, 2.0):
        total = 1.0 - total * square * (1.0 / (order * (order + 1.0)))
    return x * total


@inline
def _cosine(square: float) -> float:
    """Return the cosine of an angle in [-pi / 4, pi / 4], from the angle's square (Taylor series)."""
    total = 1.0
    for order in (15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0):
        total = 1.0 - total * square * (1.0 / (order * (order + 1.0)))
    return total
