"""Checkpoints of one server: it pauses all its shards, copies them in memory, resumes them, and writes the copies."""

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
from ps2.rpc.control import Copied
from ps2.server.engine import Engine
from ps2.server.shard import Shard, ShardLock
from ps2.server.shard_snapshot import ShardSnapshot, copies, freeze, ids_json, write_shards
from ps2.storage.manifest import FILE_NAME, SavedShard, SaveMatrix

# Interval at which the thread checks whether the pause was cancelled, while it waits for a lock.
POLL_S = 0.1


class ShardPause:
    """Holds the locks of shards until ``release`` or a timeout. ``keep`` cancels the timeout."""

    def __init__(self, shards: Mapping[tuple[int, int], Shard], timeout_s: float) -> None:
        self.shards = shards
        self._timeout_s = timeout_s
        self._began_s = time.perf_counter()
        self._ended_s: float | None = None
        self._held, self._without_timeout, self._released = threading.Event(), threading.Event(), threading.Event()
        self._lock = threading.Lock()  # decides whether ``keep`` or the timeout comes first
        self._thread = threading.Thread(target=self._run, name="ps2-hold", daemon=True)

    def take(self) -> None:
        """Wait until all locks are held.

        If the timeout passes or ``release`` is called first, all are released, and DeadlineError is raised.
        """
        self._began_s = time.perf_counter()
        self._thread.start()
        self._held.wait()
        if self.over:
            raise DeadlineError(f"not all of {len(self.shards)} shards could be paused within {self._timeout_s:g} s")

    @property
    def over(self) -> bool:
        return self._released.is_set()

    @property
    def held_s(self) -> float:
        """Seconds from the request of the first lock to the release of all locks, or until now."""
        ended_s = self._ended_s
        return (time.perf_counter() if ended_s is None else ended_s) - self._began_s

    def keep(self) -> bool:
        """Hold the locks until ``release``, without a timeout; return False if they are released already."""
        with self._lock:
            if self.over:
                return False
            self._without_timeout.set()
            return True

    def release(self) -> None:
        """Release the locks; other threads can take them when this returns."""
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
                self._held.set()
            self._without_timeout.wait(self._left_s())
            with self._lock:
                if not self._without_timeout.is_set():
                    self._released.set()
            self._released.wait()
            self._ended_s = time.perf_counter()

    def _acquire(self, lock: ShardLock) -> bool:
        while not self.over and (left_s := self._left_s()) > 0:
            if lock.acquire(timeout=min(left_s, POLL_S)):
                return True
        return False

    def _left_s(self) -> float:
        return max(self._began_s + self._timeout_s - time.perf_counter(), 0.0)


log = logging.getLogger(__name__)

State = Literal["freezing", "frozen", "copying", "copied", "writing"]


@dataclass
class _Checkpoint:
    """A checkpoint between ``freeze`` and the end of ``write``.

    Attributes:
        cancelled: True if the checkpoint was discarded during a call of ``copy`` or ``write``; that call then ends it.
    """

    name: str
    pause: ShardPause
    state: State = "freezing"
    shards: tuple[ShardSnapshot, ...] = ()
    counted: int = 0
    cancelled: bool = False

    @property
    def idle(self) -> bool:
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
            if previous is not None and not (previous.state == "frozen" and previous.pause.over):
                raise UsageError(
                    f"checkpoint {checkpoint!r}: {previous.name!r} is {previous.state} on this server; one at a time"
                )
            self._current = current
        try:
            current.pause.take()
        except BaseException:
            self._end(current)
            raise
        self._leave(current, "frozen")

    def copy(self, checkpoint: str, rows: Mapping[int, Sequence[int]], last: bool = False) -> Copied:
        """Copy the used rows of paused shards, and resume these; without memory for copies, ``write`` resumes them.

        ``last``: refuse clients' requests from now on, so that nothing changes after this checkpoint.
        ``nbytes`` is 0 if the shards stay paused. Raises RecoveryError after the timeout: the shards are no
        longer part of the fleet's consistent cut.
        """
        current = self._enter(checkpoint, "frozen", "copying")
        with self._ending_on_error(current):
            if not current.pause.keep():
                raise RecoveryError(f"checkpoint {checkpoint!r}: its timeout has passed, and its shards were resumed")
            mutations = self._engine.meter.mutations
            present = self._engine.shards()
            # A shard that is being freed is no longer present: ``free_matrix`` waits for its lock.
            held = [(key[0], shard) for key, shard in current.pause.shards.items() if present.get(key) is shard]
            current.shards = tuple(
                replace(
                    freeze(id, shard, rows[id]),
                    ids=ids_json(shard, self._engine.replies.shard_replies((id, shard.partition.index))),
                )
                for id, shard in held
                if id in rows
            )
            size = sum(shard.nbytes for shard in current.shards)
            if last:
                self._engine.fence.handed_over = True
            copied = self._copy(current, size)
            if copied:
                current.pause.release()
            pause_s = current.pause.held_s
        self._leave(current, "copied")
        return Copied(pause_s, size if copied else 0, mutations)

    def write(self, checkpoint: str, url: str) -> list[SavedShard]:
        """Write the shards of ``copy`` into a folder, one file per array, and end the checkpoint.

        If it fails, or ``discard`` was called, the written files are removed.
        """
        current = self._enter(checkpoint, "copied", "writing")
        try:
            return write_shards(url, current.shards, check=lambda: _check(current))
        finally:
            if not current.pause.over:
                log.warning("checkpoint %s: requests waited for %.1f s", checkpoint, current.pause.held_s)
            self._end(current)

    def discard(self, checkpoint: str) -> None:
        """Abort a checkpoint ("": any) and resume its shards; do nothing if it is not in progress."""
        with self._lock:
            current = self._current
            if current is None or checkpoint not in ("", current.name):
                return
            current.cancelled = True
            busy = not current.idle
        if not busy:
            self._end(current)
        elif current.state == "freezing":
            current.pause.release()

    def close(self) -> None:
        self.discard("")

    def _enter(self, checkpoint: str, expected: State, state: State) -> _Checkpoint:
        with self._lock:
            current = self._current
            if current is None or current.name != checkpoint or current.state != expected or current.cancelled:
                state_text = "no checkpoint is" if current is None else f"{current.name!r} is {current.state}"
                raise RecoveryError(f"checkpoint {checkpoint!r}: expected it to be {expected} here, and {state_text}")
            current.state = state
            return current

    def _leave(self, current: _Checkpoint, state: State) -> None:
        with self._lock:
            current.state = state
        with self._ending_on_error(current):
            _check(current)

    def _end(self, current: _Checkpoint) -> None:
        """Release the locks and the memory; later calls do nothing."""
        current.pause.release()
        with self._lock:
            if self._current is current:
                self._current = None
            current.shards = ()
            counted, current.counted = current.counted, 0
        self._engine.memory.give_transient(counted)

    @contextlib.contextmanager
    def _ending_on_error(self, current: _Checkpoint) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._end(current)
            raise

    def _copy(self, current: _Checkpoint, size: int) -> bool:
        """Replace the snapshot's views by copies; return False if there is no memory for them."""
        copied = copies(current.shards, self._engine.memory, f"the copy for checkpoint {current.name!r}")
        if copied is None:
            return False
        current.counted, current.shards = size, copied
        return True


def _check(current: _Checkpoint) -> None:
    if current.cancelled:
        raise RecoveryError(f"checkpoint {current.name!r} was discarded")


def save(engine: Engine, order: SaveMatrix, route_version: int) -> list[SavedShard]:
    """Write rows of one matrix, shard by shard. The saved state of each shard is consistent.

    A peer with the fleet's token may name any URL, as for checkpoints. The server accesses the URL with its own user's
    rights. It copies a shard in memory and writes the copy. Without memory for a copy, it writes the locked shard.
    """
    if not FILE_NAME.fullmatch(order.stem):
        raise ProtocolError(f"stem: expected a prefix of a file name, got {order.stem!r}")
    engine.check_call(route_version)
    saved = []
    for shard in engine.own_shards(order.matrix, order.partitions).values():
        with _locked_snapshot(engine, order.matrix, shard, order.rows) as frozen:
            saved += write_shards(order.url, [frozen], order.stem)
    engine.check_call(route_version)
    return saved


@contextlib.contextmanager
def _locked_snapshot(engine: Engine, matrix: int, shard: Shard, rows: Sequence[int]) -> Iterator[ShardSnapshot]:
    """Yield a snapshot of a shard's rows: copies, or views of the locked shard if there is no memory for copies."""
    with ExitStack() as counted, ExitStack() as held:
        engine.meter.acquire(shard.lock)
        held.callback(shard.lock.release)
        shard.check_rows(np.array(rows, np.int64))
        frozen = freeze(matrix, shard, rows)
        if shard.spec.layout == "column":
            if rows[-1] - rows[0] >= len(rows):
                raise ProtocolError(f"rows: with layout 'column' expected consecutive rows, got {rows}")
            frozen = replace(frozen, arrays={**frozen.arrays, "values": (shard.blocks[:, rows[0] : rows[-1] + 1],)})
        copied = copies([frozen], engine.memory, "the copy of rows that are saved")
        if copied is not None:
            counted.callback(engine.memory.give_transient, frozen.nbytes)
            held.close()
            (frozen,) = copied
        yield frozen
