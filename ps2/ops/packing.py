"""Encodings of numbers in messages: differences of keys, narrow integers, and 16-bit floats.

The receiver of packed keys trusts no sender: ``unpack_keys`` checks every difference. Of the 16-bit floats, float16
keeps 11 bits of precision up to 65504; bfloat16 keeps 8 bits and has float32's range.
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

# A table of all float16 values. NumPy's casts take 3 times as long, and 20 to 100 times as long below float16's normal
# range, where many gradients are.
FLOAT16_VALUES = readable(np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32))

MAX_KEY = 2**63 - 1
DELTA_DTYPES = tuple(np.dtype(name) for name in ("uint8", "uint16", "uint32", "uint64"))

INTEGERS = tuple(np.dtype(name) for name in ("int8", "int16", "int32", "int64"))
# Smaller arrays are sent as they are: finding their range takes as long as sending them.
MIN_NARROWED_BYTES = 4 << 10
SAMPLE = 1024


def is_ascending(keys: Int64s) -> bool:
    """Return True if the keys ascend strictly."""
    if keys.size <= FEW:
        return bool((keys[1:] > keys[:-1]).all())
    return bool(_is_ascending(readable(keys)))


def pack_keys(keys: Int64s) -> tuple[int, Array]:
    """Return the first key, and the differences between successive keys in the narrowest dtype that holds them all.

    The len(keys) - 1 differences are uint8, uint16, uint32 or uint64; int64 if keys do not ascend.
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
    """Return the narrowest dtype that holds differences up to ``delta``."""
    return next(dtype for dtype in DELTA_DTYPES if delta.bit_length() <= 8 * dtype.itemsize)


def unpack_keys(first: int, deltas: Array) -> Int64s:
    """Return the keys that ``pack_keys`` packed; raise ProtocolError for a negative key, or a key that comes twice."""
    if not 0 <= first <= MAX_KEY:
        raise ProtocolError(f"packed keys: the first key is {first}, outside [0, {MAX_KEY}]")
    if deltas.dtype in INTEGERS:
        return _summed(first, deltas)
    if deltas.dtype not in DELTA_DTYPES:
        raise ProtocolError(f"packed keys: expected deltas that are integers, got {deltas.dtype}")
    keys = np.empty(deltas.size + 1, dtype=np.int64)
    keys[0] = first
    wrong = _unpack(readable(deltas), keys)
    if wrong >= 0:
        raise ProtocolError(
            f"packed keys: the delta at position {wrong} is {deltas[wrong]}, "
            f"and the key before it is {keys[wrong]}; expected a delta from 1 to {MAX_KEY - int(keys[wrong])}"
        )
    return keys


def narrow_integers(array: Array) -> Array:
    """Return signed integers in the narrowest dtype that holds them, or as they are if that gains little."""
    if array.nbytes < MIN_NARROWED_BYTES:
        return array
    flat = array.reshape(-1)
    # A sample first: it rules out most arrays that cannot be narrowed.
    for some in (flat[:SAMPLE], flat):
        low, high = some.min(), some.max()
        dtype = next(dtype for dtype in INTEGERS if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max)
        if dtype.itemsize >= array.itemsize:
            return array
    return array.astype(dtype)


def _summed(first: int, deltas: Array) -> Int64s:
    keys = np.empty(deltas.size + 1, dtype=np.int64)
    keys[0] = first
    np.cumsum(deltas, dtype=np.int64, out=keys[1:])
    keys[1:] += first  # a sum that overflows is negative, or correct after all
    if keys.min() < 0:
        raise ProtocolError(f"packed keys: key {keys.min()} is outside [0, {MAX_KEY}]")
    return keys


def narrow(array: Array, wire: Wire) -> Array:
    """Return float32 or float64 numbers as 16-bit floats: ``to_float16`` or ``to_bfloat16``."""
    return to_float16(array) if wire == "float16" else to_bfloat16(array)


def widen(array: Array, dtype: npt.DTypeLike) -> Array:
    """Return 16-bit floats that ``narrow`` made as float32 or float64; the conversion is exact."""
    if array.dtype == BFLOAT16:
        return from_bfloat16(array, dtype)
    if array.dtype == np.float16:
        return from_float16(array, dtype)
    raise DTypeError(f"expected float16 or bfloat16 numbers to widen, got {array.dtype}")


def to_bfloat16(array: Array) -> Array:
    """Round float32 or float64 to the nearest bfloat16, ties to even; return an array of dtype ``BFLOAT16``.

    The relative error is at most 2**-8; below 2**-126 the absolute error is at most 2**-134. Numbers from about
    3.396e38 on become infinite, as IEEE 754 prescribes. Infinities and NaN are kept.
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

    The relative error is at most 2**-11. Below 2**-14, the end of float16's normal range, the absolute error is at
    most 2**-25, and smaller numbers become 0. Infinities and NaN are kept. Finite numbers of 65520 or more would
    become infinite: OutOfRangeError.
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
    at = int(np.argmax(np.isfinite(array) & (np.abs(array) >= 65520)))
    raise OutOfRangeError(f"{array[at]!s} (at position {at}) does not fit float16, which ends at 65504")


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
        # 0 - 1 wraps to the largest uint64, so one comparison finds both faults.
        if delta - one >= last - key:
            return i
        key += delta
        keys[i + 1] = key
    return -1


# Bits of a float32: 1 sign, 8 exponent, 23 fraction. Constants are uint32, as others would widen the loops to int64.
U = np.uint32
ONE = U(1)
MAGNITUDE = U(0x7FFFFFFF)
INFINITE = U(0x7F800000)


@inline
def _float32_bits(x: Any) -> np.uint32:
    """Return the bits of x as float32; between two neighbours, those of the neighbour whose last bit is 1.

    This is rounding to odd: a second rounding to 16 bits then gives the same result as rounding x directly.
    """
    single = np.float32(x)
    bits = np.float32(single).view(np.uint32)
    cut = bits - U(abs(np.float64(single)) > abs(np.float64(x)))
    return cut | U(np.float64(single) != np.float64(x))


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
        size = bits & MAGNITUDE
        # The exponent's bias changes from 127 to 15, and the last 13 bits of the fraction are rounded away.
        normal = (size - U(112 << 23) + U(0xFFF) + ((size >> U(13)) & ONE)) >> U(13)
        # Below 2**-14 all numbers are multiples of 2**-24.
        multiple = np.rint(min(np.uint32(size).view(np.float32), np.float32(1)) * np.float32(2**24))
        half = normal if size >= U(113 << 23) else U(np.int32(multiple))
        if size >= U(143 << 23):
            half = U(0x7C00) if size <= INFINITE else U(0x7E00)
        # 0x477FF000 is 65520.
        too_large |= U((size >= U(0x477FF000)) & (size < INFINITE))
        out[i] = ((bits >> U(16)) & U(0x8000)) | half
    return too_large


@kernel
def _look_up(table: Array, halves: Array, out: Array) -> None:
    for i in range(halves.size):
        out[i] = table[halves[i]]
