"""Runs the operations of one request on shards whose locks are held: each once, whatever is sent again."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ps2.errors import ProtocolError, PS2Error, UsageError
from ps2.ops.all import has_answer, lookup, writes
from ps2.protocol.messages import NO_RESULT, Operation, Place, Reply, Request, RequestId, Result
from ps2.server import udf
from ps2.server.call import call, keys_of, result_of
from ps2.server.copies import Change, answered, applied, inserted, mapped
from ps2.server.keycache import KeySet
from ps2.server.memory import MemoryAccount
from ps2.server.metrics import Meter
from ps2.server.reply_cache import CachedReply, ReplyCache
from ps2.server.shard import Shard, lined_up, with_shards
from ps2.server.streamed import streamed_blocks


class Copying(Protocol):
    """Keeps copies of shards on another server. A change is made there before it is acknowledged."""

    def wants(self, shard: Shard) -> bool:
        """Return True if the shard has a copy in step with it."""
        ...

    def bring(self, shards: Mapping[Place, Shard]) -> None:
        """Bring copies into step with new or refilled shards; after a failure it goes on in the background."""
        ...

    def level(self, shards: Mapping[Place, Shard]) -> None:
        """Make sure that all of these shards, or none, have copies in step: one operation changes them together."""
        ...

    def forward(self, id: RequestId, begun: int, changes: Sequence[Change], shards: Mapping[Place, Shard]) -> None:
        """Make changes on the copies, which also note the id; the shards' locks are held.

        Args:
            begun: operations applied before the request failed; 0 if it did not fail.
            shards: those that have noted the id here.

        Raises:
            StaleRouteError: the copies may belong to another server by now.
            PS2Error: the copies cannot follow; they are made anew.
        """
        ...

    def lose(self, shards: Iterable[Shard]) -> None:
        """Make the copies of shards anew, because it is unknown what has changed."""
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
        copying: Copying | None,
    ) -> Reply:
        """Run a request's operations in order.

        Args:
            shards: of each operation's places.
            keys: of each operation, None if it has none.
        """
        id = request.id
        replayed = id is not None and any(id in mine[0].applied for mine in shards)
        if id is not None and copying is not None:
            for operation, mine in zip(request.operations, shards, strict=True):
                if len(mine) > 1:
                    copying.level(dict(zip(operation.places, mine, strict=True)))
        changed: dict[Place, Shard] = {}
        changes: list[Change] = []
        results: list[Result] = []
        for position, (operation, mine) in enumerate(zip(request.operations, shards, strict=True)):
            again = id is not None and mine[0].applied.covers(id, position)
            live = mine[0].live
            began_s = time.perf_counter()
            try:
                results.append(self._run_one(request, position, mine, keys[position]))
            except Exception as error:
                self.meter.ran(operation, time.perf_counter() - began_s, failed=True)
                if id is not None:
                    for done in changed.values():
                        done.applied.add_begun(id, position)
                    changes += _left(operation, mine, live, error, copying)
                    _forward(copying, id, position, changes, changed)
                if changed and isinstance(error, PS2Error):
                    raise type(error)(
                        f"{error}\n(the {position} operations before it in the batch are applied)"
                    ) from error
                raise
            self.meter.ran(operation, time.perf_counter() - began_s)
            if writes(operation.name):
                # Shards that the operation only reads note the id too: all of its shards know the id, or none does.
                changed.update(zip(operation.places, mine, strict=True))
                if not again and copying is not None and any(map(copying.wants, mine)):
                    last = position == len(shards) - 1
                    try:
                        changes += _changes(operation, mine, keys[position], (position, results[-1], last))
                    except MemoryError:
                        copying.lose(mine)
        if id is not None:
            fresh = {place: shard for place, shard in changed.items() if id not in shard.applied}
            for done in changed.values():
                done.applied.add(id)
            _forward(copying, id, 0, changes, fresh)
        return Reply(tuple(results), replayed)

    def _run_one(self, request: Request, position: int, shards: Sequence[Shard], keys: KeySet | None) -> Result:
        id, operation, alone = request.id, request.operations[position], len(request.operations) == 1
        if id is None and writes(operation.name):
            raise ProtocolError(f"operation {operation.name!r} changes data, so its request needs an id")
        again = id is not None and shards[0].applied.covers(id, position)
        if operation.name == "keys":
            return Result(arrays=(keys_of(shards[0], operation),))
        if operation.name == "look":
            return self._map(operation, shards)
        if not writes(operation.name):
            if alone and (coming := streamed_blocks(operation, shards[0], keys)) is not None:
                return Result(streamed=coming)
            return result_of(call(lookup(operation.name), operation, shards, keys))
        assert id is not None
        answers = has_answer(operation.name)
        if again:
            return self.replies.get(id, position, operation) if answers else NO_RESULT
        if operation.name == "map":
            result = self._map(operation, shards)
        else:
            result = result_of(call(lookup(operation.name), operation, shards, keys))
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
            raise ProtocolError(f"operation {operation.name!r}: {len(operation.rows)} rows of {len(shards)} matrices")
        fn = udf.unpickle(operation.arrays[0])
        leading = (shards[0].partition,) if operation.params.get("with_index") else ()
        if operation.name == "look":
            with lined_up(shards, operation.rows, written=False) as rows:
                return Result(arrays=(udf.look(fn, leading, rows),))
        with lined_up(shards, operation.rows, written=True) as rows:
            for shard, number in with_shards(shards, operation.rows):
                shard.touched.drop([number])
            return Result(arrays=(udf.run(fn, leading, rows, self.memory),))


def _forward(
    copying: Copying | None, id: RequestId, begun: int, changes: Sequence[Change], shards: Mapping[Place, Shard]
) -> None:
    if copying is not None and (changes or shards):
        copying.forward(id, begun, changes, shards)


def _left(
    operation: Operation, shards: Sequence[Shard], live: int, error: Exception, copying: Copying | None
) -> list[Change]:
    """Return what a failed operation has changed all the same."""
    if copying is None or not any(map(copying.wants, shards)):
        return []
    if not isinstance(error, PS2Error) or udf.NOT_UNDONE in str(error):
        copying.lose(shards)
        return []
    return [inserted(operation, shards[0], live)] if shards[0].live > live else []


def _changes(
    operation: Operation, shards: tuple[Shard, ...], keys: KeySet | None, ran: tuple[int, Result, bool]
) -> list[Change]:
    """Return what an operation has changed; ``ran``: its position, its result, and whether it was the last."""
    position, result, last = ran
    if operation.name == "map":
        return [mapped(operation, shards, position, result, last)]
    answer = [answered(operation, shards, position, result)] if has_answer(operation.name) else []
    return [applied(operation, shards, keys), *answer]
