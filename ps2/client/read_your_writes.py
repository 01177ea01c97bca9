"""Adds this process's queued additions to the answers of its reads (read-my-writes). Pure.

A read can be sent while additions of this process still wait in the queue. The answer does not contain them, so the
client adds them itself, with the servers' arithmetic (Xing et al., "Strategies and Principles of Distributed Machine
Learning on Big Data", section 3.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ps2.client.plans import Plan
from ps2.ops.all import SERVER_OPERATIONS, lookup
from ps2.ops.operands import SLOTS
from ps2.ops.packing import narrow, widen
from ps2.ops.table import Array
from ps2.protocol.messages import Operation

# Limit of the additions missing in a read's answers, in bytes. Beyond it, the client waits until the queue is empty and
# reads again.
MISSING_BYTES = 64 << 20

_ADDITIONS = ("push_add", "scatter_add", "rows_add", "rows_scatter_add", "columns_add")
_SUBTRACTIONS = ("push_sub", "scatter_sub")
# Operations that change only the rows whose ids are in their first array.
_ROW_OPERATIONS = ("rows_add", "rows_scatter_add", "rows_push", "rows_fill", "rows_random", "columns_random")

Index = slice | Array
RowsOrColumns = range | Array


def is_plain(plans: Iterable[Plan[Any]]) -> bool:
    """Return True if plans only read rows (all columns, some keys, or an interval) into existing arrays."""
    return all(_is_plain(operation) for plan in plans for operation in plan.operations)


class ReadYourWrites:
    """Collects the queued additions that are missing in the answers of plain reads (``is_plain``).

    Attributes:
        is_invalid: True if the client cannot add a missing change, so the answers must not be used.
    """

    def __init__(self, plans: Sequence[Plan[Any]]) -> None:
        self._bounds = {plan.matrix: plan.route.bounds for plan in plans}
        self._reads: dict[tuple[int, int], list[Operation]] = {}
        for plan in plans:
            for read in plan.operations:
                self._reads.setdefault((read.matrix, read.partition), []).append(read)
        self._missing: list[Operation] = []
        self._bytes = 0
        self.is_invalid = not is_plain(plans)

    def add_missing_write(self, plan: Plan[Any]) -> None:
        """Record a plan that the servers will apply after the reads: the answers do not contain its changes."""
        for write in plan.operations:
            if self.is_invalid or not any(_may_change(write, read) for read in self._reads_on_shards(write)):
                continue
            self._bytes += write.nbytes
            if _is_addition(write) and not plan.may_drop and self._bytes <= MISSING_BYTES:
                self._missing.append(write)
            else:
                self.invalidate()

    def add_possibly_missing_write(self, plan: Plan[Any]) -> None:
        """Record a plan that may be applied before the reads; if it changes their values, the answers are invalid."""
        if not self.is_invalid and self.touches(plan):
            self.invalidate()

    def touches(self, plan: Plan[Any]) -> bool:
        """Return True if a plan may change the values that are read."""
        return any(_may_change(write, read) for write in plan.operations for read in self._reads_on_shards(write))

    def invalidate(self) -> None:
        self.is_invalid = True
        self._missing.clear()

    def add_missing(self) -> None:
        """Add the missing additions to the arrays of the answers."""
        for write in self._missing:
            begin = self._bounds[write.matrix][write.partition]
            for read in self._reads_on_shards(write):
                if _may_change(write, read):
                    add_overlap(write, read, begin)
        self._missing.clear()

    def _reads_on_shards(self, write: Operation) -> list[Operation]:
        """Return the reads of the partitions that an operation writes."""
        return [read for shard in write.shard_ids for read in self._reads.get(shard, ())]


def add_overlap(write: Operation, read: Operation, begin: int) -> None:
    """Apply an addition to the answer of a read of the same partition, at the rows and columns that they share.

    ``begin``: the partition's first column. An operation's "start" is relative to it; keys are the matrix's columns.
    """
    assert read.into is not None
    out, values = _by_rows(read, read.into), _by_rows(write, _applied_values(write))
    rows = _rows(read, len(out)), _rows(write, len(values))
    columns = _columns(read, begin, out.shape[1]), _columns(write, begin, values.shape[1])
    for out_rows, value_rows in _matches(*rows):
        for out_columns, value_columns in _matches(*columns):
            out_index, value_index = _grid(out_rows, out_columns), _grid(value_rows, value_columns)
            with np.errstate(over="ignore", invalid="ignore"):
                if write.name in _ADDITIONS:
                    out[out_index] = out[out_index] + values[value_index]
                else:
                    out[out_index] = out[out_index] - values[value_index]


def _matches(left: RowsOrColumns, right: RowsOrColumns) -> Iterator[tuple[Index, Index]]:
    """Yield the positions of common values in two lists.

    If ``right`` contains a value several times, each yield has one of its positions.
    """
    if isinstance(left, range) and isinstance(right, range):
        begin, end = max(left.start, right.start), min(left.stop, right.stop)
        if begin < end:
            yield slice(begin - left.start, end - left.start), slice(begin - right.start, end - right.start)
    elif isinstance(left, range):
        assert not isinstance(right, range)
        common = np.unique(right[(right >= left.start) & (right < left.stop)])
        for indices, positions in _matches(common, right):
            yield common[indices] - left.start, positions
    elif isinstance(right, range):
        inside = np.flatnonzero((left >= right.start) & (left < right.stop))
        if inside.size:
            yield inside, np.asarray(left[inside] - right.start)
    elif np.array_equal(left, right) and bool((right[1:] > right[:-1]).all()):
        yield slice(None), slice(None)
    else:
        order = np.argsort(right, kind="stable")
        begins, ends = (np.searchsorted(right[order], left, side) for side in ("left", "right"))
        for repetition in range(int((ends - begins).max(initial=0))):
            repeated = np.flatnonzero(begins + repetition < ends)
            yield repeated, order[begins[repeated] + repetition]


def _grid(rows: Index, columns: Index) -> Any:
    """Return a numpy index of all pairs of a row and a column."""
    if isinstance(rows, slice) or isinstance(columns, slice):
        return rows, columns
    return np.ix_(rows, columns)


def _by_rows(operation: Operation, array: Array) -> Array:
    """Return the array of a read or an addition in shape (rows, columns)."""
    if _uses_blocks(operation):
        assert operation.keys is not None
        return array.reshape(operation.keys.count, -1).T
    return array.reshape(1 if operation.rows else len(operation.arrays[0]), -1)


def _uses_blocks(operation: Operation) -> bool:
    return operation.name in ("columns_pull", "columns_add")


def _rows(operation: Operation, count: int) -> RowsOrColumns:
    """Return the row ids of a read or an addition; ``count``: how many rows its array has."""
    if _uses_blocks(operation):
        return range(count)
    if operation.rows:
        return range(operation.rows[0], operation.rows[0] + 1)
    return operation.arrays[0]


def _columns(operation: Operation, begin: int, count: int) -> RowsOrColumns:
    """Return the matrix's columns of a read or an addition; ``count``: how many columns its array has."""
    if operation.keys is not None:
        assert operation.keys.columns is not None
        return operation.keys.columns
    first_column = begin + int(operation.params.get("start", 0))
    return range(first_column, first_column + count)


def _applied_values(write: Operation) -> Array:
    """Return an addition's values as the server decodes them: rounded to the wire dtype."""
    values = write.arrays[-1]
    if write.wire is None or values.dtype.kind != "f":
        return values
    return widen(narrow(values.reshape(-1), write.wire), values.dtype)


def _may_change(write: Operation, read: Operation) -> bool:
    """Return True if an operation on the same partition may change the rows or blocks that are read."""
    if _uses_blocks(read) and _writes_columns(write):
        assert write.keys is not None
        assert read.keys is not None
        return bool(np.isin(write.keys.columns, read.keys.columns).any())  # type: ignore[arg-type]
    if _uses_blocks(read) or write.others or (not write.rows and write.name not in _ROW_OPERATIONS):
        return True
    return bool(np.isin(read.rows or read.arrays[0], write.rows or write.arrays[0]).any())


def _writes_columns(write: Operation) -> bool:
    """Return True if an operation changes only the blocks of the columns that it names."""
    if write.others or write.keys is None or write.keys.columns is None or write.name in SERVER_OPERATIONS:
        return False
    return {"blocks", SLOTS}.issubset(lookup(write.name).operands)


def _is_plain(operation: Operation) -> bool:
    if operation.into is None:
        return False
    if operation.name in ("gather", "rows_gather", "columns_pull"):
        return operation.keys is not None and operation.keys.columns is not None
    return operation.name == "rows_pull" or (operation.name == "pull" and "start" in operation.params)


def _is_addition(operation: Operation) -> bool:
    if operation.name not in _ADDITIONS + _SUBTRACTIONS:
        return False
    return operation.keys is None or operation.keys.columns is not None
