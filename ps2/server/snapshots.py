"""Checkpoints of one server: pauses all its shards, copies them in memory, resumes them, and writes the copies."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ps2.errors import DeadlineError, ProtocolError, RecoveryError, UsageError
from ps2.rpc.control import CopyReport
from ps2.server.engine import Engine
from ps2.server.shard import Shard, ShardLock
from ps2.server.shard_snapshot import ShardSnapshot, copy_snapshots, ids_json, view_snapshot, write_shards
from ps2.storage.manifest import FILE_NAME, SavedShard, SaveMatrix

# Interval at which a thread that waits for a lock checks whether the pause was cancelled.
POLL_S = 0.1


class ShardPause:
    """Holds the locks of shards until ``release`` or a timeout, which ``cancel_timeout`` cancels."""

    def __init__(self, shards: Mapping[tuple[int, int], Shard], timeout_s: float) -> None:
        self.shards = shards
        self._timeout_s = timeout_s
        self._began_s = time.perf_counter()
        self._ended_s: float | None = None
        self._acquired, self._without_timeout, self._released = threading.Event(), threading.Event(), threading.Event()
        self._lock = threading.Lock()  # decides whether ``cancel_timeout`` or the timeout comes first
        self._thread = threading.Thread(target=self._run, name="ps2-hold", daemon=True)

    def acquire(self) -> None:
        """Acquire all locks; after the timeout or a call of ``release``, release them and raise DeadlineError."""
        self._began_s = time.perf_counter()
        self._thread.start()
        self._acquired.wait()
        if self.is_over:
            raise DeadlineError(f"not all of {len(self.shards)} shards could be paused within {self._timeout_s:g} s")

    @property
    def is_over(self) -> bool:
        return self._released.is_set()

    @property
    def pause_s(self) -> float:
        """Seconds from the beginning of ``acquire`` to the release of the locks, or until now."""
        ended_s = self._ended_s
        return (time.perf_counter() if ended_s is None else ended_s) - self._began_s

    def cancel_timeout(self) -> bool:
        """Hold the locks until ``release``; return False if they are already released."""
        with self._lock:
            if self.is_over:
                return False
            self._without_timeout.set()
            return True

    def release(self) -> None:
        """Release the locks; when this method returns, other threads can acquire them."""
        self._released.set()
        self._without_timeout.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        with ExitStack() as stack:
            try:
                # Acquire locks in the order in which requests acquire them, to avoid deadlock.
                for key in sorted(self.shards):
                    if not self._acquire(self.shards[key].lock):
                        self._released.set()
                        return
                    stack.callback(self.shards[key].lock.release)
            finally:
                self._acquired.set()
            self._without_timeout.wait(self._remaining_s())
            with self._lock:
                if not self._without_timeout.is_set():
                    self._released.set()
            self._released.wait()
            self._ended_s = time.perf_counter()

    def _acquire(self, lock: ShardLock) -> bool:
        while not self.is_over and (remaining_s := self._remaining_s()) > 0:
            if lock.acquire(timeout=min(remaining_s, POLL_S)):
                return True
        return False

    def _remaining_s(self) -> float:
        return max(self._began_s + self._timeout_s - time.perf_counter(), 0.0)


log = logging.getLogger(__name__)

# The state of a checkpoint. In the states that end with -ing, a call of ``freeze``, ``copy`` or ``write`` is running.
State = Literal["freezing", "frozen", "copying", "copied", "writing"]


@dataclass
class _Checkpoint:
    """A checkpoint between ``freeze`` and the end of ``write``.

    Attributes:
        counted_bytes: the size of the copies that is counted as transient memory.
        cancelled: True if the checkpoint was discarded during a call of ``copy`` or ``write``, which then ends it.
    """

    name: str
    pause: ShardPause
    state: State = "freezing"
    shards: tuple[ShardSnapshot, ...] = ()
    counted_bytes: int = 0
    cancelled: bool = False

    @property
    def is_idle(self) -> bool:
        """True if no call for the checkpoint is in progress."""
        return self.state in ("frozen", "copied")


class Snapshots:
    """The checkpoint in progress on this server, at most one at a time. Thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._current: _Checkpoint | None = None

    def freeze(self, checkpoint: str, timeout_s: float) -> None:
        """Pause all of this server's own shards until ``copy`` or the timeout."""
        own_shards = {key: shard for key, shard in self._engine.shards().items() if not shard.copy}
        current = _Checkpoint(checkpoint, ShardPause(own_shards, timeout_s))
        with self._lock:
            previous = self._current
            if previous is not None and not (previous.state == "frozen" and previous.pause.is_over):
                raise UsageError(
                    f"checkpoint {checkpoint!r}: {previous.name!r} is {previous.state} on this server; one at a time"
                )
            self._current = current
        try:
            current.pause.acquire()
        except BaseException:
            self._end(current)
            raise
        self._end_call(current, "frozen")

    def copy(self, checkpoint: str, rows: Mapping[int, Sequence[int]], last: bool = False) -> CopyReport:
        """Copy rows of the paused shards, by matrix, and resume the shards; without memory for copies, ``write`` does.

        ``last``: refuse clients' requests from now on: nothing must change after this checkpoint. The report's
        ``nbytes`` are 0 if the shards stay paused. Raises RecoveryError after the timeout: the shards have changed, and
        no longer belong to the fleet's consistent checkpoint.
        """
        current = self._begin_call(checkpoint, "frozen", "copying")
        with self._ending_on_error(current):
            if not current.pause.cancel_timeout():
                raise RecoveryError(f"checkpoint {checkpoint!r}: its timeout has passed, and its shards were resumed")
            mutations = self._engine.meter.mutations
            present = self._engine.shards()
            # A shard that is no longer present is being freed: ``free_matrix`` waits for its lock.
            paused = [(key[0], shard) for key, shard in current.pause.shards.items() if present.get(key) is shard]
            current.shards = tuple(
                replace(
                    view_snapshot(matrix, shard, rows[matrix]),
                    ids=ids_json(shard, self._engine.replies.shard_replies((matrix, shard.partition.index))),
                )
                for matrix, shard in paused
                if matrix in rows
            )
            size = sum(shard.nbytes for shard in current.shards)
            if last:
                self._engine.fence.handed_over = True
            is_copied = self._copy(current, size)
            if is_copied:
                current.pause.release()
            pause_s = current.pause.pause_s
        self._end_call(current, "copied")
        return CopyReport(pause_s, size if is_copied else 0, mutations)

    def write(self, checkpoint: str, url: str) -> list[SavedShard]:
        """Write the shards of ``copy`` into a folder, and end the checkpoint; delete files on error or ``discard``."""
        current = self._begin_call(checkpoint, "copied", "writing")
        try:
            return write_shards(url, current.shards, check=lambda: _check(current))
        finally:
            if not current.pause.is_over:
                log.warning("checkpoint %s: requests waited for %.1f s", checkpoint, current.pause.pause_s)
            self._end(current)

    def discard(self, checkpoint: str) -> None:
        """Abort a checkpoint ("": any checkpoint) and resume its shards; do nothing if it is not in progress."""
        with self._lock:
            current = self._current
            if current is None or checkpoint not in ("", current.name):
                return
            current.cancelled = True
            is_idle = current.is_idle
        if is_idle:
            self._end(current)
        elif current.state == "freezing":
            current.pause.release()

    def close(self) -> None:
        self.discard("")

    def _begin_call(self, checkpoint: str, expected: State, state: State) -> _Checkpoint:
        with self._lock:
            current = self._current
            if current is None or current.name != checkpoint or current.state != expected or current.cancelled:
                state_text = "no checkpoint is" if current is None else f"{current.name!r} is {current.state}"
                raise RecoveryError(f"checkpoint {checkpoint!r}: expected it to be {expected} here, and {state_text}")
            current.state = state
            return current

    def _end_call(self, current: _Checkpoint, state: State) -> None:
        with self._lock:
            current.state = state
        with self._ending_on_error(current):
            _check(current)

    def _end(self, current: _Checkpoint) -> None:
        """End a checkpoint: release its locks and its memory. Further calls do nothing."""
        current.pause.release()
        with self._lock:
            if self._current is current:
                self._current = None
            current.shards = ()
            counted_bytes, current.counted_bytes = current.counted_bytes, 0
        self._engine.memory.give_transient(counted_bytes)

    @contextlib.contextmanager
    def _ending_on_error(self, current: _Checkpoint) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._end(current)
            raise

    def _copy(self, current: _Checkpoint, size: int) -> bool:
        """Replace the snapshots' views by copies; return False if there is no memory for copies."""
        copied = copy_snapshots(current.shards, self._engine.memory, f"the copy for checkpoint {current.name!r}")
        if copied is None:
            return False
        current.counted_bytes, current.shards = size, copied
        return True


def _check(current: _Checkpoint) -> None:
    if current.cancelled:
        raise RecoveryError(f"checkpoint {current.name!r} was discarded")


def save(engine: Engine, order: SaveMatrix, route_version: int) -> list[SavedShard]:
    """Write rows of one matrix, shard by shard; each shard is saved in a consistent state.

    A peer with the fleet's token may name any URL, as for checkpoints; the server accesses it with its user's rights.
    The server copies a shard in memory and writes the copy. Without memory for a copy, it writes the locked shard.
    """
    if not FILE_NAME.fullmatch(order.stem):
        raise ProtocolError(f"stem: expected a prefix of a file name, got {order.stem!r}")
    engine.check_call(route_version)
    saved = []
    for shard in engine.own_shards(order.matrix, order.partitions).values():
        with _locked_snapshot(engine, order.matrix, shard, order.rows) as snapshot:
            saved += write_shards(order.url, [snapshot], order.stem)
    engine.check_call(route_version)
    return saved


@contextlib.contextmanager
def _locked_snapshot(engine: Engine, matrix: int, shard: Shard, rows: Sequence[int]) -> Iterator[ShardSnapshot]:
    """Yield a snapshot of a shard's rows: copies, or views of the locked shard if there is no memory for copies."""
    with ExitStack() as memory, ExitStack() as locks:
        engine.meter.acquire(shard.lock)
        locks.callback(shard.lock.release)
        shard.check_rows(np.array(rows, np.int64))
        snapshot = view_snapshot(matrix, shard, rows)
        if shard.spec.layout == "column":
            if rows[-1] - rows[0] >= len(rows):
                raise ProtocolError(f"rows: with layout 'column' expected consecutive rows, got {rows}")
            snapshot = replace(
                snapshot, arrays={**snapshot.arrays, "values": (shard.blocks[:, rows[0] : rows[-1] + 1],)}
            )
        copied = copy_snapshots([snapshot], engine.memory, "the copy of rows that are saved")
        if copied is not None:
            memory.callback(engine.memory.give_transient, snapshot.nbytes)
            locks.close()
            (snapshot,) = copied
        yield snapshot
