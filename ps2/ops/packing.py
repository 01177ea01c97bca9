"""Encodings of numbers in messages: differences of keys, narrow integers, and 16-bit floats.

Receivers do not trust senders: ``unpack_keys`` checks every difference. float16 has 11 bits of precision, and a range
up to 65504; bfloat16 has 8 bits of precision, and float32's range.
"""

from __future__ import annotations

from typing import Any, Literal, NoReturn

import numpy as np
import numpy.typing as npt

from ps2.errors import DTypeError, OutOfRangeError, ProtocolError, ShapeError
from ps2.ops.guards import readable
from ps2.ops.kernels import FEW, Int64s, inline, kernel
from ps2.ops.table import Array

Wire = Literal["float16", "bfloat16"]
# NumPy has no bfloat16; arrays with one field of that name hold its bits.
BFLOAT16 = np.dtype([("bfloat16", "<u2")])

# A table of all float16 values. NumPy's casts take 3 times as long, and 20 to 100 times as long for numbers below
# float16's normal range, which are frequent among gradients.
FLOAT16_VALUES = readable(np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32))

MAX_KEY = 2**63 - 1
DELTA_DTYPES = tuple(np.dtype(name) for name in ("uint8", "uint16", "uint32", "uint64"))

INTEGERS = tuple(np.dtype(name) for name in ("int8", "int16", "int32", "int64"))
# Smaller arrays are sent unchanged: to find their range takes as long as to send them.
MIN_NARROWED_BYTES = 4 << 10
# The number of values that are checked first.
SAMPLE = 1024


def is_ascending(keys: Int64s) -> bool:
    """Return True if the keys ascend strictly."""
    if keys.size <= FEW:
        return bool((keys[1:] > keys[:-1]).all())
    return bool(_is_ascending(readable(keys)))


def pack_keys(keys: Int64s) -> tuple[int, Array]:
    """Return the first key, and the differences between successive keys in the narrowest dtype that fits all.

    The dtype is uint8, uint16, uint32 or uint64; int64 if the keys do not ascend.
    """
    if not keys.size:
        raise ShapeError("keys: expected at least 1 to pack, got none")
    keys = readable(keys)
    if not is_ascending(keys):
        return int(keys[0]), np.diff(keys)
    if keys.size <= FEW:
        deltas = np.diff(keys)
        return int(keys[0]), deltas.astype(narrowest(int(deltas.max(initial=0))))
    deltas = np.empty(keys.size - 1, narrowest(int(_largest_delta(keys))))
    _pack(keys, deltas)
    return int(keys[0]), deltas


def narrowest(delta: int) -> np.dtype[Any]:
    """Return the narrowest dtype that fits differences up to ``delta``."""
    return next(dtype for dtype in DELTA_DTYPES if delta.bit_length() <= 8 * dtype.itemsize)


def unpack_keys(first: int, deltas: Array) -> Int64s:
    """Undo ``pack_keys``; raise ProtocolError for a negative key, or for equal successive keys of an ascending list."""
    if not 0 <= first <= MAX_KEY:
        raise ProtocolError(f"packed keys: the first key is {first}, outside [0, {MAX_KEY}]")
    if deltas.dtype in INTEGERS:
        return _summed(first, deltas)
    if deltas.dtype not in DELTA_DTYPES:
        raise ProtocolError(f"packed keys: expected deltas that are integers, got {deltas.dtype}")
    keys = np.empty(deltas.size + 1, dtype=np.int64)
    keys[0] = first
    position = _unpack(readable(deltas), keys)
    if position >= 0:
        raise ProtocolError(
            f"packed keys: the delta at position {position} is {deltas[position]}, "
            f"and the key before it is {keys[position]}; expected a delta from 1 to {MAX_KEY - int(keys[position])}"
        )
    return keys


def narrow_integers(array: Array) -> Array:
    """Return signed integers in the narrowest dtype that fits them; small arrays are returned unchanged."""
    if array.nbytes < MIN_NARROWED_BYTES:
        return array
    flat = array.reshape(-1)
    # A sample first: it rules out most arrays that cannot be narrowed.
    for values in (flat[:SAMPLE], flat):
        low, high = values.min(), values.max()
        dtype = next(dtype for dtype in INTEGERS if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max)
        if dtype.itemsize >= array.itemsize:
            return array
    return array.astype(dtype)


def _summed(first: int, deltas: Array) -> Int64s:
    keys = np.empty(deltas.size + 1, dtype=np.int64)
    keys[0] = first
    np.cumsum(deltas, dtype=np.int64, out=keys[1:])
    keys[1:] += first  # if the sum overflows, the result is negative, or correct after all
    if keys.min() < 0:
        raise ProtocolError(f"packed keys: key {keys.min()} is outside [0, {MAX_KEY}]")
    return keys


def narrow(array: Array, wire: Wire) -> Array:
    """Return float32 or float64 numbers as 16-bit floats: ``to_float16`` or ``to_bfloat16``."""
    return to_float16(array) if wire == "float16" else to_bfloat16(array)


def widen(array: Array, dtype: npt.DTypeLike) -> Array:
    """Convert the 16-bit floats of ``narrow`` to float32 or float64, exactly."""
    if array.dtype == BFLOAT16:
        return from_bfloat16(array, dtype)
    if array.dtype == np.float16:
        return from_float16(array, dtype)
    raise DTypeError(f"expected float16 or bfloat16 numbers to widen, got {array.dtype}")


def to_bfloat16(array: Array) -> Array:
    """Round float32 or float64 to the nearest bfloat16, ties to even; return an array of dtype ``BFLOAT16``.

    The relative error is at most 2**-8; below 2**-126 the absolute error is at most 2**-134. Numbers from about
    3.396e38 on become infinite, as IEEE 754 prescribes. Infinities and NaN do not change.
    """
    out = np.empty(array.size, dtype=np.uint16)
    _to_bfloat16(_floats(array), out)
    return out.view(BFLOAT16)


def from_bfloat16(array: Array, dtype: npt.DTypeLike) -> Array:
    """Return bfloat16 numbers as float32 or float64, exactly."""
    out = np.empty(array.size, dtype=np.float32)
    _from_bfloat16(readable(array).view(np.uint16), out.view(np.uint32))
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        return out.astype(dtype, copy=False)


def to_float16(array: Array) -> Array:
    """Round float32 or float64 to the nearest float16, ties to even.

    The relative error is at most 2**-11. Below 2**-14, the end of float16's normal range, the absolute error is at most
    2**-25, and smaller numbers become 0. Infinities and NaN do not change. Finite numbers of 65520 or more, which would
    become infinite, raise OutOfRangeError.
    """
    out = np.empty(array.size, dtype=np.uint16)
    if _to_float16(_floats(array), out):
        _raise_too_large(array)
    return out.view(np.float16)


def from_float16(array: Array, dtype: npt.DTypeLike) -> Array:
    """Return float16 numbers as float32 or float64, exactly."""
    out = np.empty(array.size, dtype=dtype)
    _look_up(FLOAT16_VALUES, readable(array).view(np.uint16), out)
    return out


def _floats(array: Array) -> Array:
    if array.dtype not in (np.float32, np.float64):
        raise DTypeError(f"expected float32 or float64 numbers to narrow, got {array.dtype}")
    return readable(array)


def _raise_too_large(array: Array) -> NoReturn:
    position = int(np.argmax(np.isfinite(array) & (np.abs(array) >= 65520)))
    raise OutOfRangeError(f"{array[position]!s} (at position {position}) does not fit float16, which ends at 65504")


@kernel
def _is_ascending(keys: Int64s) -> bool:
    i = 1
    while i < keys.size and keys[i] > keys[i - 1]:
        i += 1
    return i >= keys.size


@kernel
def _largest_delta(keys: Int64s) -> np.uint64:
    largest = np.uint64(0)
    for i in range(1, keys.size):
        largest = max(largest, np.uint64(keys[i]) - np.uint64(keys[i - 1]))
    return largest


@kernel
def _pack(keys: Int64s, deltas: Array) -> None:
    for i in range(deltas.size):
        deltas[i] = keys[i + 1] - keys[i]


@kernel
def _unpack(deltas: Array, keys: Int64s) -> int:
    """Compute all keys after the first; return the position of the first difference that is 0 or too large, or -1."""
    key, last, one = np.uint64(keys[0]), np.uint64(MAX_KEY), np.uint64(1)
    for i in range(deltas.size):
        delta = np.uint64(deltas[i])
        # 0 - 1 wraps to the largest uint64, so one comparison finds deltas of 0 and deltas that are too large.
        if delta - one >= last - key:
            return i
        key += delta
        keys[i + 1] = key
    return -1


# A float32 has 1 sign bit, 8 exponent bits and 23 fraction bits. Constants are uint32; others would widen the loops.
U = np.uint32
ONE = U(1)
MAGNITUDE = U(0x7FFFFFFF)
INFINITE = U(0x7F800000)


@inline
def _float32_bits(x: Any) -> np.uint32:
    """Return the bits of x rounded to float32 by rounding to odd: an inexact result has the last bit 1.

    A second rounding, to 16 bits, then gives the same result as rounding x directly.
    """
    single = np.float32(x)
    bits = np.float32(single).view(np.uint32)
    truncated = bits - U(abs(np.float64(single)) > abs(np.float64(x)))
    return truncated | U(np.float64(single) != np.float64(x))


@kernel
def _to_bfloat16(floats: Array, out: Array) -> None:
    for i in range(floats.size):
        bits = _float32_bits(floats[i])
        upper = bits >> U(16)
        # Round to nearest: add half of the last kept bit; a tie rounds up only if that bit is odd. A carry into the
        # exponent is correct.
        nearest = (bits + U(0x7FFF) + (upper & ONE)) >> U(16)
        out[i] = nearest if bits & MAGNITUDE <= INFINITE else upper | U(0x40)


@kernel
def _from_bfloat16(halves: Array, bits: Array) -> None:
    for i in range(halves.size):
        bits[i] = U(halves[i]) << U(16)


@kernel
def _to_float16(floats: Array, out: Array) -> np.uint32:
    """Round to float16; return 1 if a finite number became infinite, else 0."""
    too_large = U(0)
    for i in range(floats.size):
        bits = _float32_bits(floats[i])
        magnitude = bits & MAGNITUDE
        # The exponent's bias changes from 127 to 15, and the last 13 bits of the fraction are rounded away.
        normal = (magnitude - U(112 << 23) + U(0xFFF) + ((magnitude >> U(13)) & ONE)) >> U(13)
        # Below 2**-14 all numbers are multiples of 2**-24.
        multiple = np.rint(min(np.uint32(magnitude).view(np.float32), np.float32(1)) * np.float32(2**24))
        half = normal if magnitude >= U(113 << 23) else U(np.int32(multiple))
        if magnitude >= U(143 << 23):
            half = U(0x7C00) if magnitude <= INFINITE else U(0x7E00)
        # 0x477FF000 is 65520.
        too_large |= U((magnitude >= U(0x477FF000)) & (magnitude < INFINITE))
        out[i] = ((bits >> U(16)) & U(0x8000)) | half
    return too_large


@kernel
def _look_up(table: Array, halves: Array, out: Array) -> None:
    for i in range(halves.size):
        out[i] = table[halves[i]]
