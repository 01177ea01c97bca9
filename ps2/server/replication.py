"""Replication of this server's shards to a backup, which applies each mutation before this server acknowledges it."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ps2.errors import (
    BusyError,
    DeadlineError,
    LimitError,
    PS2Error,
    RecoveryError,
    StaleRouteError,
    StoppedError,
    UnavailableError,
)
from ps2.protocol.messages import Operation, Request, RequestId, ShardId, nbytes
from ps2.rpc.control import Network
from ps2.server.copies import BLOCK_BYTES, TRANSFER, Change, forwarded_operations, id_operation, transfer_operations
from ps2.server.engine import Engine
from ps2.server.pieces import cut
from ps2.server.shard import Shard

log = logging.getLogger(__name__)

# The first and the longest pause between retries; each pause is twice as long as the pause before it.
PAUSE_S = 0.05
MAX_PAUSE_S = 1.0
# Time for which a backup may refuse forwarded requests: it may learn of a new route version a moment later than this
# server, or lack memory while other requests run.
PATIENCE_S = 3.0
# Size of the requests of a transfer that are sent before the first reply arrives.
WINDOW_BYTES = 32 << 20
# Maximum number of operations in a request of a transfer.
MAX_OPERATIONS = 1000


class _Backup:
    """The server with the copies. ``out_of_sync``: the shards whose copies on the backup are out of sync.

    Each ``follow`` that changes the backup creates a new ``_Backup``. A shard leaves ``out_of_sync`` only under its
    lock, so a copy does not become in sync while a request holds the lock.
    """

    def __init__(self, address: str, peers: Network, out_of_sync: Iterable[Shard]) -> None:
        self.address = address
        self.peers = peers
        self.out_of_sync = set(out_of_sync)


class Replication:
    """Forwards changes to the backup, sends missing shards to the backup, and sends shards to replacement servers."""

    def __init__(self, engine: Engine, connect: Callable[[], Network], limit_bytes: int) -> None:
        """Begin without a backup. Requests with more than ``limit_bytes`` of arrays are split into pieces."""
        self._engine = engine
        self._connect = connect
        self._limit_bytes = limit_bytes
        self._changed = threading.Condition()
        self._backup: _Backup | None = None
        self._closed = False
        self._transfer_numbers = itertools.count(1)
        engine.replicator = self

    @property
    def backup(self) -> str:
        """The address of the backup; "" if there is none."""
        backup = self._backup
        return "" if backup is None else backup.address

    @property
    def out_of_sync(self) -> int:
        """The number of this server's shards whose copies are out of sync; 0 without a backup."""
        backup = self._backup
        return 0 if backup is None else sum(shard in backup.out_of_sync for _, shard in self._own_shards())

    def follow(self, backup: str, seed: bool) -> None:
        """Replicate to a backup from now on; "": to no server.

        ``seed``: the backup's copies are empty, and all shards are sent in the background. Otherwise its copies are in
        sync, except those that are out of sync on the current backup and are sent again.
        """
        with self._changed:
            if self._closed:
                raise UnavailableError("this server is about to end")
            old_backup = self._backup
            if seed or backup != self.backup:
                # Update the fence before ``_backup``. A fast path checks the fence under the shard's lock before each
                # change, so every change is forwarded.
                self._engine.fence.set_copied(bool(backup) or old_backup is not None)
                shards = [shard for _, shard in self._own_shards()] if seed else []
                self._backup = _Backup(backup, self._connect(), shards) if backup else None
                self._engine.fence.set_copied(bool(backup))
            new_backup = self._backup
            # Wake requests that wait for the backup: they check whether backup or route version have changed.
            self._changed.notify_all()
        if old_backup is new_backup:
            return
        if old_backup is not None:
            old_backup.peers.close()
        if new_backup is not None:
            threading.Thread(target=self._keep_in_sync, args=(new_backup,), name="ps2-seed", daemon=True).start()

    def send_now(self, shards: Mapping[ShardId, Shard]) -> None:
        """Send new shards now. After an error, raise it; the remaining shards are sent in the background."""
        backup = self._backup
        if backup is None:
            return
        self._mark_out_of_sync(backup, shards.values())
        try:
            for shard_id, shard in shards.items():
                self._catch_up(backup, shard_id, shard)
        finally:
            with self._changed:
                self._changed.notify_all()

    def is_in_sync(self, shard: Shard) -> bool:
        backup = self._backup
        return backup is not None and shard not in backup.out_of_sync

    def sync_together(self, shards: Mapping[ShardId, Shard]) -> None:
        backup = self._backup
        if backup is None:
            return
        out_of_sync = {shard_id: shard for shard_id, shard in shards.items() if shard in backup.out_of_sync}
        if not out_of_sync or len(out_of_sync) == len(shards):
            return
        try:
            for shard_id, shard in out_of_sync.items():
                self._catch_up(backup, shard_id, shard)
        except PS2Error as error:
            log.warning("copies of %d shards of one operation are sent later: %s", len(shards), error)
            self.mark_out_of_sync(shards.values())

    def mark_out_of_sync(self, shards: Iterable[Shard]) -> None:
        backup = self._backup
        if backup is not None:
            self._mark_out_of_sync(backup, shards)

    def forward(self, id: RequestId, begun: int, changes: Sequence[Change], shards: Mapping[ShardId, Shard]) -> None:
        delivered = False
        try:
            self._deliver(id, begun, changes, shards)
            delivered = True
        finally:
            if not delivered:
                self.mark_out_of_sync(_changed_shards(changes, shards))

    def send(self, to: str, shards: Sequence[ShardId], copies: bool) -> int:
        """Send shards to the server ``to``, which has allocated them; return their size in bytes.

        ``copies``: send this server's own shards, which become copies on the receiver. Otherwise send copies on this
        server, which become the receiver's own shards; raises RecoveryError if a copy is incomplete.
        """
        present = self._engine.shards()
        peers = self._connect()
        try:
            sent_bytes = 0
            for shard_id in shards:
                name = f"partition {shard_id[1]} of matrix {shard_id[0]:x}"
                shard = present.get(shard_id)
                if shard is None or shard.copy is copies:
                    raise StaleRouteError(f"this server has no {'shard' if copies else 'copy'} of {name}")
                with shard.lock:
                    if shard.incomplete:
                        raise RecoveryError(f"the copy of {name} is incomplete, because its transfer did not end")
                    if shard.copy:
                        # The primary may be suspended, and resume. Refuse the changes that it forwards from now on,
                        # because its replacement does not get them.
                        shard.refused_version = self._engine.fence.route_version
                    sent_bytes += self._transfer(peers, to, shard_id, shard)
            return sent_bytes
        finally:
            peers.close()

    def close(self) -> None:
        """End replication; requests that wait for the backup fail."""
        with self._changed:
            self._closed = True
            backup, self._backup = self._backup, None
            self._changed.notify_all()
        if backup is not None:
            backup.peers.close()

    def _mark_out_of_sync(self, backup: _Backup, shards: Iterable[Shard]) -> None:
        with self._changed:
            backup.out_of_sync.update(shards)
            self._changed.notify_all()

    def _own_shards(self) -> list[tuple[ShardId, Shard]]:
        return [(shard_id, shard) for shard_id, shard in sorted(self._engine.shards().items()) if not shard.copy]

    def _deliver(self, id: RequestId, begun: int, changes: Sequence[Change], shards: Mapping[ShardId, Shard]) -> None:
        """Send changes until the backup acknowledges them, or needs none; raise if it refuses for ``PATIENCE_S``."""
        refused_since_s: float | None = None
        pauses = _pauses()
        while True:
            backup = self._backup
            if self._closed:
                raise UnavailableError("this server is about to end")
            if backup is None:
                return
            if any(_is_partly_in_sync(backup, change) for change in changes):
                self._mark_out_of_sync(backup, _changed_shards(changes, shards))
            operations = _forwarded_to(backup, changes, shards)
            if not operations:
                return
            self._engine.fence.check_lease()
            version = self._engine.fence.route_version
            request = Request(tuple(operations), id, version, True, begun)
            error = self._send(backup.peers, backup.address, [request])
            if error is None:
                return
            if backup is not self._backup:
                continue
            if isinstance(error, (UnavailableError, DeadlineError)):
                refused_since_s = None
            elif isinstance(error, (StaleRouteError, BusyError)):
                refused_since_s = refused_since_s or time.monotonic()
                if time.monotonic() - refused_since_s > PATIENCE_S:
                    raise _refusal(backup, error)
            else:
                raise _refusal(backup, error)
            if self._wait(backup, version, next(pauses)):
                refused_since_s, pauses = None, _pauses()

    def _send(self, peers: Network, address: str, requests: Sequence[Request]) -> PS2Error | None:
        """Send requests to a server, and large requests in pieces; return the first error, or None."""
        messages: list[Request] = []
        for request in requests:
            messages += [request] if _size(request.operations) <= self._limit_bytes else cut(request)
        try:
            outcomes = peers.exchange({address: messages})[address]
        except StoppedError as error:  # the connections were closed, because the backup has changed
            return UnavailableError(str(error))
        return next((outcome for outcome in outcomes if isinstance(outcome, PS2Error)), None)

    def _wait(self, backup: _Backup, version: int, pause_s: float) -> bool:
        """Wait before a retry; return True as soon as the backup or the route version changes."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._backup is not backup or self._engine.fence.route_version != version, pause_s
            )

    def _keep_in_sync(self, backup: _Backup) -> None:
        """Send shards whenever their copies are out of sync, until the backup changes."""
        pauses = _pauses()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: backup.out_of_sync or self._backup is not backup)
                if self._backup is not backup:
                    return
                own_shards = self._own_shards()
                # Freed shards need no copy.
                backup.out_of_sync.intersection_update(shard for _, shard in own_shards)
                out_of_sync = [(shard_id, shard) for shard_id, shard in own_shards if shard in backup.out_of_sync]
            for shard_id, shard in out_of_sync:
                try:
                    self._catch_up(backup, shard_id, shard)
                    pauses = _pauses()
                except PS2Error as error:
                    if self._backup is not backup:
                        return
                    log.warning(
                        "the copy of partition %d of matrix %x cannot be sent now: %s", shard_id[1], shard_id[0], error
                    )
                    self._wait(backup, self._engine.fence.route_version, next(pauses))

    def _catch_up(self, backup: _Backup, shard_id: ShardId, shard: Shard) -> None:
        """Send a shard whose copy is out of sync; its later changes will be forwarded."""
        with shard.lock:
            if self._backup is backup and shard in backup.out_of_sync:
                self._transfer(backup.peers, backup.address, shard_id, shard)
                with self._changed:
                    backup.out_of_sync.discard(shard)

    def _transfer(self, peers: Network, to: str, shard_id: ShardId, shard: Shard) -> int:
        """Send a shard's full state; return its size in bytes. The caller must hold the shard's lock."""
        version = self._engine.fence.route_version
        id = RequestId(TRANSFER, next(self._transfer_numbers))
        sent_bytes = 0
        for window in _windows(transfer_operations(shard_id, shard, self._engine.replies)):
            # A server that was replaced must not change copies, on which its replacement relies.
            self._engine.fence.check_lease()
            error = self._send(peers, to, [Request(tuple(operations), id, version, True) for operations in window])
            if error is not None:
                raise error
            sent_bytes += sum(_size(operations) for operations in window)
        return sent_bytes


def _changed_shards(changes: Sequence[Change], shards: Mapping[ShardId, Shard]) -> set[Shard]:
    return {shard for change in changes for shard in change.shards} | set(shards.values())


def _is_partly_in_sync(backup: _Backup, change: Change) -> bool:
    """Return True if some, but not all, of a change's shards have copies in sync: no copy can apply such a change."""
    return not backup.out_of_sync.isdisjoint(change.shards) and not backup.out_of_sync.issuperset(change.shards)


def _forwarded_to(backup: _Backup, changes: Sequence[Change], shards: Mapping[ShardId, Shard]) -> list[Operation]:
    """Return the operations to forward for the shards whose copies are in sync."""
    forwarded = [change for change in changes if backup.out_of_sync.isdisjoint(change.shards)]
    changed = {shard for change in forwarded for shard in change.shards}
    id_only = [
        shard_id for shard_id, shard in shards.items() if shard not in backup.out_of_sync and shard not in changed
    ]
    return forwarded_operations(forwarded) + [id_operation(shard_id) for shard_id in id_only]


def _size(operations: Sequence[Operation]) -> int:
    return sum(
        nbytes(operation.arrays) + (operation.keys.nbytes if operation.keys is not None else 0)
        for operation in operations
    )


def _windows(operations: Iterator[Operation]) -> Iterator[list[list[Operation]]]:
    """Yield windows of requests, which are lists of operations. "clear" and "full" are alone in their windows."""
    window: list[list[Operation]] = [[]]
    request_bytes = total_bytes = 0
    for operation in operations:
        is_alone = operation.name in ("clear", "full")
        added_bytes = _size([operation])
        if window[0] and (is_alone or total_bytes + added_bytes > WINDOW_BYTES):
            yield window
            window, request_bytes, total_bytes = [[]], 0, 0
        if window[-1] and (request_bytes + added_bytes > BLOCK_BYTES or len(window[-1]) == MAX_OPERATIONS):
            window.append([])
            request_bytes = 0
        window[-1].append(operation)
        request_bytes, total_bytes = request_bytes + added_bytes, total_bytes + added_bytes
        if is_alone:
            yield window
            window, request_bytes, total_bytes = [[]], 0, 0
    if window[0]:
        yield window


def _pauses() -> Iterator[float]:
    pause_s = PAUSE_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, MAX_PAUSE_S)


def _refusal(backup: _Backup, error: PS2Error) -> PS2Error:
    name = f"the backup at {backup.address}"
    if isinstance(error, (LimitError, BusyError)):
        return type(error)(
            f"{name} has no memory left for its copy: {error}\n(the change is applied on the primary only)"
        )
    if isinstance(error, StaleRouteError):
        return StaleRouteError(f"{name} refuses the forwarded change: {error}")
    return type(error)(f"{name} cannot apply the forwarded change: {error}")
