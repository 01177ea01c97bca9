"""Normal random numbers from random bits: the Box-Muller transform of many pairs of numbers at once.

Logarithm, sine and cosine are evaluated by their series, in loops that LLVM turns into SIMD instructions. Calls of the
C library take five times as long, and differ in the last bits from one version of it to the next.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ps2.ops.draws import TO_UNIT
from ps2.ops.kernels import Float64s, inline

# Of float64: where the exponent's bits begin, their bias, and the bits of the fraction.
FRACTION_BITS, BIAS = 52, 1023
FRACTION = (1 << FRACTION_BITS) - 1
ONE = BIAS << FRACTION_BITS
RANDOM_BITS = 53
ROOT_2, LOG_2 = math.sqrt(2.0), math.log(2.0)
QUARTER_TURN = math.pi / 2


@inline
def normal_pairs(first: Any, second: Any, scale: float, sine: Float64s, cosine: Float64s) -> None:
    """Set ``cosine`` and ``sine`` to two independent normal numbers of each pair of draws; mean 0.

    Args:
        first, second: uint64, of which the upper 53 bits are used.
        scale: the standard deviation.
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
