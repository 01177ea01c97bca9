"""Plans of calls: pure functions that cut a call into operations on partitions, and merge the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Generic, TypeVar

import numpy as np

from ps2.array_types import Int64s
from ps2.client.arguments import as_indices, as_rows, as_target, as_wire_values
from ps2.client.keysets import GROUP_KEYS, SPLITS, SplitKeys
from ps2.config import WireConfig
from ps2.errors import UsageError
from ps2.matrix.partition import MatrixSpec, Partition
from ps2.matrix.route import Route
from ps2.ops.all import lookup
from ps2.ops.table import Array
from ps2.protocol.messages import Keys, Operation, Result

BLOCK_BYTES = WireConfig.block_bytes  # the limit of an operation's values, in bytes
NO_PARAMS: Mapping[str, int | float] = {}

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class Target:
    """The rows that a call operates on.

    Attributes:
        matrix, spec, route: the id, spec and route of the first operand's matrix.
        rows: the row ids of the operands that are vectors; empty for calls on a whole matrix.
        others: the matrix id and dtype of each operand after the first; empty if all belong to one matrix.
    """

    matrix: int
    spec: MatrixSpec
    route: Route
    rows: tuple[int, ...] = ()
    others: tuple[tuple[int, str], ...] = ()

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        return self.spec.np_dtype

    @cached_property
    def partitions(self) -> tuple[Partition, ...]:
        return self.route.partitions

    @cached_property
    def may_drop(self) -> bool:
        """True if changes of a key are dropped until the key is admitted."""
        return self.spec.key_policy is not None and self.spec.key_policy.admit_after > 1

    @cached_property
    def other_matrices(self) -> tuple[int, ...]:
        return tuple(matrix for matrix, _ in self.others)


@dataclass(slots=True)
class Plan(Generic[T]):
    """A call that is ready to be sent.

    Attributes:
        route: the route that the handle had; it may be stale.
        merge: makes the answer from the results, which are in the order of the operations.
        mutates: True if the call changes data, so it needs a mutation id.
        batchable: True if the call may share a request with other calls. A user's function may not: it can fail.
        may_drop: True if the servers may drop changes of some keys, because these keys have no slots yet.
    """

    matrix: int
    route: Route
    operations: tuple[Operation, ...]
    merge: Callable[[list[Result]], T]
    mutates: bool
    batchable: bool = True
    may_drop: bool = False

    @property
    def matrices(self) -> set[int]:
        """The ids of all matrices that the operations read or change."""
        return {self.matrix, *(other for operation in self.operations[:1] for other in operation.others)}

    def then(self, fn: Callable[[T], U]) -> Plan[U]:
        """Return the same call with ``fn`` applied to its answer."""
        return Plan(
            self.matrix,
            self.route,
            self.operations,
            lambda results: fn(self.merge(results)),
            self.mutates,
            self.batchable,
            self.may_drop,
        )


def pull(target: Target, start: int, stop: int, out: Array | None = None) -> Plan[Array]:
    """Plan to read columns ``[start, stop)`` of a dense row, into ``out`` if it is not None."""
    dtype = target.dtype
    out = np.empty(stop - start, dtype) if out is None else as_target(out, dtype, (stop - start,))
    operations = [
        read(target, "pull", index, out[offset : offset + hi - lo], target.rows, {"start": lo, "stop": hi})
        for index, lo, hi, offset in _windows(target, start, stop)
    ]
    return Plan(target.matrix, target.route, tuple(operations), lambda _: out, mutates=False)


def pull_columns(target: Target, indices: Any, out: Array | None = None) -> Plan[Array]:
    """Plan to read a row at indices, in their order, into ``out`` if it is not None."""
    columns, dtype = as_indices(indices), target.dtype
    output = None if out is None else as_target(out, dtype, columns.shape)
    split = SPLITS.split(target.spec, target.route, columns)
    values = output if output is not None and split.order is None else np.empty(split.columns.size, dtype)
    operations = tuple(
        read(target, "gather", index, values[window], target.rows, keys=keys)
        for index, window, keys in split.key_sets()
    )
    return Plan(target.matrix, target.route, operations, lambda _: split.to_caller_order(values, output), mutates=False)


def count_active(target: Target) -> Plan[list[int]]:
    """Plan to count the active keys of each partition of a sparse row."""
    operations = tuple(Operation("count", target.matrix, p.index, target.rows) for p in target.partitions)

    def merge(results: list[Result]) -> list[int]:
        return [int(result.scalar or 0) for result in results]

    return Plan(target.matrix, target.route, operations, merge, mutates=False)


def pull_active(
    target: Target, counts: Sequence[int] | None = None, begins: Sequence[int] | None = None
) -> Plan[tuple[Int64s, Array]]:
    """Plan to read the active keys of a sparse row and their values, sorted by key.

    Each partition numbers its keys from 0 in the order in which they became active. The plan reads the keys of
    partition i from number ``begins[i]`` (None: 0) to ``counts[i]``; None: all its keys, in one reply.
    """
    windows: list[tuple[int, dict[str, int], int]] = []
    for p in target.partitions:
        if counts is None:
            windows.append((p.index, {}, 0))
            continue
        for start in range(0 if begins is None else begins[p.index], counts[p.index], GROUP_KEYS):
            stop = min(start + GROUP_KEYS, counts[p.index])
            windows.append((p.index, {"start": start, "stop": stop}, stop - start))
    operations = tuple(
        Operation(name, target.matrix, index, rows, window, wire=wire, reply_bytes=size * itemsize)
        for index, window, size in windows
        for name, rows, wire, itemsize in (
            ("keys", (), None, 8),
            ("pull", target.rows, target.spec.wire, target.dtype.itemsize),
        )
    )

    def merge(results: list[Result]) -> tuple[Int64s, Array]:
        keys = [result.arrays[0] for result in results[::2]]
        values = [result.arrays[0].astype(target.dtype, copy=False) for result in results[1::2]]
        all_keys = np.concatenate([np.empty(0, np.int64), *keys])
        order = np.argsort(all_keys)
        return all_keys[order], np.concatenate([np.empty(0, target.dtype), *values])[order]

    return Plan(target.matrix, target.route, operations, merge, mutates=False)


def push(target: Target, verb: str, values: Any, start: int, stop: int) -> Plan[None]:
    """Plan "push", "push_add", "push_sub"... with values of columns ``[start, stop)`` of a dense row."""
    _check_dtype(verb, target.spec.dtype)
    array = as_wire_values(values, target.spec, (stop - start,))
    operations = [
        _push(target, verb, index, lo, array[offset : offset + hi - lo])
        for index, lo, hi, offset in _windows(target, start, stop)
    ]
    return Plan(target.matrix, target.route, tuple(operations), _no_answer, mutates=True)


def push_columns(target: Target, verb: str, values: Any, indices: Any) -> Plan[None]:
    """Plan "scatter", "scatter_add"... with values at indices. Duplicates are applied in their order."""
    _check_dtype(verb, target.spec.dtype)
    columns = as_indices(indices)
    array = as_wire_values(values, target.spec, columns.shape)
    split = SPLITS.split(target.spec, target.route, columns)
    if verb in ("scatter_mul", "scatter_div") and split.starts is not None:
        operations = tuple(_duplicate_scatters(target, verb, columns, array, split))
    else:
        distinct = split.last_duplicates(array) if verb == "scatter" else split.sum_duplicates(array)
        operations = tuple(
            _scatter(target, verb, index, keys, distinct[window]) for index, window, keys in split.key_sets()
        )
    return Plan(target.matrix, target.route, operations, _no_answer, mutates=True, may_drop=target.may_drop)


def push_pull(target: Target, values: Any) -> Plan[Array]:
    """Plan to add values to a whole dense row and read the new values, in one round trip."""
    array = as_wire_values(values, target.spec, (target.spec.dim,))
    out = np.empty(target.spec.dim, target.dtype)
    operations: list[Operation] = []
    for index, lo, hi, offset in _windows(target, 0, target.spec.dim, windows_per_block=2):  # half a block each way
        window = slice(offset, offset + hi - lo)
        operations.append(_push(target, "push_add", index, lo, array[window]))
        operations.append(read(target, "pull", index, out[window], target.rows, {"start": lo, "stop": hi}))
    return Plan(target.matrix, target.route, tuple(operations), lambda _: out, mutates=True)


def push_pull_columns(target: Target, values: Any, indices: Any) -> Plan[Array]:
    """Plan to add values at indices and read the new values, in one round trip; the keys are sent once."""
    columns, dtype = as_indices(indices), target.dtype
    array = as_wire_values(values, target.spec, columns.shape)
    split = SPLITS.split(target.spec, target.route, columns)
    added, updated = split.sum_duplicates(array), np.empty(split.columns.size, dtype)
    operations: list[Operation] = []
    for index, window, keys in split.key_sets():
        operations.append(_scatter(target, "scatter_add", index, keys, added[window]))
        operations.append(read(target, "gather", index, updated[window], target.rows, keys=Keys(keys.count)))
    return Plan(target.matrix, target.route, tuple(operations), lambda _: split.to_caller_order(updated), mutates=True)


def rows_pull(target: Target, rows: Any, columns: Any | None, out: Array | None = None) -> Plan[Array]:
    """Plan to read many rows: shape (len(rows), dim) or (len(rows), len(columns)), into ``out`` if not None."""
    row_ids, dtype = as_rows("rows", rows, target.spec.rows), target.dtype
    if columns is None:
        require_dense(target.spec, "pull of whole rows")
        shape = (row_ids.size, target.spec.dim)
        answer = np.empty(shape, dtype) if out is None else as_target(out, dtype, shape)
        row_reads = tuple(
            read(target, name, index, answer[window], rows, params, arrays)
            for index, name, rows, params, arrays, window in _row_blocks(target, row_ids, "rows_pull", "pull")
        )
        return Plan(target.matrix, target.route, row_reads, lambda _: answer, mutates=False)
    indices = as_indices(columns)
    shape = (row_ids.size, indices.size)
    out = None if out is None else as_target(out, dtype, shape)
    split = SPLITS.split(target.spec, target.route, indices)
    values = out if out is not None and split.order is None else np.empty((row_ids.size, split.columns.size), dtype)
    column_reads = tuple(
        read(target, "rows_gather", index, values[run, window], arrays=(row_ids[run],), keys=keys)
        for index, window, keys in split.key_sets()
        for run in _row_runs(row_ids.size, keys.count * dtype.itemsize)
    )
    return Plan(target.matrix, target.route, column_reads, lambda _: split.to_caller_order(values, out), mutates=False)


def rows_push(target: Target, verb: str, rows: Any, values: Any) -> Plan[None]:
    """Plan "rows_push" or "rows_add" with values of shape (len(rows), dim)."""
    require_dense(target.spec, f"{verb} without columns")
    row_ids = as_rows("rows", rows, target.spec.rows)
    array = as_wire_values(values, target.spec, (row_ids.size, target.spec.dim))
    row_verb = {"rows_push": "push", "rows_add": "push_add"}[verb]
    operations = tuple(
        Operation(name, target.matrix, index, rows, params, arrays=(*arrays, array[window]), wire=target.spec.wire)
        for index, name, rows, params, arrays, window in _row_blocks(target, row_ids, verb, row_verb)
    )
    return Plan(target.matrix, target.route, operations, _no_answer, mutates=True)


def rows_fill(target: Target, rows: Any, value: Any) -> Plan[None]:
    """Plan to set all columns of the given rows, or of all rows, to a number."""
    return _write_rows(target, "rows_fill", rows, lookup("rows_fill").check(0, target.spec.dtype, {"value": value}))


def rows_random(target: Target, rows: Any, params: Mapping[str, Any]) -> Plan[None]:
    """Plan to overwrite the given rows, or all rows, with random numbers. ``params``: the operation's parameters."""
    name = "rows_random" if target.spec.layout == "row" else "columns_random"
    checked = lookup(name).check(0, target.spec.dtype, params)
    require_dense(target.spec, "fillRandom")
    return _write_rows(target, name, rows, checked)


def _write_rows(target: Target, name: str, rows: Any, params: Mapping[str, Any]) -> Plan[None]:
    """Plan an operation that writes the given rows, or all rows (None), and takes no other array."""
    row_ids = np.arange(target.spec.rows) if rows is None else as_rows("rows", rows, target.spec.rows)
    operations = tuple(
        Operation(name, target.matrix, p.index, params=params, arrays=(row_ids[run],))
        for p in target.partitions
        for run in _row_runs(row_ids.size, row_ids.itemsize)
    )
    return Plan(target.matrix, target.route, operations, _no_answer, mutates=True)


def rows_scatter_add(target: Target, rows: Any, values: Any, columns: Any) -> Plan[None]:
    """Plan to add values of shape (len(rows), len(columns)) to rows at columns."""
    row_ids = as_rows("rows", rows, target.spec.rows)
    indices = as_indices(columns)
    array = as_wire_values(values, target.spec, (row_ids.size, indices.size))
    split = SPLITS.split(target.spec, target.route, indices)
    added = split.sum_duplicates(array)
    operations = tuple(
        Operation(
            "rows_scatter_add",
            target.matrix,
            index,
            arrays=(row_ids[run], added[run, window]),
            keys=keys,
            wire=target.spec.wire,
        )
        for index, window, keys in split.key_sets()
        for run in _row_runs(row_ids.size, keys.count * array.itemsize)
    )
    return Plan(target.matrix, target.route, operations, _no_answer, mutates=True, may_drop=target.may_drop)


def read(  # noqa: PLR0913 - the fields of an operation
    target: Target,
    name: str,
    partition: int,
    into: Array,
    rows: tuple[int, ...] = (),
    params: Mapping[str, int | float] = NO_PARAMS,
    arrays: tuple[Array, ...] = (),
    keys: Keys | None = None,
) -> Operation:
    """Return an operation; the client writes the only array of its reply into ``into``."""
    return Operation(name, target.matrix, partition, rows, params, arrays, keys, target.spec.wire, into.nbytes, into)


def _push(target: Target, verb: str, partition: int, start: int, values: Array) -> Operation:
    return Operation(
        verb, target.matrix, partition, target.rows, {"start": start}, arrays=(values,), wire=target.spec.wire
    )


def _scatter(target: Target, verb: str, partition: int, keys: Keys, values: Array) -> Operation:
    return Operation(verb, target.matrix, partition, target.rows, arrays=(values,), keys=keys, wire=target.spec.wire)


def _duplicate_scatters(
    target: Target, verb: str, columns: Int64s, values: Array, split: SplitKeys
) -> Iterator[Operation]:
    """Yield operations on columns with adjacent duplicates, for verbs that cannot merge duplicates ("scatter_mul")."""
    assert split.order is not None
    assert split.starts is not None
    bounds = np.append(split.starts, columns.size)
    for group in split.groups:
        positions = split.order[bounds[group.begin] : bounds[group.end]]
        arrays = (columns[positions], values[positions])
        yield Operation(verb, target.matrix, group.partition, target.rows, arrays=arrays, wire=target.spec.wire)


def _windows(target: Target, start: int, stop: int, windows_per_block: int = 1) -> Iterator[tuple[int, int, int, int]]:
    """Cut columns ``[start, stop)`` by partition and block: yield (partition, start, stop, offset).

    ``start`` and ``stop`` are relative to the partition's first column; ``offset`` is the index in the call's values.
    """
    step = max(1, BLOCK_BYTES // windows_per_block // target.dtype.itemsize)
    for p in target.partitions:
        if start <= p.begin < p.end <= stop and p.width <= step:
            yield p.index, 0, p.width, p.begin - start
            continue
        for lo in range(max(start, p.begin), min(stop, p.end), step):
            hi = min(lo + step, stop, p.end)
            yield p.index, lo - p.begin, hi - p.begin, lo - start


def _row_blocks(target: Target, row_ids: Int64s, rows_verb: str, row_verb: str) -> Iterator[tuple[Any, ...]]:
    """Cut rows into blocks: yield (partition, operation, its rows, params and arrays, index into the call's values).

    The call's values have shape (rows, columns). ``row_verb`` is the operation on a part of one row: for a single row,
    for rows that are longer than a block, and for rows that are not contiguous.
    """
    itemsize = target.dtype.itemsize
    for p in target.partitions:
        if row_ids.size > 1 and target.spec.layout == "row" and p.width * itemsize <= BLOCK_BYTES:
            for run in _row_runs(row_ids.size, p.width * itemsize):
                yield p.index, rows_verb, (), NO_PARAMS, (row_ids[run],), (run, slice(p.begin, p.end))
            continue
        for position, row in enumerate(row_ids.tolist()):
            for index, lo, hi, _ in _windows(target, p.begin, p.end):
                params = {"start": lo} if rows_verb != "rows_pull" else {"start": lo, "stop": hi}
                yield index, row_verb, (row,), params, (), (position, slice(p.begin + lo, p.begin + hi))


def _row_runs(count: int, row_bytes: int) -> Iterator[slice]:
    """Cut rows into runs of about one block."""
    step = max(1, BLOCK_BYTES // max(row_bytes, 1))
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


@lru_cache(maxsize=256)
def _check_dtype(verb: str, dtype: str) -> None:
    """Raise DTypeError if an operation that takes values of one row does not support a dtype."""
    lookup(verb).check(1, dtype, {})


def _no_answer(results: Sequence[Result]) -> None:
    return None


def require_dense(spec: MatrixSpec, subject: str) -> None:
    if spec.kind == "sparse":
        raise UsageError(f"{subject} needs a dense matrix: a sparse matrix has up to 2**63 columns; name the columns")
