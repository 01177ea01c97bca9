"""Operations on several vectors, column by column (paper, section 4.2; Figures 3 and 8)."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import repeat
from typing import Any, Generic, Protocol, TypeVar

import cloudpickle
import numpy as np

from ps2.client.batch import submit, submit_all
from ps2.client.declared import declared
from ps2.client.handle import H, Handle
from ps2.client.plans import Plan, Target
from ps2.client.realign import colocated_copy
from ps2.client.session import Session
from ps2.errors import ConfigError, DTypeError, ShapeError, UsageError
from ps2.ops.all import lookup, lookup_at
from ps2.ops.operands import SLOTS
from ps2.protocol.messages import Operation, Result


class PartitionResults:
    """One result per partition, in the order of the partitions (paper, Figures 3 and 8)."""

    def __init__(self, results: list[Any]) -> None:
        self._results = results

    def collect(self) -> list[Any]:
        """Return the results as a list."""
        return list(self._results)

    def sum(self) -> Any:
        """Return the sum of the results."""
        return self.reduce(lambda a, b: a + b)

    def max(self, key: Callable[[Any], Any] | None = None) -> Any:
        """Return the largest result; with ``key``, the result with the largest ``key(result)``."""
        return max(self._results, key=key) if key is not None else max(self._results)

    def min(self, key: Callable[[Any], Any] | None = None) -> Any:
        """Return the smallest result; with ``key``, the result with the smallest ``key(result)``."""
        return min(self._results, key=key) if key is not None else min(self._results)

    def reduce(self, f: Callable[[Any, Any], Any]) -> Any:
        """Fold the results from left to right with a function of two results."""
        return functools.reduce(f, self._results)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._results)

    def __len__(self) -> int:
        return len(self._results)

    def __repr__(self) -> str:
        return f"PartitionResults({self._results!r})"


def map_partitions(
    target: Target, fn: Callable[..., Any], with_index: bool, read_only: bool = False
) -> Plan[PartitionResults]:
    """Plan to call a user's function on every partition."""
    if not callable(fn):
        raise UsageError(f"mapPartitions: expected a function, got {fn!r}")
    try:
        pickled_fn = np.frombuffer(cloudpickle.dumps(fn), np.uint8)
    except Exception as error:  # a closure may contain any object, and pickling may raise any exception
        raise UsageError(f"mapPartitions: {fn!r} cannot be pickled: {error}") from error
    operations = tuple(
        Operation(
            "look" if read_only else "map",
            target.matrix,
            p.index,
            target.rows,
            {"with_index": int(with_index)},
            (pickled_fn,),
            others=target.other_matrices,
        )
        for p in target.partitions
    )

    def merge(results: list[Result]) -> PartitionResults:
        return PartitionResults([pickle.loads(result.arrays[0].tobytes()) for result in results])

    return Plan(target.matrix, target.route, operations, merge, mutates=not read_only, batchable=False)


class ZippedDCV(Generic[H]):
    """The result of ``u.zip(v, ...)``: several vectors for operations on the same columns of all of them.

    For each call, vectors that are not co-located with the first vector are copied to its servers. If the call may
    change them, they are copied back.
    """

    def __init__(self, vectors: tuple[H, ...]) -> None:
        for vector in vectors:
            if not isinstance(vector, Handle):
                raise DTypeError(f"zip: expected DCVs, got {type(vector).__name__}")
        self._vectors = vectors

    def mapPartitions(self, fn: Callable[..., Any], readOnly: bool = False) -> PartitionResults:
        """Call ``fn(u, v, ...)`` once per partition, on the servers, immediately.

        Args:
            fn: receives one array per vector, of the vector's dtype and shape (columns of the partition,). The arrays
                are writable, and changes to them change the vectors. ``fn`` is pickled, and runs while all rows of the
                partition are locked.
            readOnly: True if ``fn`` only reads. Its arrays are then not writable, the server keeps no undo copy, and
                nothing is sent to replicas.

        Returns:
            The return values of the calls, in the order of the partitions.

        Raises:
            OpError: ``fn`` raised an error or returned an object that cannot be pickled; its changes to that partition
                are undone.
        """
        return self._map(fn, False, readOnly)

    def mapPartitionsWithIndex(self, fn: Callable[..., Any], readOnly: bool = False) -> PartitionResults:
        """Call ``fn(partition, u, v, ...)``: like ``mapPartitions``, with the ``Partition`` as first argument."""
        return self._map(fn, True, readOnly)

    def apply(self, name: str, indices: Any = None, **given: Any) -> Any:
        """Run an operation (``ps2 ops`` lists them; docs/kernels.md) on the servers, atomically on each partition.

        Args:
            name: the operation: "adam", "sgd", "momentum", "adagrad", "rmsprop", "ftrl" or an operation of your own.
            indices: int64 of shape (n,), any order, duplicates count once. Runs the operation only at these columns, if
                it supports indices ("ftrl_weights"). Absent keys of a sparse vector stay absent.
            given: the operation's scalars and arrays. The declared axis of an array decides which slice each server
                gets.

        Returns:
            The declared answer, merged over all partitions; the first vector if the operation returns nothing.

        Raises:
            NotFoundError, ConfigError, DTypeError, ShapeError: there is no such operation, or an argument is invalid.
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
        target, colocated = first._target(*self._vectors[1:]), list(self._vectors)
        if target.others:
            dtypes = [op.own_dtypes.get(read, first._spec.dtype) for read in op.reads[1:]]
            typed = tuple((matrix, dtype) for (matrix, _), dtype in zip(target.others, dtypes, strict=False))
            declared(replace(target, others=typed), op.name, given)  # invalid arguments must fail before data move
            colocated[1:] = map(colocated_copy, repeat(first), colocated[1:], dtypes)
            target = first._target(*colocated[1:])
        answer = submit(first._session, declared(target, op.name, given))
        self._write_back(colocated, written=op.writes, names=op.reads)
        return answer if op.answers or op.reduce else first

    def _map(self, fn: Callable[..., Any], with_index: bool, read_only: bool) -> PartitionResults:
        first = self._vectors[0]
        colocated = [v if first.isColocated(v) else colocated_copy(first, v) for v in self._vectors]
        plan = map_partitions(first._target(*colocated[1:]), fn, with_index, read_only)
        results: Any = submit(first._session, plan)
        names = tuple(str(i) for i in range(len(colocated)))
        if not read_only:
            self._write_back(colocated, written=names, names=names)
        return results

    def _write_back(self, colocated: list[H], written: tuple[str, ...], names: tuple[str, ...]) -> None:
        """Copy the vectors with a name in ``written`` back to their originals."""
        for name, original, copy in zip(names, self._vectors, colocated, strict=True):
            if copy is not original and name in written:
                source = colocated_copy(original, copy)  # a copy is freed when the variable goes out of scope
                submit(original._session, declared(original._target(source), "copy", {}))


class Matrix(Protocol):
    """The part of ``DCVMatrix`` that this module uses."""

    _first: Handle

    @property
    def number(self) -> int: ...
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def _session(self) -> Session: ...
    def _target(self) -> Target: ...
    def _colocated(self, label: str, kind: str, operand: Any) -> Handle: ...


M = TypeVar("M", bound=Matrix)


class ZippedMatrix(Generic[M]):
    """The result of ``m.zip(other, ...)``: matrices of equal shape, for operations on the vectors of each row."""

    def __init__(self, matrices: tuple[M, ...]) -> None:
        first, *others = matrices
        for other in others:
            handle = first._colocated("zip", "block", other)
            if handle._matrix == first.number:
                raise ConfigError("zip: the same matrix is given twice")
            if other.shape != first.shape:
                raise ShapeError(f"zip: expected matrices of shape {first.shape}, got {other.shape}")
        self._matrices = matrices

    def apply(self, name: str, **scalars: Any) -> Any:
        """Run an operation on vectors, such as "adagrad", on each row of the matrices, with one request per server.

        Args:
            scalars: the operation's scalars.

        Returns:
            The answers of the rows, float64 of shape (rows,); the first matrix if the operation returns nothing.

        Raises:
            UsageError: the operation takes other operands than vectors and scalars.
            NotFoundError, ConfigError, DTypeError, ShapeError: there is no such operation, or an argument is invalid.
        """
        op = lookup(name)
        if set(op.operands) != {"row"}:
            raise UsageError(f"operation {name!r}: expected only vectors and scalars as operands; use m.apply instead")
        first = self._matrices[0]
        others = [matrix._first for matrix in self._matrices[1:]]
        target = replace(first._target(), others=first._first._others(others))
        plans = [
            declared(replace(target, rows=(row,) * len(self._matrices)), name, scalars) for row in range(first.shape[0])
        ]
        answers = submit_all(first._session, plans)
        return np.array(answers) if op.reduce else first
