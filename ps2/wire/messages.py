"""Requests and replies of the data plane as plain data; protobuf ends at the codec."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from ps2.partition import MatrixSpec, Partition

Array = npt.NDArray[Any]

PROTOCOL_VERSION = 1


@dataclass(frozen=True, slots=True)
class RequestId:
    """Names a mutation once and for all: equal in every attempt.

    Attributes:
        scope: who: a driver session, or (app, stage, rdd_partition).
        number: the how-manieth mutation of that scope, from 0.
        settled: no number below this one is ever sent again, so servers may forget them.
    """

    scope: str
    number: int
    settled: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation on one shard.

    Attributes:
        name: a line of the operation table, or one of the server's own ("map", "keys").
        reply_count: elements expected back, if known; the transport chooses unary or streaming by it.
        into: where the caller wants the first array of the result; never sent.
    """

    name: str
    matrix: int
    partition: int
    rows: tuple[int, ...] = ()
    params: Mapping[str, int | float] = field(default_factory=dict)
    arrays: tuple[Array, ...] = ()
    reply_count: int | None = 0
    into: Array | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """Operations that one server runs in order, as a whole; ``id`` is None if they change nothing."""

    operations: tuple[Operation, ...]
    id: RequestId | None = None


@dataclass(frozen=True, slots=True)
class Result:
    scalar: float | None = None
    arrays: tuple[Array, ...] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """One result an operation; ``replayed`` says that the request's id had been applied before."""

    results: tuple[Result, ...]
    replayed: bool = False


def nbytes(arrays: Iterable[Array]) -> int:
    return sum(array.nbytes for array in arrays)


@dataclass(frozen=True, slots=True)
class MatrixStatus:
    """What a server holds of one matrix; ``bytes`` and ``active_keys`` count this server's share."""

    matrix: int
    spec: MatrixSpec
    rows: int
    bytes: int
    active_keys: int
    partitions: tuple[Partition, ...]


NO_RESULT = Result()
