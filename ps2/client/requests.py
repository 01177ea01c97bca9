"""Groups operations into requests, and numbers the requests as parts of one id. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ps2.client.plans import Plan
from ps2.matrix.route import Route
from ps2.ops.all import writes
from ps2.protocol.messages import Keys, Operation, Request, RequestId, ShardId

# Header bytes of an ordinary operation, at most.
HEADER_BYTES = 256


class Piece(NamedTuple):
    """An operation to send.

    Attributes:
        plan: number of the operation's plan.
        position: position of the operation in this plan.
        home: the shard (matrix, partition) whose server gets the operation. If an operation uses several shards,
            these have the same home. Operations with the same home are cut into parts together, because all shards of
            a home record the same parts.
        part: number of the operation's request, among the requests of its server or partition. It is the same in all
            attempts, even if the partition moves to another server.
        parts: 1 if all operations on the partition are sent in one request; else the number of requests for the
            partition that change data, and at least 2.
    """

    plan: int
    position: int
    operation: Operation
    home: ShardId
    id: RequestId | None = None
    part: int = 0
    parts: int = 1


def cut(
    plans: Sequence[Plan[Any]],
    routes: Mapping[int, Route],
    block_bytes: int,
    id: RequestId | None = None,
    first: int = 0,
) -> list[Piece]:
    """Return the operations of plans in order, each with its part; ``first`` is the number of the first plan.

    All operations for one server are sent as one request if its payload in both directions fits ``block_bytes``. If
    not, each partition gets its own requests, of about ``block_bytes`` each.
    """
    homes = _homes(operation for plan in plans for operation in plan.operations)
    pieces = [
        Piece(number, position, operation, homes.get(shard := operation.shard_ids[0], shard), id)
        for number, plan in enumerate(plans, first)
        for position, operation in enumerate(plan.operations)
    ]
    by_server: dict[str, list[Piece]] = {}
    for piece in pieces:
        by_server.setdefault(_address(piece, routes), []).append(piece)
    return [piece for server_pieces in by_server.values() for piece in _in_parts(server_pieces, block_bytes)]


# A request, and the position of each operation's result: (number of the plan, position in it, ...).
PositionedRequest = tuple[Sequence[tuple[Any, ...]], Request]


def group(
    pieces: Sequence[Piece], routes: Mapping[int, Route], route_version: int = 0
) -> dict[str, list[tuple[list[Piece], Request]]]:
    """Return the requests that the pieces form, by address and in order."""
    by_address: dict[str, dict[tuple[Any, ...], list[Piece]]] = {}
    for piece in pieces:
        home_key = piece.home if piece.parts > 1 else ()
        request_pieces = by_address.setdefault(_address(piece, routes), {})
        request_pieces.setdefault((piece.id, piece.part, piece.parts, *home_key), []).append(piece)
    return {
        address: [
            (
                request_pieces,
                Request(
                    tuple(piece.operation for piece in request_pieces), _request_id(request_pieces[0]), route_version
                ),
            )
            for request_pieces in sorted(requests.values(), key=lambda request_pieces: request_pieces[0].part)
        ]
        for address, requests in by_address.items()
    }


def _address(piece: Piece, routes: Mapping[int, Route]) -> str:
    matrix, partition = piece.home
    return routes[matrix].addresses[partition]


def _homes(operations: Iterable[Operation]) -> dict[ShardId, ShardId]:
    """Return the home of each shard that operations use together with others: the shard of the first operand."""
    homes: dict[ShardId, ShardId] = {}
    for operation in operations:
        if operation.others:
            home = homes.get(operation.shard_ids[0], operation.shard_ids[0])
            old_homes = {homes[shard] for shard in operation.shard_ids if shard in homes} - {home}
            homes |= dict.fromkeys(operation.shard_ids, home)
            if old_homes:
                homes |= {shard: home for shard, old_home in homes.items() if old_home in old_homes}
    return homes


def _sharing_keys(pieces: Sequence[Piece]) -> list[Piece]:
    """Remove the keys of operations whose keys equal those of the operation before them, so that keys are sent once."""
    result: list[Piece] = []
    source: Operation | None = None
    for piece in pieces:
        operation = piece.operation
        if operation.keys is None:
            source = None
        elif source is not None and _same_keys(source, operation):
            piece = piece._replace(operation=replace(operation, keys=Keys(operation.keys.count)))
        elif operation.keys.columns is not None:
            source = operation
        result.append(piece)
    return result


def _same_keys(source: Operation, operation: Operation) -> bool:
    old, new = source.keys, operation.keys
    if old is None or new is None or old.columns is None or new.columns is None:
        return False
    if (source.matrix, source.partition, old.count) != (operation.matrix, operation.partition, new.count):
        return False
    return old.columns is new.columns or np.array_equal(old.columns, new.columns)


def _in_parts(pieces: Sequence[Piece], block_bytes: int) -> list[Piece]:
    """Cut the pieces for one server into requests, partition by partition."""
    if sum(map(_size, pieces)) <= block_bytes:
        return _sharing_keys(pieces)
    by_home: dict[ShardId, list[Piece]] = {}
    for piece in pieces:
        by_home.setdefault(piece.home, []).append(piece)
    numbered: list[Piece] = []
    for home_pieces in by_home.values():
        parts: list[list[Piece]] = []
        size = 0
        for piece in home_pieces:
            size += _size(piece)
            if not parts or (size > block_bytes and not _reuses_previous_keys(piece)):
                parts.append([])
                size = _size(piece)
            parts[-1].append(piece)
        num_writing = sum(any(writes(piece.operation.name) for piece in part) for part in parts)
        count = 1 if len(parts) == 1 else max(num_writing, 2)
        numbered += [
            piece._replace(part=number, parts=count)
            for number, part in enumerate(parts)
            for piece in _sharing_keys(part)
        ]
    return numbered


def _reuses_previous_keys(piece: Piece) -> bool:
    keys = piece.operation.keys
    return keys is not None and keys.columns is None and keys.digest is None


def _size(piece: Piece) -> int:
    return piece.operation.nbytes + HEADER_BYTES


def _request_id(piece: Piece) -> RequestId | None:
    if piece.id is None or piece.parts == 1:
        return piece.id
    return replace(piece.id, part=piece.part, parts=piece.parts)
