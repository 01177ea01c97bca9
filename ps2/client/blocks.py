"""Plans for block access: the values of whole columns, in all rows of a matrix with layout "column"."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ps2.array_types import Int64s
from ps2.client.arguments import as_indices, as_rows, as_target, as_wire_values
from ps2.client.keysets import SPLITS, SplitKeys
from ps2.client.plans import Plan, Target, dense_only
from ps2.errors import UsageError
from ps2.ops.all import lookup
from ps2.ops.table import Array
from ps2.protocol.messages import Operation


def pull(target: Target, columns: Any, out: Any = None) -> Plan[Array]:
    """Plan to read blocks: shape (len(columns), k), in the order given, into ``out`` if given."""
    indices = _columns(target, columns)
    shape, dtype = (indices.size, target.spec.rows), target.spec.np_dtype
    answer = np.empty(shape, dtype) if out is None else as_target(out, dtype, shape)
    parts = SPLITS.split_blocks(target.spec, target.route, indices)
    order = parts.order
    received = answer if order is None else np.empty(shape, dtype)
    operations = tuple(
        Operation(
            "columns_pull",
            target.matrix,
            partition,
            keys=keys,
            wire=target.spec.wire,
            reply_bytes=received[where].nbytes,
            into=received[where],
        )
        for partition, where, keys in parts.key_sets()
    )

    def merge(_: Any) -> Array:
        if order is not None:
            answer[order] = received
        return answer

    return Plan(target.matrix, target.route, operations, merge, mutates=False)


def pull_all(target: Target, out: Any = None) -> Plan[Array]:
    """Plan to read all blocks as rows: shape (rows, dim), into ``out`` if given."""
    dense_only(target.spec, "pull of whole rows")
    answer = None if out is None else as_target(out, target.spec.np_dtype, (target.spec.rows, target.spec.dim))

    def transposed(blocks: Array) -> Array:
        if answer is None:
            return blocks.T
        answer[:] = blocks.T
        return answer

    return pull(target, np.arange(target.spec.dim)).then(transposed)


def push(target: Target, columns: Any, values: Any) -> Plan[None]:
    """Plan to overwrite blocks with values of shape (len(columns), k). For a repeated column, the last values win."""
    return _write(target, "columns_push", columns, values)


def add(target: Target, columns: Any, values: Any) -> Plan[None]:
    """Plan to add values of shape (len(columns), k) to blocks. Duplicate columns accumulate."""
    return _write(target, "columns_add", columns, values)


def fill(target: Target, rows: Any, value: Any) -> Plan[None]:
    """Plan to set all columns of the given rows, or of all rows, to a number."""
    name, each = ("columns_fill", [()]) if rows is None else ("fill", [(row,) for row in _rows(target, rows)])
    params = lookup(name).check(len(each[0]) if each else 1, target.spec.dtype, {"value": value})
    operations = tuple(
        Operation(name, target.matrix, p.index, numbers, params) for p in target.route.partitions for numbers in each
    )
    return Plan(target.matrix, target.route, operations, lambda _: None, mutates=True)


def _rows(target: Target, rows: Any) -> list[int]:
    numbers: list[int] = np.unique(as_rows("rows", rows, target.spec.rows)).tolist()
    return numbers


def _write(target: Target, verb: str, columns: Any, values: Any) -> Plan[None]:
    indices = _columns(target, columns)
    array = as_wire_values(values, target.spec, (indices.size, target.spec.rows))
    parts = SPLITS.split_blocks(target.spec, target.route, indices)
    operations = tuple(
        Operation(verb, target.matrix, partition, arrays=(some,), keys=keys, wire=target.spec.wire)
        for (partition, _, keys), some in zip(parts.key_sets(), _arranged(parts, array), strict=True)
    )
    return Plan(target.matrix, target.route, operations, lambda _: None, mutates=True, may_drop=target.may_drop)


def _arranged(parts: SplitKeys, values: Array) -> Iterator[Array]:
    """Yield the values of each group."""
    if parts.order is not None:
        values = values.take(parts.order, axis=0)
    for group in parts.groups:
        yield values[group.begin : group.end]


def _columns(target: Target, columns: Any) -> Int64s:
    if target.spec.layout != "column":
        raise UsageError(
            "columns without rows need a matrix with layout='column'; for other layouts, pass rows as well"
        )
    if columns is None:
        raise UsageError("expected rows or columns, got neither")
    return as_indices(columns)
