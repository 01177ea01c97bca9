"""Compact encodings of arrays in messages: differences of keys, small integer dtypes, and 16-bit floats.

Receivers do not trust senders: ``unpack_keys`` checks every difference. float16 has 11 bits of precision, and values up
to 65504; bfloat16 has 8 bits of precision, and the range of float32.
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
# NumPy has no bfloat16. A structured dtype with one field contains its bits.
BFLOAT16 = np.dtype([("bfloat16", "<u2")])

# All float16 values as float32, by their bits. NumPy's casts take 3 times as long, and 20 to 100 times as long for
# subnormal values, which are frequent among gradients.
FLOAT16_VALUES = readable(np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32))

MAX_KEY = 2**63 - 1
DELTA_DTYPES = tuple(np.dtype(name) for name in ("uint8", "uint16", "uint32", "uint64"))

INTEGERS = tuple(np.dtype(name) for name in ("int8", "int16", "int32", "int64"))
# Smaller arrays are sent unchanged, because the search for their minimum and maximum takes as long as sending them.
MIN_NARROWED_BYTES = 4 << 10
# ``narrow_integers`` first examines so many elements of an array.
SAMPLE = 1024


def is_ascending(keys: Int64s) -> bool:
    """Return True if the keys are strictly ascending."""
    if keys.size <= FEW:
        return bool((keys[1:] > keys[:-1]).all())
    return bool(_is_ascending(readable(keys)))


def pack_keys(keys: Int64s) -> tuple[int, Array]:
    """Return the first key, and the differences between successive keys in the smallest possible dtype.

    The dtype is uint8, uint16, uint32 or uint64; int64 if the keys are not strictly ascending.
    """
    if not keys.size:
        raise ShapeError("keys: expected at least one key, got none")
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
    """Return the smallest unsigned dtype for differences up to ``delta``."""
    return next(dtype for dtype in DELTA_DTYPES if delta.bit_length() <= 8 * dtype.itemsize)


def unpack_keys(first: int, deltas: Array) -> Int64s:
    """Return the keys that ``pack_keys`` has encoded.

    Raises ProtocolError if a key is negative, or if keys with unsigned differences are not strictly ascending.
    """
    if not 0 <= first <= MAX_KEY:
        raise ProtocolError(f"packed keys: the first key is {first}, outside [0, {MAX_KEY}]")
    if deltas.dtype in INTEGERS:
        return _cumulative_keys(first, deltas)
    if deltas.dtype not in DELTA_DTYPES:
        raise ProtocolError(f"packed keys: expected deltas of an integer dtype, got {deltas.dtype}")
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
    """Return signed integers in the smallest dtype that can represent them; return small arrays unchanged."""
    if array.nbytes < MIN_NARROWED_BYTES:
        return array
    flat = array.reshape(-1)
    # Examine a sample first: it excludes most arrays that need their dtype.
    for values in (flat[:SAMPLE], flat):
        low, high = values.min(), values.max()
        dtype = next(dtype for dtype in INTEGERS if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max)
        if dtype.itemsize >= array.itemsize:
            return array
    return array.astype(dtype)


def _cumulative_keys(first: int, deltas: Array) -> Int64s:
    keys = np.empty(deltas.size + 1, dtype=np.int64)
    keys[0] = first
    np.cumsum(deltas, dtype=np.int64, out=keys[1:])
    keys[1:] += first  # an overflow makes the key negative, unless another overflow corrects it
    if keys.min() < 0:
        raise ProtocolError(f"packed keys: key {keys.min()} is outside [0, {MAX_KEY}]")
    return keys


def narrow(array: Array, wire: Wire) -> Array:
    """Return float32 or float64 values as 16-bit floats; see ``to_float16`` and ``to_bfloat16``."""
    return to_float16(array) if wire == "float16" else to_bfloat16(array)


def widen(array: Array, dtype: npt.DTypeLike) -> Array:
    """Convert the 16-bit floats of ``narrow`` to float32 or float64, exactly."""
    if array.dtype == BFLOAT16:
        return from_bfloat16(array, dtype)
    if array.dtype == np.float16:
        return from_float16(array, dtype)
    raise DTypeError(f"expected float16 or bfloat16, got {array.dtype}")


def to_bfloat16(array: Array) -> Array:
    """Round float32 or float64 to the nearest bfloat16, ties to even; return an array of dtype ``BFLOAT16``.

    The relative error is at most 2**-8; below 2**-126 the absolute error is at most 2**-134. Values from about
    3.396e38 on become infinite, as IEEE 754 prescribes. Infinities and NaN do not change.
    """
    out = np.empty(array.size, dtype=np.uint16)
    _to_bfloat16(_floats(array), out)
    return out.view(BFLOAT16)


def from_bfloat16(array: Array, dtype: npt.DTypeLike) -> Array:
    """Return bfloat16 values as float32 or float64, exactly."""
    out = np.empty(array.size, dtype=np.float32)
    _from_bfloat16(readable(array).view(np.uint16), out.view(np.uint32))
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        return out.astype(dtype, copy=False)


def to_float16(array: Array) -> Array:
    """Round float32 or float64 to the nearest float16, ties to even.

    The relative error is at most 2**-11. Below 2**-14, the minimum of float16's normal range, the absolute error is at
    most 2**-25. Infinities and NaN do not change. Raises OutOfRangeError if a finite value is 65520 or more: it would
    become infinite.
    """
    out = np.empty(array.size, dtype=np.uint16)
    if _to_float16(_floats(array), out):
        _raise_too_large(array)
    return out.view(np.float16)


def from_float16(array: Array, dtype: npt.DTypeLike) -> Array:
    """Return float16 values as float32 or float64, exactly."""
    out = np.empty(array.size, dtype=dtype)
    _look_up(FLOAT16_VALUES, readable(array).view(np.uint16), out)
    return out


def _floats(array: Array) -> Array:
    if array.dtype not in (np.float32, np.float64):
        raise DTypeError(f"expected float32 or float64, got {array.dtype}")
    return readable(array)


def _raise_too_large(array: Array) -> NoReturn:
    position = int(np.argmax(np.isfinite(array) & (np.abs(array) >= 65520)))
    raise OutOfRangeError(f"{array[position]!s} (at position {position}) does not fit float16, whose maximum is 65504")


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
    """Compute all keys after the first one; return the index of the first invalid difference, or -1."""
    key, last, one = np.uint64(keys[0]), np.uint64(MAX_KEY), np.uint64(1)
    for i in range(deltas.size):
        delta = np.uint64(deltas[i])
        # 0 - 1 wraps around to the largest uint64, so one comparison detects deltas of 0 and too large deltas.
        if delta - one >= last - key:
            return i
        key += delta
        keys[i + 1] = key
    return -1


# A float32 has 1 sign bit, 8 exponent bits and 23 fraction bits. All constants are uint32: with int64 constants, loops
# would compute in int64.
U = np.uint32
ONE = U(1)
MAGNITUDE = U(0x7FFFFFFF)
INFINITE = U(0x7F800000)


@inline
def _float32_bits(x: Any) -> np.uint32:
    """Return the bits of x, rounded to odd in float32: the last bit of an inexact result is 1.

    After that, rounding to 16 bits has the same result as rounding x directly.
    """
    nearest = np.float32(x)
    bits = np.float32(nearest).view(np.uint32)
    truncated = bits - U(abs(np.float64(nearest)) > abs(np.float64(x)))
    return truncated | U(np.float64(nearest) != np.float64(x))


@kernel
def _to_bfloat16(floats: Array, out: Array) -> None:
    for i in range(floats.size):
        bits = _float32_bits(floats[i])
        upper = bits >> U(16)
        # Round to nearest: add half of the last remaining bit; a tie rounds up only if that bit is 1. A carry into the
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
        # Change the exponent's bias from 127 to 15 (by 112), and round away the last 13 bits of the fraction.
        normal = (magnitude - U(112 << 23) + U(0xFFF) + ((magnitude >> U(13)) & ONE)) >> U(13)
        # Below 2**-14, float16 values are multiples of 2**-24.
        multiple = np.rint(min(np.uint32(magnitude).view(np.float32), np.float32(1)) * np.float32(2**24))
        half = normal if magnitude >= U(113 << 23) else U(np.int32(multiple))
        if magnitude >= U(143 << 23):
            half = U(0x7C00) if magnitude <= INFINITE else U(0x7E00)
        # 0x477FF000 is 65520, the smallest value that rounds to infinity.
        too_large |= U((magnitude >= U(0x477FF000)) & (magnitude < INFINITE))
        out[i] = ((bits >> U(16)) & U(0x8000)) | half
    return too_large


@kernel
def _look_up(table: Array, halves: Array, out: Array) -> None:
    for i in range(halves.size):
        out[i] = table[halves[i]]
