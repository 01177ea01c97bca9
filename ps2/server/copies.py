"""Copies of shards on a backup server: the changes that the primary sends, and how the backup applies them.

The primary forwards each operation, and the backup runs it again, so that the copy becomes equal bit by bit, with keys
in the same slots. Users' functions do not run again: the primary sends the rows that a function wrote.

A transfer sends the full state of a shard, as operations that only servers send ("clear", "insert", "push",
"columns_push", "kept", "living", "state", "full"). Transfers are numbered, so delayed requests of an aborted transfer
change nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ps2.errors import ProtocolError, PS2Error, ShapeError, StaleRouteError
from ps2.ops.all import KEY_CHANGES, lookup
from ps2.ops.table import Array
from ps2.protocol.messages import NO_RESULT, Keys, Operation, Reply, Request, RequestId, Result, ShardId
from ps2.server.applied import AppliedIds
from ps2.server.call import call
from ps2.server.key_operations import run_on_keys
from ps2.server.keycache import KeyCache, KeySet
from ps2.server.reply_cache import CachedReply, ReplyCache
from ps2.server.shard import Shard, with_shards
from ps2.server.shard_snapshot import ids_json

# The scope of the request ids of transfers; part of the protocol between servers.
TRANSFER = "ps2 filling"
# Maximum size of the array in one operation of a transfer.
BLOCK_BYTES = 4 << 20
# Operations that forward the keys which a failed operation added or touched. They do not mark the request as applied.
FAILURE_CHANGES = ("insert", "touched")


@dataclass(frozen=True)
class Change:
    """The effect of an operation on its shards, as an operation for their copies."""

    shards: tuple[Shard, ...]
    operation: Operation
    keys: KeySet | None = None


def operation_change(operation: Operation, shards: tuple[Shard, ...], keys: KeySet | None) -> Change:
    """Return the change that an ``@op`` operation made."""
    # Floats that were received as float32 are forwarded in the shard's dtype: packing them again could change bits.
    dtype = shards[0].spec.np_dtype
    arrays = operation.arrays
    if operation.wire is not None:
        arrays = tuple(a.astype(dtype, copy=False) if a.dtype == np.float32 else a for a in arrays)
    return Change(shards, replace(operation, arrays=arrays, keys=None, wire=None, reply_bytes=0, into=None), keys)


def function_change(
    operation: Operation, shards: tuple[Shard, ...], position: int, result: Result, last: bool
) -> Change:
    """Return the change of a user's function: the rows that the function wrote, and its result.

    ``last``: True if no later operation can change the rows before they are sent; then they need no copy.
    """
    rows = [shard.row(row_id) for shard, row_id in with_shards(shards, operation.rows)]
    arrays = (result.arrays[0], *(rows if last else [row.copy() for row in rows]))
    return Change(shards, replace(operation, name="mapped", params={"position": position}, arrays=arrays))


def reply_change(operation: Operation, shards: tuple[Shard, ...], position: int, result: Result) -> Change:
    """Return the change that stores a mutation's result on the backup."""
    reply = CachedReply(RequestId("", 0), position, (operation.matrix, operation.partition), result)
    return Change(shards[:1], _reply_operation(reply))


def insert_change(operation: Operation, shard: Shard, live: int) -> Change:
    """Return the change of a failed operation: the keys that it added to a shard with ``live`` keys."""
    assert shard.index is not None
    keys = shard.index.keys[live:]
    return Change((shard,), Operation("insert", operation.matrix, operation.partition, arrays=(keys,)))


def touch_change(operation: Operation, shard: Shard, keys: KeySet | None, touches: int) -> Change:
    """Return the change of a failed operation that touched managed keys; ``touches``: the shard's count before it."""
    columns = (
        keys.columns_on(shard) if keys is not None else operation.arrays[lookup(operation.name).arrays.index("slots")]
    )
    params = {"touches": touches}
    return Change((shard,), Operation("touched", operation.matrix, operation.partition, (), params, (columns,)))


def id_operation(shard_id: ShardId) -> Operation:
    """Return an operation that changes no value, for a copy that must only record the request's id."""
    return Operation("noted", *shard_id)


def forwarded_operations(changes: Sequence[Change]) -> list[Operation]:
    """Return the operations to forward; an operation with the key set of the operation before it omits the keys."""
    operations: list[Operation] = []
    previous: Change | None = None
    for change in changes:
        operation = change.operation
        if change.keys is not None:
            shard = change.shards[0]
            is_repeated = previous is not None and previous.keys is change.keys and previous.shards[0] is shard
            columns = None if is_repeated else change.keys.columns_on(shard)
            operation = replace(operation, keys=Keys(change.keys.count, columns))
        operations.append(operation)
        previous = change
    return operations


def transfer_operations(shard_id: ShardId, shard: Shard, replies: ReplyCache) -> Iterator[Operation]:
    """Yield the operations of a transfer. The caller holds the shard's lock until they are sent."""
    yield Operation("clear", *shard_id, params={"rows": shard.rows})
    if shard.index is not None:
        for keys in _blocks(shard.index.keys):
            yield Operation("insert", *shard_id, arrays=(keys,))
    yield from _columns(shard_id, shard) if shard.spec.layout == "column" else _rows(shard_id, shard)
    if shard.managed is not None:
        for state_bytes in shard.managed.state():
            for block in _blocks(state_bytes):
                yield Operation("living", *shard_id, arrays=(block,))
    for reply in replies.shard_replies(shard_id):
        yield _reply_operation(reply)
    for block in _blocks(np.frombuffer(ids_json(shard, ()), np.uint8)):
        yield Operation("state", *shard_id, arrays=(block,))
    yield Operation("full", *shard_id)


def _rows(shard_id: ShardId, shard: Shard) -> Iterator[Operation]:
    unused = shard.unused
    for row_id in range(shard.rows):
        if row_id in unused:
            continue
        start = 0
        for block in _blocks(shard.row(row_id)):
            if _bits(block).any():
                yield Operation("push", *shard_id, rows=(row_id,), params={"start": start}, arrays=(block,))
            start += block.size


def _columns(shard_id: ShardId, shard: Shard) -> Iterator[Operation]:
    step = max(1, BLOCK_BYTES // shard.spec.block_bytes)
    for begin in range(0, shard.live, step):
        slots = begin + np.flatnonzero(_bits(shard.blocks[begin : begin + step]).any(axis=1))
        if slots.size:
            columns = slots + shard.partition.begin if shard.index is None else shard.index.keys[slots]
            yield Operation("columns_push", *shard_id, arrays=(columns, shard.blocks[slots]))


def _bits(values: Array) -> Array:
    """Return the values as unsigned integers. "clear" writes 0.0, so -0.0 must be sent."""
    return values.view(f"u{values.itemsize}")


def _blocks(array: Array) -> Iterator[Array]:
    size = BLOCK_BYTES // array.itemsize
    for begin in range(0, array.size, size):
        yield array[begin : begin + size]


def _reply_operation(reply: CachedReply) -> Operation:
    """Return the operation that sends a cached reply. Outside of a transfer, the backup uses the request's id."""
    id = reply.id
    head = [id.scope, id.number, id.part, id.series, id.stage, reply.position, reply.result.scalar]
    head_bytes = np.frombuffer(json.dumps(head).encode(), np.uint8)
    return Operation("kept", *reply.shard_id, arrays=(*reply.result.arrays, head_bytes))


def _read_reply(operation: Operation, id: RequestId | None) -> CachedReply:
    *arrays, head = operation.arrays
    scope, number, part, series, stage, position, scalar = json.loads(head.tobytes())
    original_id = RequestId(scope, number, part=part, series=series, stage=stage)
    return CachedReply(
        id or original_id, position, (operation.matrix, operation.partition), Result(scalar, tuple(arrays))
    )


class Copies:
    """Applies forwarded requests to copies. The caller holds the locks of the copies."""

    def __init__(self, replies: ReplyCache, keys: KeyCache) -> None:
        self._replies = replies
        self._keys = keys

    def apply(self, request: Request, shards: Sequence[tuple[Shard, ...]], keys: Sequence[KeySet | None]) -> Reply:
        """Apply a forwarded request, unless it was applied before.

        If the request fails after a change, the copies are inconsistent, and unusable until they are sent again.
        """
        id = request.id
        if id is None:
            raise ProtocolError("a forwarded request needs an id")
        if id.scope == TRANSFER:
            for operation, (shard, *_) in zip(request.operations, shards, strict=True):
                self._receive(operation, shard, (request.route_version, id.number))
            return Reply((NO_RESULT,) * len(shards))
        shards_by_id: dict[ShardId, Shard] = {}
        for operation, operation_shards in zip(request.operations, shards, strict=True):
            shards_by_id.update(zip(operation.shard_ids, operation_shards, strict=True))
        for shard_id, shard in shards_by_id.items():
            if shard.incomplete:
                raise StaleRouteError(f"{_copy_name(shard_id)} cannot be used before its transfer is complete")
            _check_not_sealed(shard, shard_id, request.route_version)
        is_known = {
            shard: shard.applied.covers(id, request.begun - 1) if request.begun else id in shard.applied
            for shard in shards_by_id.values()
        }
        changed: set[Shard] = set()
        for operation, operation_shards, key_set in zip(request.operations, shards, keys, strict=True):
            if is_known[operation_shards[0]] and operation.name not in FAILURE_CHANGES:
                continue
            try:
                self._apply(operation, operation_shards, key_set, id)
            except Exception as error:
                if changed or not isinstance(error, PS2Error):
                    for shard in shards_by_id.values():
                        shard.incomplete = True
                raise
            if operation.name not in FAILURE_CHANGES:
                changed.update(operation_shards)
        for shard in changed:
            if request.begun:
                shard.applied.add_begun(id, request.begun)
            else:
                shard.applied.add(id)
        return Reply((NO_RESULT,) * len(shards), all(is_known.values()))

    def _apply(self, operation: Operation, shards: Sequence[Shard], keys: KeySet | None, id: RequestId) -> None:
        if operation.name == "insert":
            _insert(operation, shards[0])
        elif operation.name == "touched":
            _touch(operation, shards[0])
        elif operation.name == "mapped":
            result, *values = operation.arrays
            _write_rows(operation, shards, values)
            shard_id = (operation.matrix, operation.partition)
            self._replies.put(CachedReply(id, int(operation.params["position"]), shard_id, Result(arrays=(result,))))
        elif operation.name == "kept":
            self._replies.put(_read_reply(operation, id))
        elif operation.name in KEY_CHANGES:
            run_on_keys(operation, shards[0], keys)
        elif operation.name != "noted":
            call(lookup(operation.name), operation, shards, keys)

    def _receive(self, operation: Operation, shard: Shard, transfer: tuple[int, int]) -> None:
        """Apply an operation of a transfer; ``transfer``: its route version and number."""
        shard_id = (operation.matrix, operation.partition)
        name = f"partition {operation.partition} of matrix {operation.matrix:x}"
        _check_not_sealed(shard, shard_id, transfer[0])
        if operation.name == "clear":
            if transfer <= shard.newest_transfer:
                raise StaleRouteError(f"this transfer of {name} is no longer current")
            shard.newest_transfer, shard.incomplete = transfer, True
            shard.received_state, shard.received_key_state = [], []
            self._replies.forget(shard_id)
            self._keys.forget(operation.matrix)
            shard.reset(int(operation.params["rows"]))
            return
        if not shard.incomplete or transfer != shard.newest_transfer:
            raise StaleRouteError(f"this transfer of {name} is no longer current")
        if operation.name == "insert":
            _insert(operation, shard)
        elif operation.name in ("push", "columns_push"):
            call(lookup(operation.name), operation, (shard,), None)
        elif operation.name == "kept":
            self._replies.put(_read_reply(operation, None))
        elif operation.name == "living":
            shard.received_key_state.append(operation.arrays[0])
        elif operation.name == "state":
            shard.received_state.append(operation.arrays[0])
        elif operation.name == "full":
            state = json.loads(np.concatenate(shard.received_state).tobytes())
            shard.retire_rows(state["unused"])
            shard.applied = AppliedIds.from_json(state["applied"])
            if shard.managed is not None:
                shard.managed.restore(np.concatenate(shard.received_key_state).tobytes())
            shard.incomplete, shard.received_state, shard.received_key_state = False, [], []
        else:
            raise ProtocolError(f"operation {operation.name!r} is not an operation of a transfer")


def _check_not_sealed(shard: Shard, shard_id: ShardId, route_version: int) -> None:
    if route_version <= shard.refused_version:
        raise StaleRouteError(f"{_copy_name(shard_id)} has been sent to a server that replaces the primary")


def _copy_name(shard_id: ShardId) -> str:
    return f"the copy of partition {shard_id[1]} of matrix {shard_id[0]:x}"


def _insert(operation: Operation, shard: Shard) -> None:
    if shard.index is None or len(operation.arrays) != 1 or operation.arrays[0].dtype != np.int64:
        raise ProtocolError("operation 'insert' takes one array of keys, for a sparse shard")
    shard.assign_slots(operation.arrays[0])


def _touch(operation: Operation, shard: Shard) -> None:
    """Touch managed keys, unless the copy has applied these touches before."""
    managed, touches = shard.managed, int(operation.params["touches"])
    if managed is None or managed.touched not in (touches, touches + 1):
        raise ProtocolError(f"operation 'touched': expected a copy whose keys were touched {touches} times")
    if managed.touched == touches:
        shard.slots(operation.arrays[0].reshape(-1), create=True)


def _write_rows(operation: Operation, shards: Sequence[Shard], values: Sequence[Array]) -> None:
    rows = [shard.row(row_id) for shard, row_id in with_shards(shards, operation.rows)]
    for row, new_values in zip(rows, values, strict=True):
        if new_values.dtype != row.dtype or new_values.size != row.size:
            raise ShapeError(
                f"operation 'mapped': expected {row.size} values of {row.dtype} in a row, got {new_values.size} of "
                f"{new_values.dtype}"
            )
    for shard, row_id in with_shards(shards, operation.rows):
        shard.touched.drop([row_id])
    for row, new_values in zip(rows, values, strict=True):
        row[:] = new_values
