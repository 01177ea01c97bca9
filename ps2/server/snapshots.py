"""Checkpoints of one server: it pauses all its shards, copies them in memory, resumes them, and writes the copies."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ps2.errors import RecoveryError, UsageError
from ps2.rpc.control import Copied
from ps2.server.engine import Engine
from ps2.server.shard_pause import ShardPause
from ps2.server.shard_snapshot import ShardSnapshot, copies, freeze, ids_of, write_shards
from ps2.storage.manifest import SavedShard

log = logging.getLogger(__name__)

State = Literal["freezing", "frozen", "copying", "copied", "writing"]


@dataclass
class _UnderWay:
    """A checkpoint between ``freeze`` and the end of ``write``.

    Attributes:
        counted: bytes of its copies that are counted as transient memory.
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
        self._current: _UnderWay | None = None

    def freeze(self, checkpoint: str, timeout_s: float) -> None:
        """Pause all of this server's own shards until ``copy`` or the timeout.

        Raises:
            UsageError: another checkpoint is in progress.
            DeadlineError: not all shards could be paused in time.
        """
        own = {key: shard for key, shard in self._engine.shards().items() if not shard.copy}
        under_way = _UnderWay(checkpoint, ShardPause(own, timeout_s))
        with self._lock:
            before = self._current
            if before is not None and not (before.state == "frozen" and before.pause.over):
                raise UsageError(
                    f"checkpoint {checkpoint!r}: {before.name!r} is {before.state} on this server; one at a time"
                )
            self._current = under_way
        try:
            under_way.pause.take()
        except BaseException:
            self._end(under_way)
            raise
        self._leave(under_way, "frozen")

    def copy(self, checkpoint: str, rows: Mapping[int, Sequence[int]], last: bool = False) -> Copied:
        """Copy the paused shards and resume them. Without memory for copies, they stay paused until ``write`` ends.

        Args:
            rows: by matrix, the rows in use, ascending; nothing else is copied.
            last: refuse clients' requests from now on, so that nothing changes after this checkpoint.

        Returns:
            Duration of the pause, bytes of the copies, and mutations so far; ``nbytes`` is 0 if the shards stay paused.

        Raises:
            RecoveryError: the timeout has passed, so the shards are no longer part of the fleet's consistent cut.
        """
        under_way = self._enter(checkpoint, "frozen", "copying")
        with self._ending_on_error(under_way):
            if not under_way.pause.keep():
                raise RecoveryError(f"checkpoint {checkpoint!r}: its timeout has passed, and its shards were resumed")
            mutations = self._engine.meter.mutations
            present = self._engine.shards()
            # A shard that is being freed is no longer present: ``free_matrix`` waits for its lock.
            held = [(key[0], shard) for key, shard in under_way.pause.shards.items() if present.get(key) is shard]
            under_way.shards = tuple(
                replace(
                    freeze(id, shard, rows[id]),
                    ids=ids_of(shard, self._engine.kept.of((id, shard.partition.index))),
                )
                for id, shard in held
                if id in rows
            )
            size = sum(shard.nbytes for shard in under_way.shards)
            if last:
                self._engine.fence.handed_over = True
            copied = self._copy(under_way, size)
            if copied:
                under_way.pause.release()
            pause_s = under_way.pause.held_s
        self._leave(under_way, "copied")
        return Copied(pause_s, size if copied else 0, mutations)

    def write(self, checkpoint: str, url: str) -> list[SavedShard]:
        """Write the shards of ``copy`` into a folder, one file per array, and end the checkpoint.

        Raises:
            RecoveryError: the file system refuses, or ``discard`` was called; the written files are removed.
        """
        under_way = self._enter(checkpoint, "copied", "writing")
        try:
            return write_shards(url, under_way.shards, check=lambda: _check(under_way))
        finally:
            if not under_way.pause.over:
                log.warning("checkpoint %s: requests waited for %.1f s", checkpoint, under_way.pause.held_s)
            self._end(under_way)

    def discard(self, checkpoint: str) -> None:
        """Abort a checkpoint ("": any) and resume its shards; do nothing if it is not in progress."""
        with self._lock:
            under_way = self._current
            if under_way is None or checkpoint not in ("", under_way.name):
                return
            under_way.cancelled = True
            busy = not under_way.idle
        if not busy:
            self._end(under_way)
        elif under_way.state == "freezing":
            under_way.pause.release()

    def close(self) -> None:
        self.discard("")

    def _enter(self, checkpoint: str, expected: State, state: State) -> _UnderWay:
        with self._lock:
            current = self._current
            if current is None or current.name != checkpoint or current.state != expected or current.cancelled:
                there = "no checkpoint is" if current is None else f"{current.name!r} is {current.state}"
                raise RecoveryError(f"checkpoint {checkpoint!r}: expected it to be {expected} here, and {there}")
            current.state = state
            return current

    def _leave(self, under_way: _UnderWay, state: State) -> None:
        with self._lock:
            under_way.state = state
        with self._ending_on_error(under_way):
            _check(under_way)

    def _end(self, under_way: _UnderWay) -> None:
        """Release the locks and the memory; later calls do nothing."""
        under_way.pause.release()
        with self._lock:
            if self._current is under_way:
                self._current = None
            under_way.shards = ()
            counted, under_way.counted = under_way.counted, 0
        self._engine.memory.give_transient(counted)

    @contextlib.contextmanager
    def _ending_on_error(self, under_way: _UnderWay) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._end(under_way)
            raise

    def _copy(self, under_way: _UnderWay, size: int) -> bool:
        """Replace the snapshot's views by copies; return False if there is no memory for them."""
        copied = copies(under_way.shards, self._engine.memory, f"the copy for checkpoint {under_way.name!r}")
        if copied is None:
            return False
        under_way.counted, under_way.shards = size, copied
        return True


def _check(under_way: _UnderWay) -> None:
    if under_way.cancelled:
        raise RecoveryError(f"checkpoint {under_way.name!r} was discarded")
