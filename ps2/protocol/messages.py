"""Requests and replies of the data plane as plain data: what travels, without how."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from ps2.matrix.partition import Int64Array, Wire

Array = npt.NDArray[Any]
Place = tuple[int, int]  # matrix, partition

PROTOCOL_VERSION = 11

# Operations on one row of floats that come most: clients keep headers of them ready (``ps2.client.prepared``), and a
# compiled loop answers them (``ps2.server.fast_path_loop``).
PLAIN = ("pull", "push", "push_add", "push_sub", "gather", "scatter", "scatter_add", "scatter_sub")
PLAIN_FLOATS = (np.dtype("<f4"), np.dtype("<f8"))


@dataclass(frozen=True, slots=True)
class RequestId:
    """Names a mutation once and for all: equal in every attempt.

    Attributes:
        scope: who: a driver session, or (app, stage, rdd_partition).
        number: the how-manieth mutation of that scope, from 0.
        settled: no number below this one is ever sent again, so servers may forget them.
        part: a large mutation goes to a shard as several requests, each applied by itself: which one this is.
        parts: how many they are.
        series: of a task: whose stages ``stage`` counts (fleet and Spark application); "" for a session.
        stage: which stage, or run; when it is over, its ids are dropped and nothing of it is applied any more.
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
    """Columns that an operation is about: ascending and distinct; of one on blocks, in any order.

    Attributes:
        count: how many.
        columns: int64 of shape (count,); None on the way to a server that remembers them, or that just had them.
        digest: by which a server remembers them (XXH3-128 of their bytes); None if it need not. With neither columns
            nor digest they are those of the operation before.
    """

    count: int
    columns: Int64Array | None = None
    digest: bytes | None = None

    @property
    def nbytes(self) -> int:
        return 0 if self.columns is None else self.columns.nbytes


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation on one shard, or on the same partition of several matrices that are co-located.

    Attributes:
        name: a line of the operation table, or one of the server's own ("map", "keys").
        matrix: of its first operand: dtype, keys, row numbers and the answer are that one's.
        rows: of those operands that are rows, in order.
        arrays: what travels with it, in order; the slots come from ``keys`` instead, if that is given.
        wire: "float16" or "bfloat16": floats travel so, both ways.
        reply_bytes: about how much the result takes; decides what travels together.
        into: where the caller wants the first array of the result; never sent.
        others: matrices of the operands after the first; empty if all are of ``matrix``.
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
    def places(self) -> tuple[Place, ...]:
        """The shards that it is about: of the first operand, then of each other one if they are not all of one."""
        first = (self.matrix, self.partition)
        return (first, *((other, self.partition) for other in self.others)) if self.others else (first,)

    @property
    def nbytes(self) -> int:
        """What it takes on the way, there and back."""
        return nbytes(self.arrays) + (self.keys.nbytes if self.keys is not None else 0) + self.reply_bytes


@dataclass(frozen=True, slots=True)
class Request:
    """Operations that one server runs in order, as a whole.

    Attributes:
        id: None if they change nothing.
        route_version: that the sender knows; 0 for servers without a coordinator.
        forwarded: it comes from the server that holds the shards, and is about their copies.
        begun: of a forwarded one: it failed there after so many of its operations, and these are they; 0: it did not.
    """

    operations: tuple[Operation, ...]
    id: RequestId | None = None
    route_version: int = 0
    forwarded: bool = False
    begun: int = 0


@dataclass(frozen=True, slots=True)
class Outline:
    """What is known of an operation before its arrays have come.

    Attributes:
        shapes: of each of them.
        keys: how many columns it is about, if they are given as keys.
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
    """An array of a reply that is made while it is sent: each piece of it is still in the processor's cache then.

    Attributes:
        pieces: makes it again, in order; a piece is gone when the next one is made.
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


@dataclass(frozen=True, slots=True)
class Result:
    """What an operation comes to; ``streamed``, if it is there, stands for its one array."""

    scalar: float | None = None
    arrays: tuple[Array, ...] = ()
    streamed: StreamedArray | None = None

    @property
    def nbytes(self) -> int:
        return nbytes(self.arrays) + (0 if self.streamed is None else self.streamed.nbytes)


@dataclass(frozen=True, slots=True)
class Reply:
    """One result an operation; ``replayed`` says that the request's id had been applied before."""

    results: tuple[Result, ...]
    replayed: bool = False


def nbytes(arrays: Iterable[Array | StreamedArray]) -> int:
    return sum(array.nbytes for array in arrays)


def key_digest(columns: Int64Array) -> bytes:
    """Return what names a set of keys: XXH3-128 of their bytes."""
    return xxhash.xxh3_128_digest(byte_view(np.ascontiguousarray(columns)))


def byte_view(array: Array) -> memoryview:
    """Return the memory of a C-contiguous array."""
    flat: Any = array.reshape(-1).view(np.uint8)  # numpy is typed as no Buffer before Python 3.12
    return memoryview(flat)


NO_RESULT = Result()
