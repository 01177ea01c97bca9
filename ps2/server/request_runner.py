"""Runs the operations of a request, including users' functions, on shards whose locks the caller holds."""

from __future__ import annotations

import pickle
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import cloudpickle
import numpy as np

from ps2.config import WireConfig
from ps2.errors import BusyError, LimitError, OpError, ProtocolError, PS2Error, UsageError
from ps2.ops.all import KEY_CHANGES, KEY_READS, has_answer, lookup, writes
from ps2.ops.blocks import take
from ps2.ops.guards import check_slots, readable
from ps2.ops.packing import narrow_integers
from ps2.ops.table import Array
from ps2.protocol.messages import NO_RESULT, Operation, Reply, Request, RequestId, Result, ShardId, StreamedArray
from ps2.server.call import call, slot_keys, to_result
from ps2.server.copies import Change, function_change, insert_change, operation_change, reply_change, touch_change
from ps2.server.key_operations import run_on_keys
from ps2.server.keycache import KeySet
from ps2.server.memory import MemoryAccount
from ps2.server.metrics import Meter
from ps2.server.reply_cache import CachedReply, ReplyCache
from ps2.server.shard import Shard, contiguous_rows, with_shards

# Part of the error of a function whose writes could not be undone.
NOT_UNDONE = "the function's writes before it failed were NOT undone: there was no memory left for copies of its rows"


def unpickle_function(code: Array) -> Callable[..., Any]:
    """Return the pickled function that an authenticated peer has sent."""
    try:
        fn = pickle.loads(code.tobytes())
    except BaseException as error:  # unpickling runs the sender's code, which may raise anything, even SystemExit
        raise OpError(f"the function cannot be loaded on the server:\n{_traceback_text(error)}") from error
    if not callable(fn):
        raise OpError(f"expected a pickled function, got {type(fn).__name__}")
    return fn


def run_writing(fn: Callable[..., Any], leading: Sequence[Any], rows: Sequence[Array], memory: MemoryAccount) -> Array:
    """Call ``fn(*leading, *rows)`` and return its pickled result as uint8.

    If the function fails, its writes are undone, or the OpError contains ``NOT_UNDONE``.
    """
    size = sum(row.nbytes for row in rows)
    try:
        memory.take_transient(size, "undoing a failed function")
    except (LimitError, BusyError):
        try:
            return _run_function(fn, leading, rows)
        except OpError as error:
            raise OpError(f"{error}\n{NOT_UNDONE}") from error.__cause__
    try:
        copies = [row.copy() for row in rows]
        try:
            return _run_function(fn, leading, rows)
        except OpError:
            for row, copy in zip(rows, copies, strict=True):
                row[:] = copy
            raise
    finally:
        memory.give_transient(size)


def run_reading(fn: Callable[..., Any], leading: Sequence[Any], rows: Sequence[Array]) -> Array:
    """Call a function like ``run_writing``, but with read-only rows, so that nothing needs to be undone."""
    views = [row.view() for row in rows]
    for view in views:
        view.flags.writeable = False
    return _run_function(fn, leading, views)


def _run_function(fn: Callable[..., Any], leading: Sequence[Any], rows: Sequence[Array]) -> Array:
    try:
        return np.frombuffer(cloudpickle.dumps(fn(*leading, *rows)), np.uint8)
    except BaseException as error:  # a user's function may raise anything; SystemExit must not end the server
        raise OpError(f"a function failed on the server:\n{_traceback_text(error)}") from error


def _traceback_text(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)).rstrip()


# The result of a pull with fewer bytes is one array. A larger result is streamed in pieces that fit into the CPU cache.
MIN_STREAMED_BYTES = WireConfig.block_bytes
PIECE_BYTES = 1 << 20


class Replicator(Protocol):
    """Replicates shards to a backup, which applies each change before this server acknowledges it."""

    def is_in_sync(self, shard: Shard) -> bool:
        """Return True if there is a backup, and the shard's copy is in sync."""
        ...

    def send_now(self, shards: Mapping[ShardId, Shard]) -> None:
        """Send new or reloaded shards to the backup; after a failure they are sent in the background."""
        ...

    def sync_together(self, shards: Mapping[ShardId, Shard]) -> None:
        """Make the copies of all shards of an operation in sync, or mark all of them as out of sync."""
        ...

    def forward(self, id: RequestId, begun: int, changes: Sequence[Change], shards: Mapping[ShardId, Shard]) -> None:
        """Apply changes and the request's id to the copies. The caller must hold the shards' locks.

        ``begun``: the number of operations that were applied before the request failed; 0 if it succeeded. Copies that
        could not be changed are out of sync, and will be sent again.
        """
        ...

    def mark_out_of_sync(self, shards: Iterable[Shard]) -> None:
        """Mark the copies of shards as out of sync, for example after an unknown change; they will be sent again."""
        ...


@dataclass(frozen=True, slots=True)
class RequestRunner:
    """Runs requests for the engine of one server."""

    replies: ReplyCache
    meter: Meter
    memory: MemoryAccount
    allow_udf: bool

    def run(
        self,
        request: Request,
        shards: Sequence[tuple[Shard, ...]],
        keys: Sequence[KeySet | None],
        replicator: Replicator | None,
    ) -> Reply:
        """Run a request's operations in order. The caller must hold the locks of the shards."""
        id = request.id
        replayed = id is not None and any(id in operation_shards[0].applied for operation_shards in shards)
        if id is not None and replicator is not None:
            for operation, operation_shards in zip(request.operations, shards, strict=True):
                if len(operation_shards) > 1:
                    replicator.sync_together(dict(zip(operation.shard_ids, operation_shards, strict=True)))
        changed: dict[ShardId, Shard] = {}
        changes: list[Change] = []
        results: list[Result] = []
        for position, (operation, operation_shards) in enumerate(zip(request.operations, shards, strict=True)):
            is_repeated = id is not None and operation_shards[0].applied.covers(id, position)
            keys_before = _key_counts(operation_shards[0])
            began_s = time.perf_counter()
            try:
                results.append(self._run_operation(request, position, operation_shards, keys[position]))
            except Exception as error:
                self.meter.count_operation(operation, time.perf_counter() - began_s, failed=True)
                if id is not None:
                    for shard in changed.values():
                        shard.applied.add_begun(id, position)
                    changes += _changes_of_failed(
                        operation, operation_shards, keys[position], keys_before, error, replicator
                    )
                    _forward(replicator, id, position, changes, changed)
                if changed and isinstance(error, PS2Error):
                    raise type(error)(
                        f"{error}\n(the {position} operations before it in the batch are applied)"
                    ) from error
                raise
            self.meter.count_operation(operation, time.perf_counter() - began_s)
            if writes(operation.name):
                # Also record the id on shards that the operation only reads: all of its shards have the id, or none.
                changed.update(zip(operation.shard_ids, operation_shards, strict=True))
                if not is_repeated and replicator is not None and any(map(replicator.is_in_sync, operation_shards)):
                    outcome = (position, results[-1], position == len(shards) - 1)
                    try:
                        changes += _changes(operation, operation_shards, keys[position], outcome)
                    except MemoryError:
                        replicator.mark_out_of_sync(operation_shards)
        if id is not None:
            new_shards = {shard_id: shard for shard_id, shard in changed.items() if id not in shard.applied}
            for shard in changed.values():
                shard.applied.add(id)
            _forward(replicator, id, 0, changes, new_shards)
        return Reply(tuple(results), replayed)

    def _run_operation(self, request: Request, position: int, shards: Sequence[Shard], keys: KeySet | None) -> Result:
        id, operation, is_single = request.id, request.operations[position], len(request.operations) == 1
        if id is None and writes(operation.name):
            raise ProtocolError(f"operation {operation.name!r} changes data, so its request needs an id")
        is_repeated = id is not None and shards[0].applied.covers(id, position)
        if operation.name == "keys":
            return Result(arrays=(slot_keys(shards[0], operation),))
        if operation.name == "look":
            return self._map(operation, shards)
        if operation.name in KEY_READS:
            return to_result(run_on_keys(operation, shards[0], keys))
        if not writes(operation.name):
            if is_single and (streamed := streamed_blocks(operation, shards[0], keys)) is not None:
                return Result(streamed=streamed)
            return to_result(call(lookup(operation.name), operation, shards, keys))
        assert id is not None
        answers = has_answer(operation.name)
        if is_repeated:
            return self.replies.get(id, position, operation) if answers else NO_RESULT
        if operation.name == "map":
            result = self._map(operation, shards)
        elif operation.name in KEY_CHANGES:
            result = to_result(run_on_keys(operation, shards[0], keys))
        else:
            result = to_result(call(lookup(operation.name), operation, shards, keys))
        if answers:
            self.replies.put(CachedReply(id, position, (operation.matrix, operation.partition), result))
        return result

    def _map(self, operation: Operation, shards: Sequence[Shard]) -> Result:
        if not self.allow_udf:
            raise UsageError(
                "mapPartitions: this fleet does not run users' functions (it was started without a token or "
                "with --no-udf)"
            )
        if len(operation.arrays) != 1 or operation.arrays[0].dtype != np.uint8:
            raise ProtocolError(f"operation {operation.name!r} takes one array of bytes, the pickled function")
        if operation.others and len(operation.others) != len(operation.rows) - 1:
            raise ProtocolError(
                f"operation {operation.name!r}: expected one matrix for each row, got {len(shards)} matrices for "
                f"{len(operation.rows)} rows"
            )
        fn = unpickle_function(operation.arrays[0])
        leading = (shards[0].partition,) if operation.params.get("with_index") else ()
        if operation.name == "look":
            with contiguous_rows(shards, operation.rows, write_back=False) as rows:
                return Result(arrays=(run_reading(fn, leading, rows),))
        with contiguous_rows(shards, operation.rows, write_back=True) as rows:
            for shard, row_id in with_shards(shards, operation.rows):
                shard.touched.drop([row_id])
            return Result(arrays=(run_writing(fn, leading, rows, self.memory),))


def _forward(
    replicator: Replicator | None, id: RequestId, begun: int, changes: Sequence[Change], shards: Mapping[ShardId, Shard]
) -> None:
    if replicator is not None and (changes or shards):
        replicator.forward(id, begun, changes, shards)


def _key_counts(shard: Shard) -> tuple[int, int, int]:
    """Return the number of a shard's keys, and the counts of touches and removals of managed keys."""
    managed = shard.managed
    return (shard.live, 0, 0) if managed is None else (shard.live, managed.touched, managed.removals)


def _changes_of_failed(
    operation: Operation,
    shards: Sequence[Shard],
    keys: KeySet | None,
    keys_before: tuple[int, int, int],
    error: Exception,
    replicator: Replicator | None,
) -> list[Change]:
    """Return the changes of a failed operation: the keys that it added or touched, by the counts before it."""
    if replicator is None or not any(map(replicator.is_in_sync, shards)):
        return []
    (live, touches, removals), (live_now, touches_now, removals_now) = keys_before, _key_counts(shards[0])
    # A touch may evict keys; the same touch evicts the same keys on the copy. Other removals are unknown.
    is_unknown = removals_now > removals and touches_now == touches
    if not isinstance(error, PS2Error) or NOT_UNDONE in str(error) or is_unknown:
        replicator.mark_out_of_sync(shards)
        return []
    if touches_now > touches:
        return [touch_change(operation, shards[0], keys, touches)]
    return [insert_change(operation, shards[0], live)] if live_now > live else []


def _changes(
    operation: Operation, shards: tuple[Shard, ...], keys: KeySet | None, outcome: tuple[int, Result, bool]
) -> list[Change]:
    """Return the changes of an operation; ``outcome``: its position, its result, and True if it is the last."""
    position, result, is_last = outcome
    if operation.name == "map":
        return [function_change(operation, shards, position, result, is_last)]
    answer = [reply_change(operation, shards, position, result)] if has_answer(operation.name) else []
    return [operation_change(operation, shards, keys), *answer]


def streamed_blocks(operation: Operation, shard: Shard, keys: KeySet | None) -> StreamedArray | None:
    """Return the result of a pull of many blocks as a stream; None for other operations and for smaller pulls.

    Each piece is read under the shard's lock. All pieces are read from the shard's current array, even if the shard is
    resized or freed between two pieces.
    """
    if operation.name != "columns_pull" or keys is None or operation.wire is not None:
        return None
    if shard.spec.key_policy is not None:  # managed keys may lose their slots between pieces
        return None
    is_small = keys.count * shard.spec.block_bytes <= MIN_STREAMED_BYTES
    if is_small or operation.rows or operation.params or operation.arrays:
        return None
    shard.check_rows(np.empty(0, np.int64))
    blocks = readable(shard.blocks)
    slots = check_slots(keys.slots_on(shard, create=False), len(blocks))
    step = max(1, PIECE_BYTES // shard.spec.block_bytes)
    buffer = np.empty((step, shard.rows), blocks.dtype)

    def pieces() -> Iterator[Array]:
        for begin in range(0, slots.size, step):
            piece_slots = slots[begin : begin + step]
            piece = buffer[: piece_slots.size]
            with shard.lock:
                take(blocks, piece_slots, piece)
            yield piece

    # If the integers of the first piece can be narrowed, the result is one narrowed array, not a stream.
    if blocks.dtype.kind == "i" and narrow_integers(next(pieces())).dtype != blocks.dtype:
        return None
    return StreamedArray(blocks.dtype, (slots.size, shard.rows), pieces)
