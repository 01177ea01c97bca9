"""Plans a call of any declared operation: cuts its arguments by partition, keys and blocks, and merges the answers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from ps2.client import merging, plans
from ps2.client.arguments import as_indices, as_integers, as_rows, as_values, as_wire_values
from ps2.client.keysets import SPLITS, SplitKeys
from ps2.client.plans import Plan, Target
from ps2.data.plain_arrays import as_array
from ps2.errors import ConfigError, DTypeError, UsageError
from ps2.matrix.partition import MAX_ROWS, Partition
from ps2.ops.all import lookup
from ps2.ops.operands import BLOCK, COLUMNS, SLOTS, Along, lengths
from ps2.ops.table import Array, Op
from ps2.protocol.messages import Keys, Operation, Result


@dataclass(frozen=True)
class DeclaredStep:
    """An operation to apply to a vector that does not exist yet."""

    name: str
    others: tuple[Any, ...] = ()  # the vectors that are the operands after the first
    value: int | float | None = None  # the scalar argument; None if the operation takes none

    def plan_on(self, target: Target) -> Plan[Any]:
        return declared(target, self.name, {} if self.value is None else {"value": self.value})


def declared(target: Target, name: str, arguments: Mapping[str, Any]) -> Plan[Any]:
    """Plan a call of an operation on all partitions that it needs. The answers are merged as the operation declares.

    ``arguments``: the operation's arguments by name. Columns may be in any order. Duplicate columns are merged, unless
    another array or an answer has an entry for each column: then the operation gets all duplicates.
    """
    op = lookup(name)
    names = [operand[0] for operand in op.request_operands]
    rows = target.rows if op.rows else ()
    others = [dtype for _, dtype in target.others] if target.others else None
    scalars = op.check(len(rows), target.spec.dtype, {n: v for n, v in arguments.items() if n not in names}, others)
    if not op.request_operands and not op.answers:
        return _without_arrays(op, target, rows, scalars)
    arrays = _Arrays.of(op, {n: arguments[n] for n in names if n in arguments}, target)
    parts = list(arrays.parts())
    # The narrow wire dtype applies only if all floats of the request and the answer are values of the matrix.
    wire = None if op.answers or "floats" in op.operands else target.spec.wire
    matrices = target.other_matrices
    operations = tuple(
        Operation(
            name,
            target.matrix,
            part.partition.index,
            rows,
            scalars,
            arrays.cut(part),
            part.keys,
            wire,
            arrays.reply_bytes(part),
            others=matrices,
        )
        for part in parts
    )

    def merge(results: list[Result]) -> Any:
        replies = list(zip(parts, results, strict=True))
        return merging.merged(op, target.spec.np_dtype, arrays.lengths, arrays.split, replies)

    return Plan(target.matrix, target.route, operations, merge, bool(op.writes))


def extreme(target: Target, name: str) -> Plan[Any]:
    """Plan ``max`` or ``min`` of a vector; the absent keys of a sparse vector count as 0."""
    plan = declared(target, name, {})
    if target.spec.kind == "dense":
        return plan
    count = declared(target, "count", {})
    pick = np.maximum if name == "max" else np.minimum
    num_operations = len(plan.operations)

    def merge(results: list[Result]) -> float:
        value, active = plan.merge(results[:num_operations]), count.merge(results[num_operations:])
        return float(pick(value, 0.0)) if active < target.spec.dim else float(value)

    return Plan(target.matrix, target.route, plan.operations + count.operations, merge, mutates=False)


def _without_arrays(op: Op, target: Target, rows: tuple[int, ...], scalars: Mapping[str, Any]) -> Plan[Any]:
    """Plan an operation that takes only scalars, and returns a number or nothing."""
    operations = tuple(
        [
            Operation(op.name, target.matrix, partition.index, rows, scalars, others=target.other_matrices)
            for partition in target.partitions
        ]
    )
    return Plan(target.matrix, target.route, operations, lambda results: merging.reduced(op, results), bool(op.writes))


@dataclass(frozen=True)
class _Arrays:
    """The arrays of one call.

    Attributes:
        operands: the name, kind, axes and array of each argument; arrays along the columns are in the split's order.
        lengths: the total length of each axis.
        split: the call's columns, grouped by partition; None if the call names no columns.
        sends_duplicates: True if duplicate columns are sent, False if they are merged.
    """

    op: Op
    target: Target
    operands: tuple[tuple[str, str, Along, Array], ...]
    lengths: Mapping[str, int]
    split: SplitKeys | None
    sends_duplicates: bool

    @classmethod
    def of(cls, op: Op, arguments: Mapping[str, Any], target: Target) -> _Arrays:
        label = f"operation {op.name!r}"
        if missing := [name for name, _, _ in op.request_operands if name not in arguments]:
            raise ConfigError(f"{label}: {missing[0]}: this argument is required")
        arrays = {name: _checked_argument(name, kind, arguments[name], target) for name, kind, _ in op.request_operands}
        known_lengths = (
            {BLOCK: target.spec.rows}
            if target.spec.kind == "sparse"
            else {BLOCK: target.spec.rows, COLUMNS: target.spec.dim}
        )
        axes = {name: (along, arrays[name].shape) for name, _, along in op.request_operands}
        axis_lengths = lengths(label, axes, known_lengths)
        all_axes = [along.axes for along, _ in axes.values()] + [answer.axes for answer in op.answers]
        if any(COLUMNS in axis_names for axis_names in all_axes) and COLUMNS not in known_lengths:
            raise UsageError(f"{label} needs a dense matrix: the columns of a sparse matrix are not known in advance")
        split, sends_duplicates = None, False
        slots = next((name for name, kind, _ in op.request_operands if kind == SLOTS), None)
        if slots is not None:
            split = SPLITS.split(target.spec, target.route, arrays[slots])
            other_axes = [along.axes for name, _, along in op.request_operands if name != slots] + [
                answer.axes for answer in op.answers
            ]
            sends_duplicates = split.starts is not None and any(SLOTS in axes for axes in other_axes)
            if split.order is not None:
                counts = {along.by: arrays[along.by] for _, _, along in op.request_operands if along.by is not None}
                for name, _, along in op.request_operands:
                    if SLOTS in along.axes and (name != slots or sends_duplicates):
                        arrays[name] = _reorder(arrays[name], along, split.order, counts)
        operands = tuple((name, kind, along, arrays[name]) for name, kind, along in op.request_operands)
        return cls(op, target, operands, axis_lengths, split, sends_duplicates)

    def parts(self) -> Iterator[merging.Part]:
        """Yield the parts of the call: one for each partition, run of columns, and block."""
        for partition, slots, keys in self._column_runs():
            for block in self._blocks(slots):
                yield merging.Part(partition, slots, block, keys)

    def cut(self, part: merging.Part) -> tuple[Array, ...]:
        """Return the arrays that are sent to a part."""
        return tuple(
            self._cut(along, array, part)
            for _, kind, along, array in self.operands
            if kind != SLOTS or part.keys is None
        )

    def reply_bytes(self, part: merging.Part) -> int:
        """Return the approximate size of the part's answer in bytes."""
        size = 0
        for answer in self.op.answers:
            shape = [part.length(axis, self.lengths, self.op.blocks) for axis in answer.axes]
            size += math.prod(shape) * (answer.dtype or self.target.spec.np_dtype).itemsize
        return size

    def _cut(self, along: Along, array: Array, part: merging.Part) -> Array:
        if along.by is not None:
            offsets = self._offsets(along.by)
            assert part.slots is not None
            return array[offsets[part.slots.start] : offsets[part.slots.stop]]
        return array[tuple(part.slice(axis, self.op.blocks) for axis in along.axes)]

    def _offsets(self, counts_name: str) -> Array:
        """Return the offset of each column's entries, and their total, from the operand with the entry counts."""
        counts = next(array for name, _, _, array in self.operands if name == counts_name)
        return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))

    def _column_runs(self) -> Iterator[tuple[Partition, slice | None, Keys | None]]:
        """Yield each partition; if the call names columns, once for each run of about ``_block_budget`` bytes."""
        partitions = self.target.route.partitions
        if self.split is None:
            yield from ((partition, None, None) for partition in partitions)
            return
        byte_offsets = np.concatenate(([0], np.cumsum(self._slot_bytes())))
        groups: Iterator[tuple[int, slice, Keys | None]] = iter(self.split.key_sets())
        if self.sends_duplicates:
            groups = ((index, window, None) for index, window in _partition_ranges(self.split))
        for index, window, keys in groups:
            for run in _runs(byte_offsets, window, self._block_budget()):
                is_cut = keys is not None and run != window
                yield partitions[index], run, Keys(run.stop - run.start, self.split.columns[run]) if is_cut else keys

    def _slot_bytes(self) -> Array:
        """Return the bytes of each column in the request and the answer, for one index of the block axis."""
        assert self.split is not None
        count = self.lengths[SLOTS] if self.sends_duplicates else self.split.columns.size
        size = np.zeros(count)
        for _, kind, along, array in self.operands:
            if along.by is not None:
                size += np.diff(self._offsets(along.by)) * array.itemsize
            elif SLOTS in along.axes and (kind != SLOTS or self.sends_duplicates):
                size += self._elements_per_step(along.axes) * array.itemsize
        for answer in self.op.answers:
            if SLOTS in answer.axes:
                size += self._elements_per_step(answer.axes) * (answer.dtype or self.target.spec.np_dtype).itemsize
        return size

    def _elements_per_step(self, axes: Sequence[Any]) -> int:
        """Return how many elements of an array belong to one column and one index of the block axis."""
        return math.prod(
            axis if isinstance(axis, int) else self.lengths.get(axis, 1)
            for axis in axes
            if axis not in (SLOTS, self.op.blocks)
        )

    def _block_budget(self) -> int:
        """Return the limit of a request, in bytes, without the arrays that every request has; at least half a block."""
        cut_axes = {SLOTS, self.op.blocks}
        uncut_bytes = sum(array.nbytes for _, _, along, array in self.operands if not cut_axes.intersection(along.axes))
        return max(plans.BLOCK_BYTES - uncut_bytes, plans.BLOCK_BYTES // 2)

    def _blocks(self, slots: slice | None) -> Iterator[slice | None]:
        """Yield slices of the op's ``blocks`` axis, of about ``_block_budget`` bytes; None if it has no such axis."""
        if self.op.blocks is None:
            yield None
            return
        columns = 1 if slots is None else slots.stop - slots.start
        itemsize = self.target.spec.np_dtype.itemsize
        sizes = [(along.axes, array.itemsize) for _, _, along, array in self.operands]
        sizes += [(answer.axes, (answer.dtype or np.dtype(f"V{itemsize}")).itemsize) for answer in self.op.answers]
        step_bytes = sum(
            self._elements_per_step(axes) * (columns if SLOTS in axes else 1) * size
            for axes, size in sizes
            if self.op.blocks in axes
        )
        length, step = self.lengths[self.op.blocks], max(1, self._block_budget() // max(step_bytes, 1))
        for start in range(0, length, step):
            yield slice(start, min(start + step, length))


def _checked_argument(name: str, kind: str, value: Any, target: Target) -> Array:
    """Return an array argument, checked and converted to the dtype of its kind."""
    if kind == SLOTS:
        return as_indices(value)
    if kind == "row_ids":
        # A vector's handle does not know how many rows its matrix has grown to.
        return as_rows(name, value, MAX_ROWS if target.rows else target.spec.rows)
    if kind == "integers":
        return as_integers(name, value)
    array = as_array(name, value)
    if kind == "values":
        return as_wire_values(array, target.spec, array.shape, name)
    if kind == "floats":
        return as_values(array, np.dtype(np.float64), array.shape, name)
    if array.dtype.kind != "u":
        raise DTypeError(f"{name}: expected unsigned integers, got {array.dtype}")
    return np.ascontiguousarray(array)


def _reorder(array: Array, along: Along, order: Array, counts: Mapping[str, Array]) -> Array:
    """Reorder an array along its columns into the order of the split."""
    if along.by is None:
        return array.take(order, axis=along.axes.index(SLOTS))
    sizes = counts[along.by].astype(np.int64)
    starts = np.cumsum(sizes) - sizes
    new_starts = np.cumsum(sizes[order]) - sizes[order]
    return array[np.repeat(starts[order] - new_starts, sizes[order]) + np.arange(array.size)]


def _partition_ranges(split: SplitKeys) -> Iterator[tuple[int, slice]]:
    """Yield each partition and the range of its columns, with duplicates adjacent."""
    assert split.order is not None
    assert split.starts is not None
    bounds = np.append(split.starts, split.order.size)
    for index, groups in groupby(split.groups, lambda group: group.partition):
        partition_groups = list(groups)
        yield index, slice(int(bounds[partition_groups[0].begin]), int(bounds[partition_groups[-1].end]))


def _runs(byte_offsets: Array, window: slice, limit_bytes: int) -> Iterator[slice]:
    """Cut columns into runs of about ``limit_bytes``. ``byte_offsets``: the prefix sums of the columns' sizes."""
    begin = window.start
    while begin < window.stop:
        limit = byte_offsets[begin] + limit_bytes
        end = int(np.searchsorted(byte_offsets[begin + 1 : window.stop + 1], limit, side="right")) + begin
        yield slice(begin, max(end, begin + 1))
        begin = max(end, begin + 1)
