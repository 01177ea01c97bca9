"""Groups operations into requests, and numbers the requests that share one mutation id. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ps2.client.plans import Plan
from ps2.matrix.route import Route
from ps2.ops.all import writes
from ps2.protocol.messages import Keys, Operation, Request, RequestId, ShardId

# An upper limit of the bytes of an ordinary operation's header.
HEADER_BYTES = 256


class Piece(NamedTuple):
    """An operation to send.

    Attributes:
        plan: the index of the operation's plan.
        position: the index of the operation in this plan.
        home: the shard (matrix, partition) to whose server the operation is sent. All shards of an operation have the
            same home. Operations with the same home are cut into parts together, because each shard with this home
            records, by mutation id, which of the home's parts it has applied.
        part: the index of the operation's request among the requests of its server or partition. It is the same in all
            attempts, even if the partition moves to another server.
        parts: 1 if all operations on the partition are sent in one request. If not, the number of requests for the
            partition that change data, but at least 2: after so many, the server has applied the mutation. The
            index ``part`` also counts requests that only read.
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
    first_plan: int = 0,
) -> list[Piece]:
    """Return the operations of plans in order, each with its part; ``first_plan`` is the index of the first plan.

    All operations for one server are sent as one request if its payload in both directions fits ``block_bytes``. If
    not, each partition gets its own requests, of about ``block_bytes`` each.
    """
    homes = _homes(operation for plan in plans for operation in plan.operations)
    pieces = [
        Piece(index, position, operation, homes.get(shard := operation.shard_ids[0], shard), id)
        for index, plan in enumerate(plans, first_plan)
        for position, operation in enumerate(plan.operations)
    ]
    by_server: dict[str, list[Piece]] = {}
    for piece in pieces:
        by_server.setdefault(_address(piece, routes), []).append(piece)
    return [piece for server_pieces in by_server.values() for piece in _number_parts(server_pieces, block_bytes)]


# A request, with a tuple for each of its operations: the index of the plan, the index in the plan, and other fields.
PositionedRequest = tuple[Sequence[tuple[Any, ...]], Request]


def group(
    pieces: Sequence[Piece], routes: Mapping[int, Route], route_version: int = 0
) -> dict[str, list[tuple[list[Piece], Request]]]:
    """Return requests made of pieces, by address, in the order of their parts."""
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
    """Return the home of each shard of operations on several shards: the home of the first operand's shard."""
    homes: dict[ShardId, ShardId] = {}
    for operation in operations:
        if operation.others:
            home = homes.get(operation.shard_ids[0], operation.shard_ids[0])
            old_homes = {homes[shard] for shard in operation.shard_ids if shard in homes} - {home}
            homes |= dict.fromkeys(operation.shard_ids, home)
            if old_homes:
                homes |= {shard: home for shard, old_home in homes.items() if old_home in old_homes}
    return homes


def _share_keys(pieces: Sequence[Piece]) -> list[Piece]:
    """Remove the keys of an operation if the previous operation has the same keys, so that keys are sent once."""
    result: list[Piece] = []
    keys_owner: Operation | None = None
    for piece in pieces:
        operation = piece.operation
        if operation.keys is None:
            keys_owner = None
        elif keys_owner is not None and _same_keys(keys_owner, operation):
            piece = piece._replace(operation=replace(operation, keys=Keys(operation.keys.count)))
        elif operation.keys.columns is not None:
            keys_owner = operation
        result.append(piece)
    return result


def _same_keys(a: Operation, b: Operation) -> bool:
    if a.keys is None or b.keys is None or a.keys.columns is None or b.keys.columns is None:
        return False
    if (a.matrix, a.partition, a.keys.count) != (b.matrix, b.partition, b.keys.count):
        return False
    return a.keys.columns is b.keys.columns or np.array_equal(a.keys.columns, b.keys.columns)


def _number_parts(pieces: Sequence[Piece], block_bytes: int) -> list[Piece]:
    """Cut the pieces for one server into requests, separately for each partition; set their ``part`` and ``parts``."""
    if sum(map(_size, pieces)) <= block_bytes:
        return _share_keys(pieces)
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
            piece._replace(part=index, parts=count) for index, part in enumerate(parts) for piece in _share_keys(part)
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
