"""Runs an ``@op`` operation on its shards, after a check of the request against the operation's declaration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any

import numpy as np

from ps2.array_types import Int64s
from ps2.errors import ConfigError, DTypeError, OutOfRangeError, ShapeError, UsageError
from ps2.ops.declaration import SHARD_KINDS
from ps2.ops.initial import fill_initial
from ps2.ops.operands import BLOCK, SLOTS, Along, lengths
from ps2.ops.table import Array, Op
from ps2.protocol.messages import NO_RESULT, Operation, Result
from ps2.server.keycache import KeySet
from ps2.server.shard import Shard, contiguous_rows, with_shards

Value = Array | float | tuple[Array, ...] | None


def call(op: Op, operation: Operation, shards: Sequence[Shard], keys: KeySet | None) -> Value:
    """Check a request's arrays against the operation's declaration, run the operation, and return its result.

    ``keys``: the request's key set, which replaces the array of slots; None if the request has that array.
    """
    shard = shards[0]
    other_dtypes = [other.spec.dtype for other in shards[1:]] if operation.others else None
    scalars = op.check(len(operation.rows), shard.spec.dtype, operation.params, other_dtypes)
    array_operands = [operand for operand in op.request_operands if keys is None or operand[1] != "slots"]
    if len(operation.arrays) != len(array_operands) or (keys is not None and "slots" not in op.arrays):
        raise ShapeError(
            f"operation {op.name!r} takes {', '.join(op.arrays) or 'no arrays'}, got {len(operation.arrays)} arrays"
            f"{' and a set of keys' if keys is not None else ''}"
        )
    is_single = all(other is shard for other in shards)
    row_shards = shards[:1]
    if not is_single:
        row_shards = [other for name, other in zip(op.reads, shards, strict=True) if name in op.row_names]
    distinct_rows = set(operation.rows if is_single else with_shards(row_shards, operation.rows))
    if op.writes and len(distinct_rows) < len(operation.rows) and len(op.operands) > 2:
        raise ConfigError(f"operation {op.name!r}: expected distinct vectors, got rows {list(operation.rows)}")
    if is_single:  # with several shards, ``contiguous_rows`` checks the rows, before any change: all shards are dense
        for row_id in operation.rows:
            shard.check_row(row_id)
    arrays = [
        _check_array(op, operand, array, shard, operation)
        for operand, array in zip(array_operands, operation.arrays, strict=True)
    ]
    shapes = {name: (along, array.shape) for (name, _, along), array in zip(array_operands, arrays, strict=True)}
    known_lengths = {BLOCK: shard.rows} if keys is None else {BLOCK: shard.rows, "slots": keys.count}
    lengths(f"operation {op.name!r}", shapes, known_lengths)
    # Find the slots before the row views are created: adding keys may reallocate the shard's array.
    if keys is not None:
        arrays.insert(op.arrays.index("slots"), keys.slots_on(shard, op.creates))
    request_arrays = iter(arrays)
    operands: list[Any] = []
    with contiguous_rows(row_shards, operation.rows, bool(op.writes)) as rows:
        views, owners = iter(rows), repeat(shard) if is_single else iter(shards)
        for kind in op.operands:
            owner = next(owners) if kind in SHARD_KINDS else shard
            if kind == "row":
                operands.append(next(views))
            elif kind in SHARD_KINDS:
                operands.append(_shard_values(op, kind, owner))
            elif kind == "partition":
                operands.append(shard.partition)
            else:
                operands.append(next(request_arrays))
        if is_single:
            value = _run(op, operation, shard, operands, scalars)
            policy = shard.spec.key_policy
            if op.initial and policy is not None and not policy.initial.is_zero:  # absent keys have initial values
                slots = operands[op.operands.index("slots")]
                columns = (
                    keys.columns_on(shard)
                    if keys is not None
                    else operation.arrays[op.arrays.index("slots")].reshape(-1)
                )
                _fill_absent(op, operation, shard, columns, slots, value)
            return value
        return _run_across(op, operation, shards, operands, scalars)


def _shard_values(op: Op, kind: str, shard: Shard) -> Array:
    """Return all values of a shard in the layout that the operation expects."""
    if kind == "blocks":
        return shard.blocks
    if shard.spec.layout == "column":
        raise UsageError(
            f"operation {op.name!r} works on whole rows, which are not contiguous with layout 'column': name columns "
            "or a single row, or create the matrix with layout='row'"
        )
    return shard.array


def _run(op: Op, operation: Operation, shard: Shard, operands: Sequence[Any], scalars: Mapping[str, Any]) -> Value:
    try:
        value: Value = shard.touched.call(op, operation.rows, operands, scalars)
    finally:
        written = [op.operands[op.names.index(name)] for name in op.writes]
        if "block" in written and "slots" not in op.operands:
            shard.clear_free([array for kind, array in zip(op.operands, operands, strict=True) if kind == "row_ids"])
    return _without_views(value, shard)


def _run_across(
    op: Op, operation: Operation, shards: Sequence[Shard], operands: Sequence[Any], scalars: Mapping[str, Any]
) -> Value:
    """Run an operation on several matrices. It reads all columns, and does not skip columns that were never touched."""
    rows = dict(zip(op.row_names, operation.rows, strict=True))
    for name, shard in zip(op.reads, shards, strict=True):
        if name in op.writes and name in rows:
            shard.touched.drop([rows[name]])
        elif name in op.writes:
            shard.touched.drop_all()
    value: Value = op.fn(*operands, **scalars)
    for shard in shards:
        value = _without_views(value, shard)
    return value


def _without_views(value: Value, shard: Shard) -> Value:
    """Return the value with copies of views of the shard, because the reply is sent after the lock is released."""
    if isinstance(value, tuple):
        return tuple(array.copy() if np.may_share_memory(array, shard.array) else array for array in value)
    if isinstance(value, np.ndarray) and np.may_share_memory(value, shard.array):
        return value.copy()
    return value


def to_result(value: Value) -> Result:
    if value is None:
        return NO_RESULT
    if isinstance(value, np.ndarray):
        return Result(arrays=(value,))
    return Result(arrays=value) if isinstance(value, tuple) else Result(scalar=float(value))


def _check_array(op: Op, operand: tuple[str, str, Along], array: Array, shard: Shard, operation: Operation) -> Array:
    _, kind, along = operand
    if len(along.axes) == 1:
        array = array.reshape(-1)
    if kind == "unsigned":
        if array.dtype.kind != "u":
            raise DTypeError(f"operation {op.name!r}: expected unsigned integers, got {array.dtype}")
        return array
    expected = {"values": shard.spec.np_dtype, "floats": np.dtype(np.float64)}.get(kind, np.dtype(np.int64))
    if operation.wire is not None and kind == "values" and array.dtype == np.float32:
        array = array.astype(expected, copy=False)  # packed for the transfer, and unpacked as float32
    if array.dtype != expected:
        raise DTypeError(f"operation {op.name!r}: expected {kind} of {expected}, got {array.dtype}")
    if kind == "slots":
        return shard.slots(array, op.creates)
    if kind == "row_ids":
        shard.check_rows(array)
    return array


def slot_keys(shard: Shard, operation: Operation) -> Array:
    """Return the keys of a sparse shard's slots ``start`` to ``stop - 1``, which are params of the operation."""
    if shard.index is None:
        raise UsageError("operation 'keys' works on sparse vectors")
    start, stop = int(operation.params.get("start", 0)), int(operation.params.get("stop", -1))
    end = len(shard.index) if stop == -1 else stop
    if not 0 <= start <= end <= len(shard.index):
        raise OutOfRangeError(f"start and stop: expected 0 <= start <= stop <= {len(shard.index)}, got {start}, {stop}")
    return shard.index.keys[start:end].copy()


def _fill_absent(op: Op, operation: Operation, shard: Shard, keys: Int64s, slots: Int64s, answer: Any) -> None:
    """Write the initial values of absent keys (slot -1) into an operation's answer, in place.

    The answer has shape (n,) for one row, (n, rows) for blocks, otherwise (rows, n).
    """
    absent = np.flatnonzero(slots < 0)
    if not absent.size or shard.spec.key_policy is None:
        return
    if answer.ndim == 1:
        filled_rows, offsets, step = np.array(operation.rows[:1], np.int64), np.zeros(1, np.int64), 1
    elif op.answers[0].axes[0] == SLOTS:
        filled_rows = offsets = np.arange(answer.shape[1])
        step = answer.shape[1]
    else:
        rows = operation.arrays[op.arrays.index("row_ids")].reshape(-1)
        order = np.argsort(rows, kind="stable")
        filled_rows, offsets, step = rows[order], order * answer.shape[1], 1
    fill_initial(answer.reshape(-1), shard.spec.key_policy.initial, keys[absent], absent * step, filled_rows, offsets)
