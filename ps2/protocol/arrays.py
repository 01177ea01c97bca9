"""Encodings of arrays in messages: optional 16-bit floats, and integers in the narrowest dtype that fits them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ps2.errors import ProtocolError
from ps2.matrix.partition import Wire
from ps2.ops.packing import BFLOAT16, narrow, narrow_integers, widen
from ps2.protocol.messages import Array, StreamedArray

# The numbers of dtypes in ``DType`` of the .proto files; 0 means no dtype.
DTYPE_NUMBERS: dict[np.dtype[Any], int] = {
    np.dtype("<f4"): 1,
    np.dtype("<f8"): 2,
    np.dtype("<i8"): 3,
    np.dtype("u1"): 4,
    np.dtype("<u2"): 5,
    np.dtype("<u4"): 6,
    np.dtype("<u8"): 7,
    np.dtype("<f2"): 8,
    BFLOAT16: 9,
    np.dtype("<i4"): 10,
    np.dtype("<i2"): 11,
    np.dtype("i1"): 12,
}
DTYPES_BY_NUMBER = {number: dtype for dtype, number in DTYPE_NUMBERS.items()}
WIRE_NUMBERS: dict[Wire | None, int] = {None: 0, "float16": 8, "bfloat16": 9}
WIRES_BY_NUMBER = {number: wire for wire, number in WIRE_NUMBERS.items()}
MAX_DIMENSIONS = 4  # of one array
FLOAT16_DTYPES = (np.dtype(np.float16), BFLOAT16)


class Spec(NamedTuple):
    """The description of an array in a message."""

    dtype: np.dtype[Any]  # in the message
    size: int  # number of elements
    stored: np.dtype[Any]  # the dtype after decoding
    shape: tuple[int, ...]  # the shape after decoding

    @property
    def stored_number(self) -> int:
        """The number of ``stored`` if it is a wider integer dtype than ``dtype``, else 0."""
        return DTYPE_NUMBERS[self.stored] if self.stored != self.dtype and self.stored.kind == "i" else 0


def to_send(array: Array, wire: Wire | None) -> tuple[Array, Spec]:
    """Return an array as it is sent in a message, and its description."""
    sent = np.ascontiguousarray(array)
    if wire is not None and array.dtype.kind == "f":
        sent = narrow(sent.reshape(-1), wire)
        return sent, Spec(sent.dtype, sent.size, np.dtype(np.float32), array.shape)
    if array.dtype.kind == "i":
        sent = narrow_integers(sent)
    return sent, Spec(sent.dtype, sent.size, array.dtype, array.shape)


def plain_spec(array: Array | StreamedArray) -> Spec:
    """Return the description of an array that is sent unchanged."""
    return Spec(array.dtype, array.size, array.dtype, array.shape)


def declared_spec(dtype_number: int, stored_number: int, count: int, shape: tuple[int, ...]) -> Spec:
    """Return an array's description from the fields of a header; raise ProtocolError if they are invalid.

    ``stored_number``: see ``Spec.stored_number``. ``shape``: empty for an array of one dimension.
    """
    dtype = DTYPES_BY_NUMBER.get(dtype_number)
    if dtype is None:
        raise ProtocolError(f"an array of unknown dtype {dtype_number}")
    if shape and (len(shape) > MAX_DIMENSIONS or math.prod(shape) != count):
        raise ProtocolError(f"an array of {count} elements cannot have shape {shape}")
    shape = shape or (count,)
    if not stored_number:
        return Spec(dtype, count, np.dtype(np.float32) if dtype in FLOAT16_DTYPES else dtype, shape)
    stored = DTYPES_BY_NUMBER.get(stored_number)
    if stored is None or stored.kind != "i" or dtype.kind != "i" or stored.itemsize <= dtype.itemsize:
        raise ProtocolError(f"an array of {dtype} cannot be converted to dtype {stored_number}")
    return Spec(dtype, count, stored, shape)


def total_bytes(specs: Sequence[Spec]) -> int:
    """Return the size of arrays in a message, in bytes."""
    return sum(spec.dtype.itemsize * spec.size for spec in specs)


def split_arrays(specs: Sequence[Spec], data: memoryview) -> list[Array]:
    """Return views of arrays that are stored one after the other in ``data``."""
    arrays, offset = [], 0
    for dtype, size, *_ in specs:
        arrays.append(np.frombuffer(data, dtype, size, offset) if size else np.empty(0, dtype))
        offset += dtype.itemsize * size
    return arrays


def decode_array(array: Array, spec: Spec) -> Array:
    """Return a received array in its stored dtype and shape."""
    converted = widen(array, spec.stored) if array.dtype in FLOAT16_DTYPES else array.astype(spec.stored, copy=False)
    return converted.reshape(spec.shape)


def receive_array(spec: Spec, into: Array | None) -> Array:
    """Return the array to receive into: the caller's ``into``, or a new array if ``into`` does not fit."""
    if into is not None:
        fits = into.dtype == spec.stored or (spec.dtype in FLOAT16_DTYPES and into.dtype.kind == "f")
        if into.size != spec.size or not fits:
            raise ProtocolError(
                f"expected {into.size} elements of {into.dtype} in the reply, got {spec.size} of {spec.stored}"
            )
        if into.dtype == spec.dtype and into.flags.c_contiguous:
            return into
    return allocate(spec.dtype, spec.size)


def deliver(array: Array, spec: Spec, into: Array | None) -> Array:
    """Copy a received array into the caller's ``into``, and return it. None: return the decoded array."""
    if into is None:
        return decode_array(array, spec)
    if array is not into:
        into[...] = (widen(array, into.dtype) if array.dtype in FLOAT16_DTYPES else array).reshape(into.shape)
    return into


def allocate(dtype: np.dtype[Any], count: int) -> Array:
    try:
        return np.empty(count, dtype)
    except (MemoryError, OverflowError, ValueError) as error:
        raise ProtocolError(f"an array of {count} elements of {dtype} cannot be allocated: {error}") from error
