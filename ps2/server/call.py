"""An operation of the table on one shard: give it the arrays that it asks for, and run it."""

from __future__ import annotations

import numpy as np

from ps2.errors import ConfigError, DTypeError, OutOfRangeError, ShapeError, UsageError
from ps2.ops.table import Array, Op
from ps2.server.keycache import KeySet
from ps2.server.shard import Shard
from ps2.wire.messages import Operation


def call(op: Op, operation: Operation, shard: Shard, keys: KeySet | None) -> Array | float | None:
    """Give an operation the arrays it asks for, and run it."""
    scalars = op.check(len(operation.rows), shard.spec.dtype, operation.params)
    travels = op.arrays if keys is None else tuple(kind for kind in op.arrays if kind != "slots")
    if len(operation.arrays) != len(travels) or (keys is not None and "slots" not in op.arrays):
        raise ShapeError(
            f"operation {op.name!r} takes {', '.join(op.arrays) or 'no arrays'}, got {len(operation.arrays)} arrays"
            f"{' and a set of keys' if keys is not None else ''}"
        )
    if op.writes and len(set(operation.rows)) < len(operation.rows) and len(op.operands) > 2:
        raise ConfigError(f"operation {op.name!r}: the same vector twice among rows {list(operation.rows)}")
    shard.check_rows(np.array(operation.rows, dtype=np.int64))
    rows = iter(operation.rows)
    arrays = iter(operation.arrays)
    operands: list[Array] = []
    # Slots first: new keys may move the array that the row views are cut from.
    given = iter(
        [
            keys.find(shard, op.creates)
            if kind == "slots" and keys is not None
            else _travelled(op, kind, next(arrays), shard, operation)
            for kind in op.arrays
        ]
    )
    for kind in op.operands:
        if kind == "row":
            operands.append(shard.row(next(rows)))
        elif kind == "block":
            operands.append(shard.array)
        else:
            operands.append(next(given))
    try:
        value: Array | float | None = shard.touched.call(op, operation.rows, operands, scalars)
    finally:
        if _writes_whole_rows(op):
            shard.clear_free([array for kind, array in zip(op.operands, operands, strict=True) if kind == "row_ids"])
    return value


def _writes_whole_rows(op: Op) -> bool:
    written = [op.operands[op.names.index(name)] for name in op.writes]
    return "block" in written and "slots" not in op.operands


def _travelled(op: Op, kind: str, array: Array, shard: Shard, operation: Operation) -> Array:
    if kind == "unsigned":
        if array.dtype.kind != "u":
            raise DTypeError(f"operation {op.name!r}: expected unsigned integers, got {array.dtype}")
        return array
    expected = {"values": shard.spec.np_dtype, "floats": np.dtype(np.float64)}.get(kind, np.dtype(np.int64))
    if operation.wire is not None and kind == "values" and array.dtype == np.float32:
        array = array.astype(expected, copy=False)  # it was made shorter for the way
    if array.dtype != expected:
        raise DTypeError(f"operation {op.name!r}: expected {kind} of {expected}, got {array.dtype}")
    if kind == "slots":
        return shard.slots(array, op.creates)
    if kind == "row_ids":
        shard.check_rows(array)
    return array


def keys_of(shard: Shard, operation: Operation) -> Array:
    """Return the keys of a sparse shard in the order of their slots, or some of them."""
    if shard.index is None:
        raise UsageError("operation 'keys' works on sparse vectors")
    start, stop = int(operation.params.get("start", 0)), int(operation.params.get("stop", -1))
    end = len(shard.index) if stop == -1 else stop
    if not 0 <= start <= end <= len(shard.index):
        raise OutOfRangeError(f"start and stop: expected 0 <= start <= stop <= {len(shard.index)}, got {start}, {stop}")
    return shard.index.keys[start:end].copy()
