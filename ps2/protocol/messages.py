"""Requests and replies of the data plane as plain data, independent of encoding and transport."""

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

# The most frequent operations on one row or on blocks of columns. A compiled loop answers them
# (``ps2.server.fast_path_loop``).
PLAIN = (
    *("pull", "push", "push_add", "push_sub", "gather", "scatter", "scatter_add", "scatter_sub"),
    *("columns_pull", "columns_push", "columns_add", "columns_add_some"),
)
PLAIN_FLOATS = (np.dtype("<f4"), np.dtype("<f8"))


@dataclass(frozen=True, slots=True)
class RequestId:
    """The identity of a mutation, equal in all its attempts.

    Attributes:
        scope: the sender: a driver session, or (app, stage, rdd_partition).
        number: index of the mutation among those of its scope.
        settled: no number below this is ever sent again, so servers may forget the ids.
        part: index of this request, if a large mutation is sent to a shard as several requests, which are applied
            separately.
        parts: number of these requests.
        series: for a task, the series that ``stage`` counts in (fleet and Spark application); "" for a session.
        stage: number of the stage or run. Once it is over, servers drop its ids and apply nothing from it any more.
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
    """Columns of an operation: ascending and distinct, or in any order for an operation on blocks.

    Attributes:
        count: number of columns.
        columns: int64 of shape (count,); None if the server has cached them, or received them with the previous
            operation.
        digest: XXH3-128 of the columns' bytes, under which a server caches them; None: they are not cached. Without
            columns and digest, the columns are those of the previous operation.
    """

    count: int
    columns: Int64s | None = None
    digest: bytes | None = None

    @property
    def nbytes(self) -> int:
        return 0 if self.columns is None else self.columns.nbytes


# Operation, Request, Result and Reply are treated as immutable, but are not frozen: to create a frozen instance takes
# three times as long.
@dataclass(slots=True)
class Operation:
    """One operation on one shard, or on the same partition of several co-located matrices.

    Attributes:
        name: an operation of the table, or one of the server's own ("map", "keys").
        matrix: the matrix of the first operand, which determines dtype, keys, row numbers and the answer.
        rows: the row numbers of the operands that are rows, in order.
        arrays: the arrays of the request, in order; slots come from ``keys`` instead if that is set.
        wire: dtype of floats in both directions, "float16" or "bfloat16"; None leaves them unchanged.
        reply_bytes: approximate size of the result; decides which operations share a request.
        into: the array in which the caller wants the result's first array; never sent.
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
        """The shards of its operands: the first operand's, and those of operands of other matrices."""
        first = (self.matrix, self.partition)
        return (first, *((other, self.partition) for other in self.others)) if self.others else (first,)

    @property
    def nbytes(self) -> int:
        """Approximate size in bytes of its arrays and of its result."""
        return nbytes(self.arrays) + (self.keys.nbytes if self.keys is not None else 0) + self.reply_bytes


@dataclass(slots=True)
class Request:
    """Operations that one server runs in order, atomically.

    Attributes:
        id: None if the operations change nothing.
        route_version: the route version that the sender knows; 0 for servers without a coordinator.
        forwarded: True if a server forwards the request to the server with the copies of its shards.
        begun: for a forwarded request that failed: the number of operations that were applied before the failure. The
            request has only these operations. 0: it did not fail.
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
        shapes: the shapes of its arrays.
        keys: number of its keys; None if it has none.
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
    """An array of a reply, computed piece by piece while it is sent, so that each piece is still in the CPU's cache.

    Attributes:
        pieces: returns a new iterator over the pieces. A piece is valid only until the next one is computed.
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

    def whole(self) -> Array:
        return np.concatenate([piece.copy() for piece in self.pieces()])


@dataclass(slots=True)
class Result:
    """The result of an operation; ``streamed``, if set, replaces its only array."""

    scalar: float | None = None
    arrays: tuple[Array, ...] = ()
    streamed: StreamedArray | None = None

    @property
    def nbytes(self) -> int:
        return nbytes(self.arrays) + (0 if self.streamed is None else self.streamed.nbytes)


@dataclass(slots=True)
class Reply:
    """One result for each operation; ``replayed`` is True if the request's id had already been applied."""

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
