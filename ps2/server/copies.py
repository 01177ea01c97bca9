"""Copies of shards on another server: what is sent to it, and what it does with that.

A change is sent as the operation itself, so that the copy goes through the same states bit by bit, keys in the same
slots. A user's function is not run twice: what it left in its rows is sent. A whole shard is sent as a sequence of
operations that only servers send each other ("clear", "insert", "push", "kept", "state"): a filling. Fillings are
numbered, so that what is left of one that broke off, and arrives late, changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ps2.errors import ProtocolError, PS2Error, ShapeError, StaleRouteError
from ps2.ops.all import lookup
from ps2.ops.table import Array
from ps2.protocol.messages import NO_RESULT, Keys, Operation, Place, Reply, Request, RequestId, Result
from ps2.server.applied import AppliedIds
from ps2.server.call import call
from ps2.server.keycache import KeyCache, KeySet
from ps2.server.reply_cache import CachedReply, ReplyCache
from ps2.server.shard import Shard, with_shards
from ps2.server.shard_snapshot import ids_of

# The scope of requests that are part of a filling.
FILLING = "ps2 filling"
BLOCK_BYTES = 4 << 20


# -- what is sent ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """What an operation has done to its shards, as an operation for their copies.

    Attributes:
        shards: of the operation's places.
        keys: name its columns, if it has any.
    """

    shards: tuple[Shard, ...]
    operation: Operation
    keys: KeySet | None = None


def applied(operation: Operation, shards: tuple[Shard, ...], keys: KeySet | None) -> Change:
    """Return the change that an operation of the table was."""
    # Floats that came shortened go on as they are here: to shorten them again need not give the same bits.
    dtype = shards[0].spec.np_dtype
    arrays = operation.arrays
    if operation.wire is not None:
        arrays = tuple(a.astype(dtype, copy=False) if a.dtype == np.float32 else a for a in arrays)
    return Change(shards, replace(operation, arrays=arrays, keys=None, wire=None, reply_bytes=0, into=None), keys)


def mapped(operation: Operation, shards: tuple[Shard, ...], position: int, result: Result, last: bool) -> Change:
    """Return what a user's function has left in its rows, and its result.

    Args:
        last: no operation after it can change the rows before they are sent.
    """
    rows = [shard.row(number) for shard, number in with_shards(shards, operation.rows)]
    arrays = (result.arrays[0], *(rows if last else [row.copy() for row in rows]))
    return Change(shards, replace(operation, name="mapped", params={"position": position}, arrays=arrays))


def answered(operation: Operation, shards: tuple[Shard, ...], position: int, result: Result) -> Change:
    """Return what an operation that changes data has answered."""
    kept = CachedReply(RequestId("", 0), position, (operation.matrix, operation.partition), result)
    return Change(shards[:1], _kept(kept))


def inserted(operation: Operation, shard: Shard, live: int) -> Change:
    """Return the keys that an operation has added beyond the first ``live``, though it failed."""
    assert shard.index is not None
    keys = shard.index.keys[live:]
    return Change((shard,), Operation("insert", operation.matrix, operation.partition, arrays=(keys,)))


def noted(place: Place) -> Operation:
    """Return what only lets a copy note the request's id."""
    return Operation("noted", *place)


def operations_of(changes: Sequence[Change]) -> list[Operation]:
    """Return the operations to forward."""
    found: list[Operation] = []
    before: Change | None = None
    for change in changes:
        operation = change.operation
        if change.keys is not None:
            shard = change.shards[0]
            same = before is not None and before.keys is change.keys and before.shards[0] is shard
            columns = None if same else change.keys.all(shard)
            operation = replace(operation, keys=Keys(change.keys.count, columns))
        found.append(operation)
        before = change
    return found


def filling_of(place: Place, shard: Shard, kept: ReplyCache) -> Iterator[Operation]:
    """Return the operations that make a shard elsewhere what this one is; its lock is held until they are sent."""
    yield Operation("clear", *place, params={"rows": shard.rows})
    if shard.index is not None:
        for keys in _blocks(shard.index.keys):
            yield Operation("insert", *place, arrays=(keys,))
    yield from _columns(place, shard) if shard.spec.layout == "column" else _rows(place, shard)
    for one in kept.of(place):
        yield _kept(one)
    for block in _blocks(np.frombuffer(ids_of(shard, ()), np.uint8)):
        yield Operation("state", *place, arrays=(block,))
    yield Operation("full", *place)


def _rows(place: Place, shard: Shard) -> Iterator[Operation]:
    unused = shard.unused
    for number in range(shard.rows):
        if number in unused:
            continue
        at = 0
        for block in _blocks(shard.row(number)):
            if _bits(block).any():
                yield Operation("push", *place, rows=(number,), params={"start": at}, arrays=(block,))
            at += block.size


def _columns(place: Place, shard: Shard) -> Iterator[Operation]:
    step = max(1, BLOCK_BYTES // shard.spec.block_bytes)
    for begin in range(0, shard.live, step):
        some = begin + np.flatnonzero(_bits(shard.blocks[begin : begin + step]).any(axis=1))
        if some.size:
            columns = some + shard.partition.begin if shard.index is None else shard.index.keys[some]
            yield Operation("columns_push", *place, arrays=(columns, shard.blocks[some]))


def _bits(values: Array) -> Array:
    """Return values to be compared bit by bit: -0.0 is not what a copy is cleared to."""
    return values.view(f"u{values.itemsize}")


def _blocks(array: Array) -> Iterator[Array]:
    size = BLOCK_BYTES // array.itemsize
    for begin in range(0, array.size, size):
        yield array[begin : begin + size]


def _kept(one: CachedReply) -> Operation:
    """Return an answer as it is sent; in a request that is not a filling, it is the answer to that one's id."""
    id = [one.id.scope, one.id.number, one.id.part, one.id.series, one.id.stage, one.position, one.result.scalar]
    return Operation("kept", *one.place, arrays=(*one.result.arrays, _json(id)))


def _kept_of(operation: Operation, id: RequestId | None) -> CachedReply:
    *arrays, name = operation.arrays
    scope, number, part, series, stage, position, scalar = json.loads(name.tobytes())
    own = RequestId(scope, number, part=part, series=series, stage=stage)
    return CachedReply(id or own, position, (operation.matrix, operation.partition), Result(scalar, tuple(arrays)))


def _json(value: object) -> Array:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


# -- what is done with it ----------------------------------------------------------------------------------------------


class Copies:
    """Applies what the server sends that holds the shards. The locks of the copies are held around it."""

    def __init__(self, kept: ReplyCache, keys: KeyCache) -> None:
        self._kept = kept
        self._keys = keys

    def apply(self, request: Request, shards: Sequence[tuple[Shard, ...]], keys: Sequence[KeySet | None]) -> Reply:
        """Apply a forwarded request as a whole, once.

        If it fails after something has been changed, the copies of its shards are of no use until they are sent anew.
        """
        id = request.id
        if id is None:
            raise ProtocolError("a forwarded request needs an id")
        if id.scope == FILLING:
            for operation, (shard, *_) in zip(request.operations, shards, strict=True):
                self._fill(operation, shard, (request.route_version, id.number))
            return Reply((NO_RESULT,) * len(shards))
        of_places: dict[Place, Shard] = {}
        for operation, mine in zip(request.operations, shards, strict=True):
            of_places.update(zip(operation.places, mine, strict=True))
        for place, shard in of_places.items():
            _check_takes(shard, place, request.route_version)
        known = {shard: _is_known(shard, id, request.begun) for shard in of_places.values()}
        changed: set[Shard] = set()
        for operation, mine, used in zip(request.operations, shards, keys, strict=True):
            if known[mine[0]] and operation.name != "insert":
                continue
            try:
                self._apply(operation, mine, used, id)
            except Exception as error:
                if changed or not isinstance(error, PS2Error):
                    for spoiled in of_places.values():
                        spoiled.filling = True
                raise
            if operation.name != "insert":
                changed.update(mine)
        for shard in changed:
            if request.begun:
                shard.applied.add_begun(id, request.begun)
            else:
                shard.applied.add(id)
        return Reply((NO_RESULT,) * len(shards), all(known.values()))

    def _apply(self, operation: Operation, shards: Sequence[Shard], keys: KeySet | None, id: RequestId) -> None:
        if operation.name == "insert":
            _insert(operation, shards[0])
        elif operation.name == "mapped":
            result, *values = operation.arrays
            _write_rows(operation, shards, values)
            place = (operation.matrix, operation.partition)
            self._kept.put(CachedReply(id, int(operation.params["position"]), place, Result(arrays=(result,))))
        elif operation.name == "kept":
            self._kept.put(_kept_of(operation, id))
        elif operation.name != "noted":
            call(lookup(operation.name), operation, shards, keys)

    def _fill(self, operation: Operation, shard: Shard, session: tuple[int, int]) -> None:
        place = (operation.matrix, operation.partition)
        where = f"partition {operation.partition} of matrix {operation.matrix:x}"
        _check_not_sealed(shard, place, session[0])
        if operation.name == "clear":
            if session <= shard.session:
                raise StaleRouteError(f"{where} has been sent anew meanwhile")
            shard.session, shard.filling = session, True
            shard.arriving = []
            self._kept.forget(place)
            self._keys.forget(operation.matrix)
            shard.reset(int(operation.params["rows"]))
            return
        if not shard.filling or session != shard.session:
            raise StaleRouteError(f"{where} has been sent anew meanwhile")
        if operation.name == "insert":
            _insert(operation, shard)
        elif operation.name in ("push", "columns_push"):
            call(lookup(operation.name), operation, (shard,), None)
        elif operation.name == "kept":
            self._kept.put(_kept_of(operation, None))
        elif operation.name == "state":
            shard.arriving.append(operation.arrays[0])
        elif operation.name == "full":
            state = json.loads(np.concatenate(shard.arriving).tobytes())
            shard.retire_rows(state["unused"])
            shard.applied = AppliedIds.from_json(state["applied"])
            shard.filling, shard.arriving = False, []
        else:
            raise ProtocolError(f"operation {operation.name!r} is no part of a filling")


def _check_takes(shard: Shard, place: Place, route_version: int) -> None:
    if shard.filling:
        raise StaleRouteError(f"{_copy_of(place)} has not been sent as a whole")
    _check_not_sealed(shard, place, route_version)


def _check_not_sealed(shard: Shard, place: Place, route_version: int) -> None:
    if route_version <= shard.sealed:
        raise StaleRouteError(f"{_copy_of(place)} has been sent to a server that takes the place of the lost one")


def _copy_of(place: Place) -> str:
    return f"the copy of partition {place[1]} of matrix {place[0]:x}"


def _is_known(shard: Shard, id: RequestId, begun: int) -> bool:
    return shard.applied.covers(id, begun - 1) if begun else id in shard.applied


def _insert(operation: Operation, shard: Shard) -> None:
    if shard.index is None or len(operation.arrays) != 1 or operation.arrays[0].dtype != np.int64:
        raise ProtocolError("operation 'insert' takes one array of keys, for a sparse shard")
    shard.slots(operation.arrays[0], create=True)


def _write_rows(operation: Operation, shards: Sequence[Shard], values: Sequence[Array]) -> None:
    rows = [shard.row(number) for shard, number in with_shards(shards, operation.rows)]
    for row, new in zip(rows, values, strict=True):
        if new.dtype != row.dtype or new.size != row.size:
            raise ShapeError(f"operation 'mapped': expected {row.size} {row.dtype} a row, got {new.size} {new.dtype}")
    for shard, number in with_shards(shards, operation.rows):
        shard.touched.drop([number])
    for row, new in zip(rows, values, strict=True):
        row[:] = new
