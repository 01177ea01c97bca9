"""Requests and replies between clients and servers as plain data, independent of encoding and transport."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from ps2.array_types import Int64s
from ps2.matrix.partition import Wire

Array = npt.NDArray[Any]
ShardId = tuple[int, int]  # matrix, partition

PROTOCOL_VERSION = 11

# The most frequent operations, on one row or on column blocks. A compiled loop answers them
# (``ps2.server.fast_path_loop``).
PLAIN = (
    *("pull", "push", "push_add", "push_sub", "gather", "scatter", "scatter_add", "scatter_sub"),
    *("columns_pull", "columns_push", "columns_add", "columns_add_some"),
)
PLAIN_FLOATS = (np.dtype("<f4"), np.dtype("<f8"))


@dataclass(frozen=True, slots=True)
class RequestId:
    """The id of a mutation. All attempts of the mutation have the same id.

    Attributes:
        scope: the sender: a driver session, a task (application, stage, RDD partition), or a worker of a run.
        number: the number of the mutation in its scope.
        settled: smaller numbers are never sent again, so servers may drop their ids.
        part: a large mutation is sent to a shard as several requests, which are applied separately; the index of this
            request.
        parts: the number of these requests.
        series: for a task, the fleet and the Spark application, in which ``stage`` is unique; "" for a session.
        stage: the number of the stage or run. After its end, servers drop its ids and reject its requests.
    """

    scope: str
    number: int
    settled: int = field(default=0, compare=False)
    part: int = 0
    parts: int = field(default=1, compare=False)
    series: str = field(default="", compare=False)
    stage: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Keys:
    """The columns of an operation: ascending and distinct, or in any order for an operation on blocks.

    Attributes:
        count: the number of columns.
        columns: int64 of shape (count,); None if the server has cached them, or received them with the previous
            operation.
        digest: XXH3-128 of the columns' bytes, the key of the server's cache; None: they are not cached. If columns and
            digest are both None, the columns are those of the previous operation.
    """

    count: int
    columns: Int64s | None = None
    digest: bytes | None = None

    @property
    def nbytes(self) -> int:
        return 0 if self.columns is None else self.columns.nbytes


# Operation, Request, Result and Reply are treated as immutable, but are not frozen, because creating a frozen instance
# takes three times as long.
@dataclass(slots=True)
class Operation:
    """One operation on one shard, or on the same partition of several co-located matrices.

    Attributes:
        name: a declared operation (``ps2.ops.all``), or an operation that the server implements ("map", "keys").
        matrix: the id of the first operand's matrix, which determines dtype, keys, row ids and the answer.
        rows: the row ids of the operands that are rows, in order.
        params: the values of the scalar arguments, by name.
        arrays: the arrays of the request, in order. If ``keys`` is set, it replaces the array of columns.
        wire: the dtype of floats in both directions, "float16" or "bfloat16"; None: their own dtype.
        reply_bytes: the approximate size of the result; it decides which operations share a request.
        into: the array into which the client reads the result's first array; never sent.
        others: the matrices of the operands after the first; empty if all operands belong to ``matrix``.
    """

    name: str
    matrix: int
    partition: int
    rows: tuple[int, ...] = ()
    params: Mapping[str, int | float] = field(default_factory=dict)
    arrays: tuple[Array, ...] = ()
    keys: Keys | None = None
    wire: Wire | None = None
    reply_bytes: int = 0
    into: Array | None = None
    others: tuple[int, ...] = ()

    @property
    def shard_ids(self) -> tuple[ShardId, ...]:
        """The shards of the operands: the first operand's shard, and the shards of other matrices."""
        shard = (self.matrix, self.partition)
        return (shard, *((other, self.partition) for other in self.others)) if self.others else (shard,)

    @property
    def nbytes(self) -> int:
        """The approximate size of the arrays and of the result, in bytes."""
        return nbytes(self.arrays) + (self.keys.nbytes if self.keys is not None else 0) + self.reply_bytes


@dataclass(slots=True)
class Request:
    """Operations that one server runs in order, atomically.

    Attributes:
        id: the mutation id; None if the operations change no data.
        route_version: the route version that the sender knows; 0 for servers without a coordinator.
        forwarded: True if a server sends the request to the server with the replicas of its shards.
        begun: for a forwarded request that failed: the number of operations that were applied before the failure. The
            request contains only these operations. 0: it did not fail.
    """

    operations: tuple[Operation, ...]
    id: RequestId | None = None
    route_version: int = 0
    forwarded: bool = False
    begun: int = 0


@dataclass(frozen=True, slots=True)
class Outline:
    """The description of an operation whose arrays have not arrived yet.

    Attributes:
        shapes: the shapes of the operation's arrays.
        keys: the number of the operation's keys; None: it has no keys.
    """

    name: str
    matrix: int
    partition: int
    params: Mapping[str, int | float]
    shapes: tuple[tuple[int, ...], ...]
    keys: int | None
    wire: Wire | None


@dataclass(frozen=True, slots=True)
class StreamedArray:
    """An array of a reply that is computed in pieces while it is sent. So each piece is sent from the CPU's cache.

    Attributes:
        pieces: returns a new iterator over the pieces. A piece is valid only until the next piece is computed.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    pieces: Callable[[], Iterator[Array]]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def to_array(self) -> Array:
        return np.concatenate([piece.copy() for piece in self.pieces()])


@dataclass(slots=True)
class Result:
    """The result of an operation. If ``streamed`` is set, it replaces the only array."""

    scalar: float | None = None
    arrays: tuple[Array, ...] = ()
    streamed: StreamedArray | None = None

    @property
    def nbytes(self) -> int:
        return nbytes(self.arrays) + (0 if self.streamed is None else self.streamed.nbytes)


@dataclass(slots=True)
class Reply:
    """One result for each operation. ``replayed``: True if the request had been applied before."""

    results: tuple[Result, ...]
    replayed: bool = False


def may_be_plain(request: Request) -> bool:
    """Return True if a request is one operation that the compiled loop may answer."""
    return len(request.operations) == 1 and request.operations[0].name in PLAIN and not request.forwarded


def nbytes(arrays: Iterable[Array | StreamedArray]) -> int:
    return sum(array.nbytes for array in arrays)


def key_digest(columns: Int64s) -> bytes:
    """Return the digest of a set of keys: XXH3-128 of their bytes."""
    return xxhash.xxh3_128_digest(byte_view(np.ascontiguousarray(columns)))


def byte_view(array: Array) -> memoryview:
    """Return the memory of a C-contiguous array."""
    flat: Any = array.reshape(-1).view(np.uint8)  # before Python 3.12, numpy's types do not declare the buffer protocol
    return memoryview(flat)


NO_RESULT = Result()
