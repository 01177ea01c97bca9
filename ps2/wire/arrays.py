"""The forms in which arrays travel: floats in 16 bits if asked for, integers in the narrowest width that holds them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ps2.errors import ProtocolError
from ps2.matrix.partition import Wire
from ps2.ops.packing import BFLOAT16, narrow, narrow_integers, widen
from ps2.wire.messages import Array, Coming
from ps2.wire.pb import server_pb2 as pb

DTYPE_TO_PB: dict[np.dtype[Any], pb.DType] = {
    np.dtype("<f4"): pb.FLOAT32,
    np.dtype("<f8"): pb.FLOAT64,
    np.dtype("i1"): pb.INT8,
    np.dtype("<i2"): pb.INT16,
    np.dtype("<i4"): pb.INT32,
    np.dtype("<i8"): pb.INT64,
    np.dtype("u1"): pb.UINT8,
    np.dtype("<u2"): pb.UINT16,
    np.dtype("<u4"): pb.UINT32,
    np.dtype("<u8"): pb.UINT64,
    np.dtype("<f2"): pb.FLOAT16,
    BFLOAT16: pb.BFLOAT16,
}
PB_TO_DTYPE = {number: dtype for dtype, number in DTYPE_TO_PB.items()}
MAX_DIMENSIONS = 4  # of one array
HALVES = (np.dtype(np.float16), BFLOAT16)


class Spec(NamedTuple):
    """An array that is to come: of ``dtype`` and flat on the way, of ``stored`` and ``shape`` once it is here."""

    dtype: np.dtype[Any]
    size: int
    stored: np.dtype[Any]
    shape: tuple[int, ...]


def to_send(array: Array, wire: Wire | None) -> tuple[Array, pb.ArraySpec]:
    """Return an array as it travels, and what the header says of it."""
    sent = np.ascontiguousarray(array)
    if wire is not None and array.dtype.kind == "f":
        sent = narrow(sent.reshape(-1), wire)
    elif array.dtype.kind == "i":
        sent = narrow_integers(sent)
    spec = plain_spec(sent.reshape(array.shape))
    if sent.dtype != array.dtype and array.dtype.kind == "i":
        spec.stored = DTYPE_TO_PB[array.dtype]
    return sent, spec


def plain_spec(array: Array | Coming) -> pb.ArraySpec:
    """Return what the header says of an array that travels as it is."""
    shape = array.shape if len(array.shape) > 1 else ()
    return pb.ArraySpec(dtype=DTYPE_TO_PB[array.dtype], count=array.size, shape=shape)


def spec_of(message: pb.ArraySpec) -> Spec:
    """Return what a header says of an array; raises ProtocolError if that cannot be."""
    dtype = PB_TO_DTYPE.get(message.dtype)
    if dtype is None:
        raise ProtocolError(f"an array of unknown dtype {message.dtype}")
    if not message.stored:
        return Spec(dtype, message.count, np.dtype(np.float32) if dtype in HALVES else dtype, shape_of(message))
    stored = PB_TO_DTYPE.get(message.stored)
    if stored is None or stored.kind != "i" or dtype.kind != "i" or stored.itemsize <= dtype.itemsize:
        raise ProtocolError(f"an array of {dtype} cannot become one of dtype {message.stored}")
    return Spec(dtype, message.count, stored, shape_of(message))


def shape_of(message: pb.ArraySpec) -> tuple[int, ...]:
    """Return the shape of an array; raises ProtocolError if that is not of so many elements."""
    if not message.shape:
        return (message.count,)
    if len(message.shape) > MAX_DIMENSIONS or math.prod(message.shape) != message.count:
        raise ProtocolError(f"an array of {message.count} elements, and of shape {tuple(message.shape)}")
    return tuple(message.shape)


def total(specs: Sequence[Spec]) -> int:
    """Return the bytes that arrays take on the way."""
    return sum(spec.dtype.itemsize * spec.size for spec in specs)


def cut(specs: Sequence[Spec], data: memoryview) -> list[Array]:
    """Return arrays that lie end to end, as views."""
    arrays, at = [], 0
    for dtype, size, *_ in specs:
        arrays.append(np.frombuffer(data, dtype, size, at) if size else np.empty(0, dtype))
        at += dtype.itemsize * size
    return arrays


def stored(array: Array, spec: Spec) -> Array:
    """Return an array that has come in the dtype and the shape that it is to have here."""
    wide = widen(array, spec.stored) if array.dtype in HALVES else array.astype(spec.stored, copy=False)
    return wide.reshape(spec.shape)


def landing(spec: Spec, into: Array | None) -> Array:
    """Return what an array is read into: the caller's own memory, unless it has to be converted or scattered."""
    if into is None:
        return allocate(spec.dtype, spec.size)
    fits = into.dtype == spec.stored or (spec.dtype in HALVES and into.dtype.kind == "f")
    if into.size != spec.size or not fits:
        raise ProtocolError(f"expected {into.size} {into.dtype} in reply, got {spec.size} {spec.stored}")
    if into.dtype == spec.dtype and into.flags.c_contiguous:
        return into
    return allocate(spec.dtype, spec.size)


def delivered(array: Array, spec: Spec, into: Array | None) -> Array:
    """Return what has been read into its ``landing``, where the caller wants it."""
    if into is None:
        return stored(array, spec)
    if array is not into:
        into[...] = (widen(array, into.dtype) if array.dtype in HALVES else array).reshape(into.shape)
    return into


def allocate(dtype: np.dtype[Any], count: int) -> Array:
    try:
        return np.empty(count, dtype)
    except (MemoryError, OverflowError, ValueError) as error:
        raise ProtocolError(f"an array of {count} {dtype} cannot be had: {error}") from error
