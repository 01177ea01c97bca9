"""What a server does: keeps shards and runs requests on them. Knows nothing of gRPC or protobuf."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np

from ps2.errors import (
    ConfigError,
    DTypeError,
    LimitError,
    OpError,
    OutOfRangeError,
    ProtocolError,
    PS2Error,
    ShapeError,
    StaleRouteError,
    UsageError,
)
from ps2.ops.table import Array, Op, lookup, writes
from ps2.partition import MatrixSpec, Partition
from ps2.server import udf
from ps2.server.keycache import KeyCache, KeySet
from ps2.server.memory import MemoryAccount
from ps2.server.metrics import Meter
from ps2.server.shard import Shard
from ps2.wire.messages import NO_RESULT, MatrixStatus, Operation, Reply, Request, RequestId, Result, nbytes

# Results of users' functions are kept for attempts that come again, up to this much.
KEPT_RESULTS_BYTES = 64 << 20


class Engine:
    """All shards of one server."""

    def __init__(self, memory_limit_bytes: int, allow_udf: bool) -> None:
        self.memory = MemoryAccount(memory_limit_bytes)
        self._allow_udf = allow_udf
        self._shards: dict[tuple[int, int], Shard] = {}
        self._lock = threading.Lock()  # of the dict; each shard has its own
        self._kept = _KeptResults()
        self.keys = KeyCache(self.memory)
        self.meter = Meter()

    def create_matrix(self, matrix: int, spec: MatrixSpec, partitions: Sequence[Partition]) -> None:
        """Allocate the shards of a matrix, all or none; one that exists is left as it is."""
        made: dict[tuple[int, int], Shard] = {}
        with self._lock:
            held = [shard.partition for (owner, _), shard in self._shards.items() if owner == matrix]
            absent = [partition for partition in partitions if partition not in held]
            _check_partitions(matrix, spec, held + absent)
            try:
                for partition in absent:
                    made[matrix, partition.index] = Shard(spec, partition, self.memory)
            except Exception:
                for shard in made.values():
                    shard.free()
                raise
            self._shards.update(made)

    def update_rows(self, matrix: int, rows: int, freed: Sequence[int], reused: Sequence[int]) -> None:
        """Grow a matrix to ``rows`` rows (0: leave it), then take rows out of use, or put them in use as zeros."""
        shards = self._of_matrix(matrix)
        end = max(rows, *(shard.rows for shard in shards))
        # Before anything is changed, or some shards would grow and others not.
        if outside := [number for number in (*freed, *reused) if number >= end]:
            raise OutOfRangeError(f"row {outside[0]} is outside [0, {end})")
        for shard in shards:
            with shard.lock:
                shard.grow_rows(rows)
                shard.retire_rows(list(freed))
                shard.reuse_rows(list(reused))

    def free_matrix(self, matrix: int) -> None:
        with self._lock:
            gone = [self._shards.pop(key) for key in list(self._shards) if key[0] == matrix]
        for shard in gone:
            with shard.lock:
                shard.free()
        self.keys.forget(matrix)

    def reserve(self, size: int) -> None:
        """Count what the arrays of a request take, before they are taken; raises LimitError if they do not fit."""
        try:
            self.memory.take(size, "a request")
        except LimitError as error:
            self.meter.refuse(error)
            raise

    def release(self, size: int) -> None:
        self.memory.give(size)

    def execute(self, request: Request) -> Reply:
        """Run a request's operations in order, under the locks of all their shards.

        A mutation whose id a shard has applied is not applied again; reads run every time. If an operation fails,
        those before it stay applied, and the same request sent again goes on after them.
        """
        self.meter.begin(sum(op.nbytes for op in request.operations))
        try:
            keys = self.keys.resolve(request.operations)
            with self._locked(request) as shards:
                reply = self._run(request, shards, keys)
            for used in keys:
                if used is not None:
                    self.keys.remember(used)
        except BaseException as error:
            self.meter.end(0, error)
            raise
        self.meter.end(sum(nbytes(result.arrays) for result in reply.results))
        return reply

    def matrices(self) -> list[MatrixStatus]:
        with self._lock:
            shards = dict(self._shards)
        by_matrix: dict[int, list[Shard]] = {}
        for (matrix, _), shard in sorted(shards.items()):
            by_matrix.setdefault(matrix, []).append(shard)
        return [
            MatrixStatus(
                matrix=matrix,
                spec=group[0].spec,
                rows=group[0].rows,
                bytes=sum(shard.nbytes for shard in group),
                active_keys=sum(shard.live for shard in group if shard.index is not None),
                partitions=tuple(shard.partition for shard in group),
            )
            for matrix, group in by_matrix.items()
        ]

    def _of_matrix(self, matrix: int) -> list[Shard]:
        with self._lock:
            found = [shard for (owner, _), shard in self._shards.items() if owner == matrix]
        if not found:
            raise StaleRouteError(f"this server holds nothing of matrix {matrix:x}")
        return found

    @contextmanager
    def _locked(self, request: Request) -> Iterator[list[Shard]]:
        """Hold the locks of the request's shards; taken in one order, so that no two requests wait for each other."""
        keys = [(op.matrix, op.partition) for op in request.operations]
        with self._lock:
            for key in keys:
                if key not in self._shards:
                    raise StaleRouteError(f"this server does not hold partition {key[1]} of matrix {key[0]:x}")
            shards = {key: self._shards[key] for key in keys}
        with ExitStack() as stack:
            for key in sorted(shards):
                self.meter.acquire(shards[key].lock)
                stack.callback(shards[key].lock.release)
            yield [shards[key] for key in keys]

    def _run(self, request: Request, shards: list[Shard], keys: list[KeySet | None]) -> Reply:
        id = request.id
        replayed = id is not None and any(id in shard.applied for shard in shards)
        changed: set[Shard] = set()
        results: list[Result] = []
        for position, (operation, shard) in enumerate(zip(request.operations, shards, strict=True)):
            began_s = time.perf_counter()
            try:
                results.append(self._run_one(id, position, operation, shard, keys[position]))
            except Exception as error:
                self.meter.ran(operation, time.perf_counter() - began_s, failed=True)
                if id is not None:
                    for done in changed:
                        done.applied.add_begun(id, position)
                if changed and isinstance(error, PS2Error):
                    raise type(error)(
                        f"{error}\n(the {position} operations before it in the batch are applied)"
                    ) from error
                raise
            self.meter.ran(operation, time.perf_counter() - began_s)
            if writes(operation.name):
                changed.add(shard)
        if id is not None:
            for done in changed:
                done.applied.add(id)
        return Reply(tuple(results), replayed)

    def _run_one(
        self, id: RequestId | None, position: int, operation: Operation, shard: Shard, keys: KeySet | None
    ) -> Result:
        if writes(operation.name) and id is None:
            raise ProtocolError(f"operation {operation.name!r} changes data, so its request needs an id")
        again = id is not None and shard.applied.covers(id, position)
        if operation.name == "keys":
            return Result(arrays=(_keys(shard, operation),))
        if operation.name == "map":
            if again:
                return self._kept.get(id, position)
            result = self._map(operation, shard)
            self._kept.put(id, position, result)
            return result
        op = lookup(operation.name)
        if op.writes and again:
            return NO_RESULT
        self._check_reply(op, operation, shard)
        value = _call(op, operation, shard, keys)
        if value is None:
            return NO_RESULT
        return Result(arrays=(value,)) if isinstance(value, np.ndarray) else Result(scalar=float(value))

    def _check_reply(self, op: Op, operation: Operation, shard: Shard) -> None:
        """Raise LimitError if there is no room for rows that are asked for: they can be far more than what asks."""
        if op.writes or op.reduce is not None or "row_ids" not in op.arrays:
            return
        size = shard.spec.np_dtype.itemsize * math.prod(array.size for array in operation.arrays)
        if "slots" not in op.arrays:
            size *= int(shard.array.shape[1])
        elif operation.keys is not None:
            size *= operation.keys.count
        self.memory.take(size, f"the reply to operation {op.name!r}")
        self.memory.give(size)

    def _map(self, operation: Operation, shard: Shard) -> Result:
        if not self._allow_udf:
            raise UsageError(
                "mapPartitions: this fleet does not run users' functions (it was started without a token or "
                "with --no-udf)"
            )
        if len(operation.arrays) != 1 or operation.arrays[0].dtype != np.uint8:
            raise ProtocolError("operation 'map' takes one array of bytes, the pickled function")
        fn = udf.unpickle(operation.arrays[0])
        rows = [shard.row(number) for number in operation.rows]
        shard.touched.drop(operation.rows)
        leading = (shard.partition,) if operation.params.get("with_index") else ()
        return Result(arrays=(udf.run(fn, leading, rows, self.memory),))


def _check_partitions(matrix: int, spec: MatrixSpec, partitions: Sequence[Partition]) -> None:
    """Raise ProtocolError unless they are different partitions of the matrix that do not overlap."""
    end_before = 0
    for partition in sorted(partitions, key=lambda partition: partition.begin):
        where = f"partition {partition.index} of matrix {matrix:x} is [{partition.begin}, {partition.end})"
        if partition.end > spec.space:
            raise ProtocolError(f"{where}, and the matrix ends at {spec.space}")
        if partition.begin < end_before:
            raise ProtocolError(f"{where}, and the one before it ends at {end_before}")
        end_before = partition.end
    if len({partition.index for partition in partitions}) < len(partitions):
        raise ProtocolError(f"two partitions of matrix {matrix:x} have one index")


def _call(op: Op, operation: Operation, shard: Shard, keys: KeySet | None) -> Array | float | None:
    """Give an operation the arrays it asks for, and run it."""
    scalars = op.check(len(operation.rows), shard.spec.dtype, operation.params)
    travels = op.arrays if keys is None else tuple(kind for kind in op.arrays if kind != "slots")
    if len(operation.arrays) != len(travels) or (keys is not None and "slots" not in op.arrays):
        raise ShapeError(
            f"operation {op.name!r} takes {', '.join(op.arrays) or 'no arrays'}, got {len(operation.arrays)} arrays"
            f"{' and a set of keys' if keys is not None else ''}"
        )
    if op.writes and len(set(operation.rows)) < len(operation.rows) and len(op.operands) > 2:
        raise ConfigError(f"operation {op.name!r}: the same vector twice among rows {list(operation.rows)}")
    shard.check_rows(np.array(operation.rows, dtype=np.int64))
    rows = iter(operation.rows)
    arrays = iter(operation.arrays)
    operands: list[Array] = []
    # Slots first: new keys may move the array that the row views are cut from.
    given = iter(
        [
            keys.find(shard, op.creates)
            if kind == "slots" and keys is not None
            else _travelled(op, kind, next(arrays), shard, operation)
            for kind in op.arrays
        ]
    )
    for kind in op.operands:
        if kind == "row":
            operands.append(shard.row(next(rows)))
        elif kind == "block":
            operands.append(shard.array)
        else:
            operands.append(next(given))
    value: Array | float | None = shard.touched.call(op, operation.rows, operands, scalars)
    return value


def _travelled(op: Op, kind: str, array: Array, shard: Shard, operation: Operation) -> Array:
    expected = {"values": shard.spec.np_dtype, "floats": np.dtype(np.float64)}.get(kind, np.dtype(np.int64))
    if operation.wire is not None and kind == "values" and array.dtype == np.float32:
        array = array.astype(expected, copy=False)  # it was made shorter for the way
    if array.dtype != expected:
        raise DTypeError(f"operation {op.name!r}: expected {kind} of {expected}, got {array.dtype}")
    if kind == "slots":
        return shard.slots(array, op.creates)
    if kind == "row_ids":
        shard.check_rows(array)
    return array


def _keys(shard: Shard, operation: Operation) -> Array:
    if shard.index is None:
        raise UsageError("operation 'keys' works on sparse vectors")
    start, stop = int(operation.params.get("start", 0)), int(operation.params.get("stop", -1))
    end = len(shard.index) if stop == -1 else stop
    if not 0 <= start <= end <= len(shard.index):
        raise OutOfRangeError(f"start and stop: expected 0 <= start <= stop <= {len(shard.index)}, got {start}, {stop}")
    return shard.index.keys[start:end].copy()


class _KeptResults:
    """Results of users' functions by request id, the oldest dropped first. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._results: OrderedDict[tuple[RequestId, int], Result] = OrderedDict()
        self._bytes = 0

    def put(self, id: RequestId | None, position: int, result: Result) -> None:
        assert id is not None
        with self._lock:
            self._results[id, position] = result
            self._bytes += nbytes(result.arrays)
            while self._bytes > KEPT_RESULTS_BYTES:
                _, dropped = self._results.popitem(last=False)
                self._bytes -= nbytes(dropped.arrays)

    def get(self, id: RequestId | None, position: int) -> Result:
        with self._lock:
            result = self._results.get((id, position)) if id is not None else None
        if result is None:
            raise OpError(
                "this mapPartitions was applied by an earlier attempt, and its result is no longer kept; "
                "results of more than 64 MB in all are not"
            )
        return result
