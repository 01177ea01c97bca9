"""Calls as plans: pure functions that cut a call into operations on partitions, and put the results together."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import cloudpickle
import numpy as np

from ps2.client.arguments import as_columns, as_rows, as_values
from ps2.client.results import PartitionResults
from ps2.errors import ShapeError, UsageError
from ps2.ops.table import Array, lookup
from ps2.partition import Int64Array, MatrixSpec, partition_of
from ps2.route import Route
from ps2.wire.messages import Operation, Result

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class Target:
    """The rows of one matrix that a call is about."""

    matrix: int
    spec: MatrixSpec
    route: Route
    rows: tuple[int, ...] = ()


@dataclass(frozen=True)
class Plan(Generic[T]):
    """A call, ready to send.

    Attributes:
        matrix: the one matrix that all operations are on.
        route: where the caller believes its partitions are.
        operations: at most a few a partition.
        merge: makes one answer of the results, given in the order of the operations.
        mutates: whether it needs an id.
        batchable: whether it may travel with others; a user's function may fail, so it travels alone.
    """

    matrix: int
    route: Route
    operations: tuple[Operation, ...]
    merge: Callable[[list[Result]], T]
    mutates: bool
    batchable: bool = True

    def then(self, fn: Callable[[T], U]) -> Plan[U]:
        """Return the same call with ``fn`` applied to its answer."""
        return Plan(
            self.matrix,
            self.route,
            self.operations,
            lambda results: fn(self.merge(results)),
            self.mutates,
            self.batchable,
        )


@dataclass(frozen=True)
class Split:
    """Columns grouped by partition.

    Attributes:
        order: where each grouped column came from; None if they were grouped as they came.
        columns: the grouped columns.
        groups: (partition, begin, end) of each group within ``columns``.
    """

    order: Int64Array | None
    columns: Int64Array
    groups: tuple[tuple[int, int, int], ...]

    def sorted(self, values: Array) -> Array:
        """Return values in the order of the groups."""
        return values if self.order is None else values[..., self.order]

    def unsorted(self, values: Array) -> Array:
        """Return grouped values in the order in which the columns came."""
        if self.order is None:
            return values
        out = np.empty_like(values)
        out[..., self.order] = values
        return out


def split(spec: MatrixSpec, route: Route, columns: Int64Array) -> Split:
    """Group columns by partition; within a group they keep their order."""
    count = len(route.addresses)
    if count == 1:
        return Split(None, columns, ((0, 0, columns.size),) if columns.size else ())
    if spec.kind == "dense" and bool(np.all(columns[1:] >= columns[:-1])):
        order, cuts = None, np.searchsorted(columns, np.asarray(route.bounds, dtype=np.int64))
    else:
        owners = partition_of(spec, route.bounds, columns).astype(np.int32)
        order = np.argsort(owners, kind="stable")
        columns = columns[order]
        cuts = np.searchsorted(owners[order], np.arange(count + 1))
    groups = [(i, int(cuts[i]), int(cuts[i + 1])) for i in range(count) if cuts[i] < cuts[i + 1]]
    return Split(order, columns, tuple(groups))


def call(target: Target, name: str, params: Mapping[str, Any]) -> Plan[Any]:
    """Plan an operation of the table that needs no data of the caller: a kernel, or a reduction to one scalar."""
    op = lookup(name)
    scalars = op.check(len(target.rows), target.spec.dtype, params)
    operations = tuple(Operation(name, target.matrix, p.index, target.rows, scalars) for p in target.route.partitions)
    reducers: dict[str | None, Callable[[Any], Any]] = {"sum": np.sum, "max": np.max, "min": np.min}

    def merge(results: list[Result]) -> float | None:
        if op.reduce is None:
            return None
        return float(reducers[op.reduce]([result.scalar for result in results]))

    return Plan(target.matrix, target.route, operations, merge, bool(op.writes))


def pull(target: Target, start: int, stop: int) -> Plan[Array]:
    """Plan to read columns ``[start, stop)`` of a dense row."""
    out = np.empty(stop - start, target.spec.np_dtype)
    operations = []
    for index, lo, hi, origin in _windows(target.route, start, stop):
        params = {"start": lo, "stop": hi}
        into = out[origin : origin + hi - lo]
        operations.append(Operation("pull", target.matrix, index, target.rows, params, reply_count=hi - lo, into=into))
    return Plan(target.matrix, target.route, tuple(operations), lambda _: out, mutates=False)


def pull_columns(target: Target, indices: Any) -> Plan[Array]:
    """Plan to read a row at indices; the answer is in their order."""
    parts = split(target.spec, target.route, as_columns(target.spec, indices))
    out = np.empty(parts.columns.size, target.spec.np_dtype)
    operations = tuple(
        Operation(
            "gather",
            target.matrix,
            index,
            target.rows,
            arrays=(parts.columns[lo:hi],),
            reply_count=hi - lo,
            into=out[lo:hi],
        )
        for index, lo, hi in parts.groups
    )
    return Plan(target.matrix, target.route, operations, lambda _: parts.unsorted(out), mutates=False)


def pull_active(target: Target) -> Plan[tuple[Int64Array, Array]]:
    """Plan to read the active keys of a sparse row and their values, sorted by key."""
    operations = tuple(
        Operation(name, target.matrix, p.index, rows, reply_count=None)
        for p in target.route.partitions
        for name, rows in (("keys", ()), ("pull", target.rows))
    )

    def merge(results: list[Result]) -> tuple[Int64Array, Array]:
        keys = np.concatenate([result.arrays[0] for result in results[::2]])
        values = np.concatenate([result.arrays[0] for result in results[1::2]])
        order = np.argsort(keys)
        return keys[order], values[order]

    return Plan(target.matrix, target.route, operations, merge, mutates=False)


def push(target: Target, verb: str, values: Any, start: int, stop: int) -> Plan[None]:
    """Plan "push", "push_add", "push_sub"... of values onto columns ``[start, stop)`` of a dense row."""
    lookup(verb).check(1, target.spec.dtype, {})
    array = as_values(values, target.spec.np_dtype, (stop - start,))
    operations = tuple(
        Operation(verb, target.matrix, index, target.rows, {"start": lo}, arrays=(array[origin : origin + hi - lo],))
        for index, lo, hi, origin in _windows(target.route, start, stop)
    )
    return Plan(target.matrix, target.route, operations, _nothing, mutates=True)


def push_columns(target: Target, verb: str, values: Any, indices: Any) -> Plan[None]:
    """Plan "scatter", "scatter_add"... of values at indices; duplicates act in the order given."""
    lookup(verb).check(1, target.spec.dtype, {})
    columns = as_columns(target.spec, indices)
    array = as_values(values, target.spec.np_dtype, columns.shape)
    parts = split(target.spec, target.route, columns)
    array = parts.sorted(array)
    operations = tuple(
        Operation(verb, target.matrix, index, target.rows, arrays=(parts.columns[lo:hi], array[lo:hi]))
        for index, lo, hi in parts.groups
    )
    return Plan(target.matrix, target.route, operations, _nothing, mutates=True)


def map_partitions(target: Target, fn: Callable[..., Any], with_index: bool) -> Plan[PartitionResults]:
    """Plan a user's function on every partition."""
    if not callable(fn):
        raise UsageError(f"mapPartitions: expected a function, got {fn!r}")
    try:
        code = np.frombuffer(cloudpickle.dumps(fn), np.uint8)
    except Exception as error:  # a closure may hold anything, and each thing fails in its own way
        raise UsageError(f"mapPartitions: {fn!r} cannot be pickled: {error}") from error
    operations = tuple(
        Operation(
            "map", target.matrix, p.index, target.rows, {"with_index": int(with_index)}, (code,), reply_count=None
        )
        for p in target.route.partitions
    )

    def merge(results: list[Result]) -> PartitionResults:
        return PartitionResults([pickle.loads(result.arrays[0].tobytes()) for result in results])

    return Plan(target.matrix, target.route, operations, merge, mutates=True, batchable=False)


def rows_pull(target: Target, rows: Any, columns: Any | None) -> Plan[Array]:
    """Plan to read many rows: shape (len(rows), dim), or (len(rows), len(columns))."""
    numbers = as_rows("rows", rows, target.spec.rows)
    if columns is None:
        _dense_only(target.spec, "pull of whole rows")
        out = np.empty((numbers.size, target.spec.dim), target.spec.np_dtype)
        whole = tuple(
            Operation("rows_pull", target.matrix, p.index, arrays=(numbers,), reply_count=numbers.size * p.width)
            for p in target.route.partitions
        )

        def merge_whole(results: list[Result]) -> Array:
            for p, result in zip(target.route.partitions, results, strict=True):
                out[:, p.begin : p.end] = result.arrays[0].reshape(numbers.size, p.width)
            return out

        return Plan(target.matrix, target.route, whole, merge_whole, mutates=False)
    parts = split(target.spec, target.route, as_columns(target.spec, columns))
    grouped = np.empty((numbers.size, parts.columns.size), target.spec.np_dtype)
    some = tuple(
        Operation(
            "rows_gather",
            target.matrix,
            index,
            arrays=(numbers, parts.columns[lo:hi]),
            reply_count=numbers.size * (hi - lo),
        )
        for index, lo, hi in parts.groups
    )

    def merge_some(results: list[Result]) -> Array:
        for (_, lo, hi), result in zip(parts.groups, results, strict=True):
            grouped[:, lo:hi] = result.arrays[0].reshape(numbers.size, hi - lo)
        return parts.unsorted(grouped)

    return Plan(target.matrix, target.route, some, merge_some, mutates=False)


def rows_push(target: Target, verb: str, rows: Any, values: Any) -> Plan[None]:
    """Plan "rows_push" or "rows_add" of values of shape (len(rows), dim)."""
    _dense_only(target.spec, f"{verb} without columns")
    numbers = as_rows("rows", rows, target.spec.rows)
    array = as_values(values, target.spec.np_dtype, (numbers.size, target.spec.dim))
    operations = tuple(
        Operation(verb, target.matrix, p.index, arrays=(numbers, array[:, p.begin : p.end].ravel()))
        for p in target.route.partitions
    )
    return Plan(target.matrix, target.route, operations, _nothing, mutates=True)


def rows_scatter_add(target: Target, rows: Any, values: Any, columns: Any) -> Plan[None]:
    """Plan to add values of shape (len(rows), len(columns)) to rows at columns."""
    numbers = as_rows("rows", rows, target.spec.rows)
    given = as_columns(target.spec, columns)
    array = as_values(values, target.spec.np_dtype, (numbers.size, given.size))
    parts = split(target.spec, target.route, given)
    array = parts.sorted(array)
    operations = tuple(
        Operation(
            "rows_scatter_add", target.matrix, index, arrays=(numbers, parts.columns[lo:hi], array[:, lo:hi].ravel())
        )
        for index, lo, hi in parts.groups
    )
    return Plan(target.matrix, target.route, operations, _nothing, mutates=True)


def rows_dot(target: Target, rows_a: Any, rows_b: Any) -> Plan[Array]:
    """Plan the inner products of pairs of rows: float64 of shape (n,)."""
    a = as_rows("rows_a", rows_a, target.spec.rows)
    b = as_rows("rows_b", rows_b, target.spec.rows)
    _same_length("rows_b", b, a.size)
    operations = tuple(
        Operation("rows_dot", target.matrix, p.index, arrays=(a, b), reply_count=a.size)
        for p in target.route.partitions
    )
    return Plan(
        target.matrix,
        target.route,
        operations,
        lambda results: np.sum([result.arrays[0] for result in results], axis=0),
        mutates=False,
    )


def rows_axpy(target: Target, rows_y: Any, rows_x: Any, alphas: Any) -> Plan[None]:
    """Plan ``y += alpha * x`` for pairs of rows, in the order given."""
    lookup("rows_axpy").check(0, target.spec.dtype, {})
    y = as_rows("rows_y", rows_y, target.spec.rows)
    x = as_rows("rows_x", rows_x, target.spec.rows)
    _same_length("rows_x", x, y.size)
    scales = as_values(
        np.broadcast_to(np.asarray(alphas), y.shape) if np.ndim(alphas) == 0 else alphas,
        np.dtype(np.float64),
        y.shape,
        "alphas",
    )
    operations = tuple(
        Operation("rows_axpy", target.matrix, p.index, arrays=(y, x, scales)) for p in target.route.partitions
    )
    return Plan(target.matrix, target.route, operations, _nothing, mutates=True)


def _windows(route: Route, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Cut columns ``[start, stop)`` by partition: (partition, local start, local stop, offset from ``start``)."""
    for p in route.partitions:
        lo, hi = max(start, p.begin), min(stop, p.end)
        if lo < hi:
            yield p.index, lo - p.begin, hi - p.begin, lo - start


def _nothing(results: Sequence[Result]) -> None:
    return None


def _dense_only(spec: MatrixSpec, what: str) -> None:
    if spec.kind == "sparse":
        raise UsageError(f"{what} needs a dense matrix: a sparse one has up to 2**63 columns; name the columns")


def _same_length(name: str, rows: Int64Array, expected: int) -> None:
    if rows.size != expected:
        raise ShapeError(f"{name}: expected {expected} rows, got {rows.size}")
