"""Plans for block access: the values of whole columns, in all rows of a matrix with layout "column"."""

from __future__ import annotations

from typing import Any

import numpy as np

from ps2.array_types import Int64s
from ps2.client.arguments import as_indices, as_rows, as_target, as_wire_values
from ps2.client.keysets import SPLITS
from ps2.client.plans import Plan, Target, read, require_dense
from ps2.errors import UsageError
from ps2.ops.all import lookup
from ps2.ops.table import Array
from ps2.protocol.messages import Operation


def pull(target: Target, columns: Any, out: Any = None) -> Plan[Array]:
    """Plan to read blocks: shape (len(columns), k), in the order of ``columns``; into ``out`` if it is an array."""
    indices = _column_indices(target, columns)
    shape, dtype = (indices.size, target.spec.rows), target.spec.np_dtype
    answer = np.empty(shape, dtype) if out is None else as_target(out, dtype, shape)
    split = SPLITS.split_blocks(target.spec, target.route, indices)
    order = split.order
    received = answer if order is None else np.empty(shape, dtype)
    operations = tuple(
        read(target, "columns_pull", partition, received[window], keys=keys)
        for partition, window, keys in split.key_sets()
    )

    def merge(_: Any) -> Array:
        if order is not None:
            answer[order] = received
        return answer

    return Plan(target.matrix, target.route, operations, merge, mutates=False)


def pull_all(target: Target, out: Any = None) -> Plan[Array]:
    """Plan to read all blocks as rows: shape (rows, dim); written to ``out`` if it is not None."""
    require_dense(target.spec, "pull of whole rows")
    answer = None if out is None else as_target(out, target.spec.np_dtype, (target.spec.rows, target.spec.dim))

    def transpose(blocks: Array) -> Array:
        if answer is None:
            return blocks.T
        answer[:] = blocks.T
        return answer

    return pull(target, np.arange(target.spec.dim)).then(transpose)


def push(target: Target, columns: Any, values: Any) -> Plan[None]:
    """Plan to overwrite blocks with values of shape (len(columns), k). For a repeated column, the last values win."""
    return _write(target, "columns_push", columns, values)


def add(target: Target, columns: Any, values: Any) -> Plan[None]:
    """Plan to add values of shape (len(columns), k) to blocks. Duplicate columns accumulate."""
    return _write(target, "columns_add", columns, values)


def fill(target: Target, rows: Any, value: Any) -> Plan[None]:
    """Plan to set every element of the given rows (None: all rows) to a number."""
    name = "columns_fill" if rows is None else "fill"
    row_sets: list[tuple[int, ...]] = [()]
    if rows is not None:
        row_sets = [(row,) for row in np.unique(as_rows("rows", rows, target.spec.rows)).tolist()]
    params = lookup(name).check(0 if rows is None else 1, target.spec.dtype, {"value": value})
    operations = tuple(
        Operation(name, target.matrix, p.index, row_set, params) for p in target.partitions for row_set in row_sets
    )
    return Plan(target.matrix, target.route, operations, lambda _: None, mutates=True)


def _write(target: Target, verb: str, columns: Any, values: Any) -> Plan[None]:
    indices = _column_indices(target, columns)
    array = as_wire_values(values, target.spec, (indices.size, target.spec.rows))
    split = SPLITS.split_blocks(target.spec, target.route, indices)
    if split.order is not None:
        array = array.take(split.order, axis=0)
    operations = tuple(
        Operation(verb, target.matrix, partition, arrays=(array[window],), keys=keys, wire=target.spec.wire)
        for partition, window, keys in split.key_sets()
    )
    return Plan(target.matrix, target.route, operations, lambda _: None, mutates=True, may_drop=target.may_drop)


def _column_indices(target: Target, columns: Any) -> Int64s:
    if target.spec.layout != "column":
        raise UsageError(
            "columns without rows: expected a matrix with layout='column'; for other layouts, pass rows as well"
        )
    if columns is None:
        raise UsageError("expected rows or columns, got neither")
    return as_indices(columns)
