"""Several vectors, operated on column by column (paper, section 4.2; Figures 3 and 8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import repeat
from typing import Any, Generic

from ps2.client.batch import submit
from ps2.client.declared import declared
from ps2.client.functions import map_partitions
from ps2.client.handle import H, Handle
from ps2.client.realign import beside
from ps2.client.results import PartitionResults
from ps2.errors import ConfigError, DTypeError
from ps2.ops.all import lookup, lookup_at
from ps2.ops.operands import SLOTS


class ZippedDCV(Generic[H]):
    """What ``u.zip(v, ...)`` returns. Vectors that are not co-located with the first are brought beside it for each
    call, and written back after one that may have changed them."""

    def __init__(self, vectors: tuple[H, ...]) -> None:
        for vector in vectors:
            if not isinstance(vector, Handle):
                raise DTypeError(f"zip: expected DCVs, got {type(vector).__name__}")
        self._vectors = vectors

    def mapPartitions(self, fn: Callable[..., Any], readOnly: bool = False) -> PartitionResults:
        """Call ``fn(u, v, ...)`` once a partition, on the servers, right now.

        Args:
            fn: gets one array a vector, of its dtype, shape (columns of the partition,), writable: what it writes there
                is written to the vectors. It is pickled; it runs with all of the partition's rows locked.

            readOnly: it only looks: its arrays are not writable, nothing is copied for undoing it, and nothing goes to
                the servers' copies.

        Returns:
            What the calls returned, in the order of the partitions.

        Raises:
            OpError: it raised, or returned what cannot be pickled; what it had written on that partition is undone.
        """
        return self._map(fn, False, readOnly)

    def mapPartitionsWithIndex(self, fn: Callable[..., Any], readOnly: bool = False) -> PartitionResults:
        """Call ``fn(partition, u, v, ...)``: like ``mapPartitions``, with the ``Partition`` first."""
        return self._map(fn, True, readOnly)

    def apply(self, name: str, indices: Any = None, **given: Any) -> Any:
        """Run an operation (``ps2 ops`` lists them; docs/kernels.md) on the servers, atomically on each partition.

        Args:
            name: such as "adam", "sgd", "momentum", "adagrad", "rmsprop" or "ftrl", or one of your own.
            indices: int64 of shape (n,), any order, duplicates count once: run it at these columns only, if it can
                ("ftrl_weights"); absent keys of a sparse vector stay absent.
            given: the operation's scalars, and its arrays. What they run along decides what of them each server gets.

        Returns:
            What the operation declares to return, of all partitions together; the first vector if it returns nothing.

        Raises:
            NotFoundError, ConfigError, DTypeError, ShapeError: no such operation, or not with these arguments.
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
            declared(replace(target, others=fitting), op.name, given)  # bad arguments move nothing
            near[1:] = map(beside, repeat(first), near[1:], dtypes)
            target = first._target(*near[1:])
        answer = submit(first._session, declared(target, op.name, given))
        self._write_back(near, written=op.writes, names=op.reads)
        return answer if op.answers or op.reduce else first

    def _map(self, fn: Callable[..., Any], with_index: bool, read_only: bool) -> PartitionResults:
        first = self._vectors[0]
        near = [v if first.isColocated(v) else beside(first, v) for v in self._vectors]
        plan = map_partitions(first._target(*near[1:]), fn, with_index, read_only)
        results: Any = submit(first._session, plan)
        names = tuple(str(i) for i in range(len(near)))
        if not read_only:
            self._write_back(near, written=names, names=names)
        return results

    def _write_back(self, near: list[H], written: tuple[str, ...], names: tuple[str, ...]) -> None:
        for name, original, used in zip(names, self._vectors, near, strict=True):
            if used is not original and name in written:
                source = beside(original, used)  # it is freed when this name is gone
                submit(original._session, declared(original._target(source), "copy", {}))
