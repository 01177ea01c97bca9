"""Plain data that drivers and workers tell each other, encoded as the contract's ``PlainData``; no pickle.

Plain data are None, bools, integers of 64 bits, floats, strings, NumPy arrays of booleans and numbers, and lists and
dicts (with strings for keys) of these. Tuples arrive as lists, and NumPy's scalars as Python's numbers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from ps2.config import WireConfig
from ps2.errors import LimitError, ProtocolError, UsageError
from ps2.protocol.pb import run_pb2 as pb

# Bytes of one value: a message, a report, a pickled result of a worker.
LIMIT_BYTES = WireConfig().request_limit_bytes
INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
DTYPES = frozenset(["bool", *INTEGERS, "float16", "float32", "float64"])
# Lists and dicts inside one another. Protobuf reads 100 messages inside one another, and a dict takes three.
MOST_LEVELS = 24
EXPECTED = "None, a bool, a number, a string, a NumPy array of numbers, or a list or dict of these"


def encode(name: str, value: object) -> bytes:
    """Encode plain data.

    Args:
        name: of the value, for errors.

    Raises:
        UsageError: a part of it is no plain data; names that part.
        LimitError: it takes more than ``LIMIT_BYTES``.
    """
    message = pb.PlainData()
    _fill(message, value, name, 0)
    if (size := message.ByteSize()) > LIMIT_BYTES:
        raise LimitError(
            f"{name}: expected at most {LIMIT_BYTES:,} bytes, got {size:,}: what is large belongs into vectors"
        )
    return message.SerializeToString()


def decode(encoded: bytes) -> Any:
    """Return what was encoded; arrays can be read only.

    Raises:
        ProtocolError: the bytes are no plain data.
    """
    try:
        return _value(pb.PlainData.FromString(encoded))
    except DecodeError as error:
        raise ProtocolError(f"plain data cannot be read: {error}") from error


def _fill(message: pb.PlainData, value: Any, name: str, level: int) -> None:
    if level > MOST_LEVELS:
        raise UsageError(f"{name}: expected at most {MOST_LEVELS} lists and dicts inside one another")
    if value is None:
        message.none = True
    elif isinstance(value, (bool, np.bool_)):
        message.flag = bool(value)
    elif isinstance(value, (int, np.integer)):
        if not -(2**63) <= value < 2**63:
            raise UsageError(f"{name}: expected an integer of 64 bits with a sign, got {value!r}")
        message.integer = int(value)
    elif isinstance(value, (float, np.float16, np.float32)):
        message.number = float(value)
    elif isinstance(value, str):
        try:
            message.text = value
        except ValueError as error:
            raise UsageError(f"{name}: expected a string of Unicode characters, got {value!r}") from error
    elif isinstance(value, np.ndarray):
        _fill_array(message.array, value, name)
    elif isinstance(value, (list, tuple)):
        message.list.SetInParent()
        for number, item in enumerate(value):
            _fill(message.list.items.add(), item, f"{name}[{number}]", level + 1)
    elif isinstance(value, dict):
        message.dict.SetInParent()
        for key, item in value.items():
            if not isinstance(key, str):
                raise UsageError(f"{name}: expected strings for the keys of a dict, got {key!r}")
            entry = message.dict.items.add(key=key)
            _fill(entry.value, item, f"{name}[{key!r}]", level + 1)
    else:
        raise UsageError(f"{name}: expected {EXPECTED}, got {type(value).__name__} {value!r:.80}")


def _fill_array(message: pb.PlainData.Array, value: np.ndarray[Any, Any], name: str) -> None:
    if type(value) is not np.ndarray or value.dtype.name not in DTYPES:
        raise UsageError(
            f"{name}: expected an array of one of {', '.join(sorted(DTYPES))}, got {type(value).__name__} of "
            f"{value.dtype}"
        )
    if value.nbytes > LIMIT_BYTES:
        raise LimitError(
            f"{name}: expected at most {LIMIT_BYTES:,} bytes, got {value.nbytes:,}: what is large belongs into vectors"
        )
    message.dtype = value.dtype.name
    message.shape.extend(value.shape)
    message.data = value.astype(value.dtype.newbyteorder("<"), copy=False).tobytes()


def _value(message: pb.PlainData) -> Any:
    kind = message.WhichOneof("kind")
    if kind in ("flag", "integer", "number", "text"):
        return getattr(message, kind)
    if kind == "none":
        return None
    if kind == "array":
        return _array(message.array)
    if kind == "list":
        return [_value(item) for item in message.list.items]
    if kind == "dict":
        return {item.key: _value(item.value) for item in message.dict.items}
    raise ProtocolError("plain data of no kind")


def _array(message: pb.PlainData.Array) -> np.ndarray[Any, Any]:
    if message.dtype not in DTYPES:
        raise ProtocolError(f"an array of dtype {message.dtype!r}: expected one of {', '.join(sorted(DTYPES))}")
    dtype, shape = np.dtype(message.dtype).newbyteorder("<"), tuple(message.shape)
    if math.prod(shape) * dtype.itemsize != len(message.data):
        raise ProtocolError(f"an array of {message.dtype} with shape {shape} has {len(message.data)} bytes")
    try:
        return np.frombuffer(message.data, dtype).reshape(shape)
    except ValueError as error:  # more dimensions than NumPy has, or a length beyond its integers
        raise ProtocolError(f"an array of {message.dtype} with shape {shape}: {error}") from error
