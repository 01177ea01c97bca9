"""Operations on several vectors, column by column (paper, section 4.2; Figures 3 and 8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import repeat
from typing import Any, Generic

from ps2.client.batch import submit
from ps2.client.declared import declared
from ps2.client.functions import map_partitions
from ps2.client.handle import H, Handle
from ps2.client.realign import colocated_copy
from ps2.client.results import PartitionResults
from ps2.errors import ConfigError, DTypeError
from ps2.ops.all import lookup, lookup_at
from ps2.ops.operands import SLOTS


class ZippedDCV(Generic[H]):
    """The result of ``u.zip(v, ...)``: several vectors for one operation.

    Vectors that are not co-located with the first are copied to it for each call, and copied back if the call may have
    changed them.
    """

    def __init__(self, vectors: tuple[H, ...]) -> None:
        for vector in vectors:
            if not isinstance(vector, Handle):
                raise DTypeError(f"zip: expected DCVs, got {type(vector).__name__}")
        self._vectors = vectors

    def mapPartitions(self, fn: Callable[..., Any], readOnly: bool = False) -> PartitionResults:
        """Call ``fn(u, v, ...)`` once per partition, on the servers, immediately.

        Args:
            fn: receives one array per vector, of its dtype, shape (columns of the partition,), writable: what ``fn``
                writes there is written to the vectors. ``fn`` is pickled, and runs with all rows of the partition
                locked.
            readOnly: True if ``fn`` only reads. Its arrays are then not writable, the server keeps no undo copy, and
                nothing is sent to replicas.

        Returns:
            The return values of the calls, in the order of the partitions.

        Raises:
            OpError: ``fn`` raised, or returned something that cannot be pickled; its changes to that partition are
                undone.
        """
        return self._map(fn, False, readOnly)

    def mapPartitionsWithIndex(self, fn: Callable[..., Any], readOnly: bool = False) -> PartitionResults:
        """Call ``fn(partition, u, v, ...)``: like ``mapPartitions``, with the ``Partition`` first."""
        return self._map(fn, True, readOnly)

    def apply(self, name: str, indices: Any = None, **given: Any) -> Any:
        """Run an operation (``ps2 ops`` lists them; docs/kernels.md) on the servers, atomically on each partition.

        Args:
            name: such as "adam", "sgd", "momentum", "adagrad", "rmsprop" or "ftrl", or an operation of your own.
            indices: int64 of shape (n,), any order, duplicates count once. Runs the operation at these columns only, if
                it supports that ("ftrl_weights"). Absent keys of a sparse vector stay absent.
            given: the operation's scalars and arrays. The declared axis of an array decides which slice each server
                gets.

        Returns:
            The declared answer, merged over all partitions; the first vector if the operation returns nothing.

        Raises:
            NotFoundError, ConfigError, DTypeError, ShapeError: there is no such operation, or its arguments are wrong.
        """
        op = lookup(name)
        if indices is not None:
            op = op if SLOTS in op.operands else lookup_at(name)
            given[op.names[op.operands.index(SLOTS)]] = indices
        first = self._vectors[0]
        if {"block", "blocks"}.intersection(op.operands):
            raise ConfigError(f"operation {name!r} works on all rows of a matrix: call it by `vector.matrix().apply`")
        if op.writes and len({(v._matrix, v._row) for v in self._vectors}) < len(self._vectors):
            raise ConfigError(f"operation {name!r}: the same vector is given twice")
        target, near = first._target(*self._vectors[1:]), list(self._vectors)
        if target.others:
            dtypes = [op.own_dtypes.get(read, first._spec.dtype) for read in op.reads[1:]]
            fitting = tuple((matrix, dtype) for (matrix, _), dtype in zip(target.others, dtypes, strict=False))
            declared(replace(target, others=fitting), op.name, given)  # invalid arguments must fail before data move
            near[1:] = map(colocated_copy, repeat(first), near[1:], dtypes)
            target = first._target(*near[1:])
        answer = submit(first._session, declared(target, op.name, given))
        self._write_back(near, written=op.writes, names=op.reads)
        return answer if op.answers or op.reduce else first

    def _map(self, fn: Callable[..., Any], with_index: bool, read_only: bool) -> PartitionResults:
        first = self._vectors[0]
        near = [v if first.isColocated(v) else colocated_copy(first, v) for v in self._vectors]
        plan = map_partitions(first._target(*near[1:]), fn, with_index, read_only)
        results: Any = submit(first._session, plan)
        names = tuple(str(i) for i in range(len(near)))
        if not read_only:
            self._write_back(near, written=names, names=names)
        return results

    def _write_back(self, near: list[H], written: tuple[str, ...], names: tuple[str, ...]) -> None:
        for name, original, used in zip(names, self._vectors, near, strict=True):
            if used is not original and name in written:
                source = colocated_copy(original, used)  # a copy is freed when the name goes out of scope
                submit(original._session, declared(original._target(source), "copy", {}))
