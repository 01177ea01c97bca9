"""Plain data in messages between drivers and workers, encoded without pickle as ``PlainData`` of the .proto files.

Plain data are None, bools, 64-bit integers, floats, strings, NumPy arrays of booleans and numbers, and lists and dicts
(with string keys) of these. Tuples are decoded as lists, and NumPy scalars as Python numbers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from ps2.config import WireConfig
from ps2.errors import LimitError, ProtocolError, UsageError
from ps2.protocol.pb import run_pb2 as pb

# The limit of one value in bytes: of a message, a report, or a worker's pickled result.
LIMIT_BYTES = WireConfig().request_limit_bytes
INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
DTYPES = frozenset(["bool", *INTEGERS, "float16", "float32", "float64"])
# The limit of nested lists and dicts. Protobuf reads at most 100 nested messages, and a dict takes three messages.
MAX_LEVELS = 24
EXPECTED = "None, a bool, a number, a string, a NumPy array of numbers, or a list or dict of these"


def encode(name: str, value: object) -> bytes:
    """Encode plain data; raise UsageError for a part that is not plain data. ``name``: the value's name in errors."""
    message = pb.PlainData()
    _fill(message, value, name, 0)
    if (size := message.ByteSize()) > LIMIT_BYTES:
        raise LimitError(f"{name}: expected at most {LIMIT_BYTES:,} bytes, got {size:,}: use vectors for large data")
    return message.SerializeToString()


def decode(encoded: bytes) -> Any:
    """Return the value that was encoded; its arrays are read-only."""
    try:
        return _value(pb.PlainData.FromString(encoded))
    except DecodeError as error:
        raise ProtocolError(f"plain data cannot be decoded: {error}") from error


def _fill(message: pb.PlainData, value: Any, name: str, level: int) -> None:
    if level > MAX_LEVELS:
        raise UsageError(f"{name}: expected at most {MAX_LEVELS} nested lists and dicts, got more")
    if value is None:
        message.none = True
    elif isinstance(value, (bool, np.bool_)):
        message.flag = bool(value)
    elif isinstance(value, (int, np.integer)):
        if not -(2**63) <= value < 2**63:
            raise UsageError(f"{name}: expected a signed 64-bit integer, got {value!r}")
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
        for index, item in enumerate(value):
            _fill(message.list.items.add(), item, f"{name}[{index}]", level + 1)
    elif isinstance(value, dict):
        message.dict.SetInParent()
        for key, item in value.items():
            if not isinstance(key, str):
                raise UsageError(f"{name}: expected dict keys that are strings, got {key!r}")
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
            f"{name}: expected at most {LIMIT_BYTES:,} bytes, got {value.nbytes:,}: use vectors for large data"
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
    raise ProtocolError("plain data: expected a value of a known kind, got none")


def _array(message: pb.PlainData.Array) -> np.ndarray[Any, Any]:
    if message.dtype not in DTYPES:
        raise ProtocolError(f"an array of dtype {message.dtype!r}: expected one of {', '.join(sorted(DTYPES))}")
    dtype, shape = np.dtype(message.dtype).newbyteorder("<"), tuple(message.shape)
    if math.prod(shape) * dtype.itemsize != len(message.data):
        raise ProtocolError(f"an array of {message.dtype}: expected shape {shape}, got {len(message.data)} bytes")
    try:
        return np.frombuffer(message.data, dtype).reshape(shape)
    except ValueError as error:  # too many dimensions, or a length that is too large for NumPy
        raise ProtocolError(f"an array of {message.dtype} with shape {shape}: {error}") from error
