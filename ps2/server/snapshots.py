"""Checkpoints of one server: hold all its shards, copy them in memory, let them go, write the copies to files."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from ps2.checkpoint import SavedFile, SavedShard
from ps2.errors import BusyError, LimitError, RecoveryError, UsageError
from ps2.files import npy, place, remove, reported, write
from ps2.ops.parallel import over_blocks
from ps2.ops.table import Array
from ps2.partition import Partition
from ps2.server.engine import Engine
from ps2.server.hold import Hold
from ps2.server.shard import Shard
from ps2.wire.control import Copied

log = logging.getLogger(__name__)

WRITERS = 4
State = Literal["freezing", "frozen", "copying", "copied", "writing"]


@dataclass(frozen=True)
class _Frozen:
    """What is written of a shard: pieces of its own arrays while it is held, or copies of them; by kind of file."""

    matrix: int
    partition: Partition
    arrays: dict[str, tuple[Array, ...]]
    ids: bytes

    @property
    def nbytes(self) -> int:
        return sum(piece.nbytes for pieces in self.arrays.values() for piece in pieces)

    def copy(self) -> _Frozen:
        copies = {kind: tuple(map(_copy, pieces)) for kind, pieces in self.arrays.items()}
        return _Frozen(self.matrix, self.partition, copies, self.ids)


@dataclass
class _UnderWay:
    """A checkpoint between ``freeze`` and the end of ``write``.

    Attributes:
        counted: bytes of its copies that are counted as this server's memory.
        cancelled: it was discarded while a call is busy with it, which then ends it.
    """

    name: str
    hold: Hold
    state: State = "freezing"
    shards: tuple[_Frozen, ...] = ()
    counted: int = 0
    cancelled: bool = False

    @property
    def idle(self) -> bool:
        return self.state in ("frozen", "copied")


class Snapshots:
    """The checkpoint that is under way on this server; one at a time. Safe for threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._current: _UnderWay | None = None

    def freeze(self, checkpoint: str, timeout_s: float) -> None:
        """Hold all shards of this server, copies of others' not included, until ``copy``; at most so long.

        Raises:
            UsageError: another checkpoint is under way.
            DeadlineError: not all could be held in time.
        """
        own = {key: shard for key, shard in self._engine.shards().items() if not shard.copy}
        under_way = _UnderWay(checkpoint, Hold(own, timeout_s))
        with self._lock:
            before = self._current
            if before is not None and not (before.state == "frozen" and before.hold.over):
                raise UsageError(
                    f"checkpoint {checkpoint!r}: {before.name!r} is {before.state} on this server; one at a time"
                )
            self._current = under_way
        try:
            under_way.hold.take()
        except BaseException:
            self._end(under_way)
            raise
        self._leave(under_way, "frozen")

    def copy(self, checkpoint: str, rows: Mapping[int, Sequence[int]]) -> Copied:
        """Copy what ``freeze`` holds, and let it go; where there is no room, hold it until it is written.

        Args:
            rows: by matrix: those in use, ascending; nothing else is copied.

        Returns:
            What it took; ``nbytes`` is 0 if the shards stay held, and the pause then lasts until ``write`` has ended.

        Raises:
            RecoveryError: the timeout has passed, so this is no moment that other servers stand still at.
        """
        under_way = self._enter(checkpoint, "frozen", "copying")
        with self._ending_on_error(under_way):
            if not under_way.hold.keep():
                raise RecoveryError(f"checkpoint {checkpoint!r}: its timeout has passed, and this server has gone on")
            mutations = self._engine.meter.mutations
            present = self._engine.shards()
            # One that is about to be freed has left already, and waits for its lock.
            held = [(key[0], shard) for key, shard in under_way.hold.shards.items() if present.get(key) is shard]
            under_way.shards = tuple(_freeze(id, shard, rows[id]) for id, shard in held if id in rows)
            size = sum(shard.nbytes for shard in under_way.shards)
            copied = self._copy(under_way, size)
            if copied:
                under_way.hold.release()
            pause_s = under_way.hold.held_s
        self._leave(under_way, "copied")
        return Copied(pause_s, size if copied else 0, mutations)

    def write(self, checkpoint: str, url: str) -> list[SavedShard]:
        """Write what ``copy`` has copied into a folder, one file an array, and forget it.

        Raises:
            RecoveryError: the file system refuses, or ``discard`` was called; what was written is removed.
        """
        under_way = self._enter(checkpoint, "copied", "writing")
        try:
            return self._write(under_way, url)
        finally:
            if not under_way.hold.over:
                log.warning("checkpoint %s: requests waited for %.1f s", checkpoint, under_way.hold.held_s)
            self._end(under_way)

    def discard(self, checkpoint: str) -> None:
        """Forget a checkpoint, "": any; what is frozen goes on. Nothing happens if it is not under way."""
        with self._lock:
            under_way = self._current
            if under_way is None or checkpoint not in ("", under_way.name):
                return
            under_way.cancelled = True
            busy = not under_way.idle
        if not busy:
            self._end(under_way)
        elif under_way.state == "freezing":
            under_way.hold.release()

    def close(self) -> None:
        self.discard("")

    def _enter(self, checkpoint: str, expected: State, state: State) -> _UnderWay:
        with self._lock:
            found = self._current
            if found is None or found.name != checkpoint or found.state != expected or found.cancelled:
                there = "no checkpoint is" if found is None else f"{found.name!r} is {found.state}"
                raise RecoveryError(f"checkpoint {checkpoint!r}: expected it to be {expected} here, and {there}")
            found.state = state
            return found

    def _leave(self, under_way: _UnderWay, state: State) -> None:
        with self._lock:
            under_way.state = state
            cancelled = under_way.cancelled
        if cancelled:
            self._end(under_way)
            raise _discarded(under_way)

    def _end(self, under_way: _UnderWay) -> None:
        """Let go of locks and memory, once."""
        under_way.hold.release()
        with self._lock:
            if self._current is under_way:
                self._current = None
            under_way.shards = ()
            counted, under_way.counted = under_way.counted, 0
        self._engine.memory.give_back(counted)

    @contextlib.contextmanager
    def _ending_on_error(self, under_way: _UnderWay) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._end(under_way)
            raise

    def _copy(self, under_way: _UnderWay, size: int) -> bool:
        """Put copies in the place of the arrays; False if there is no room for them."""
        try:
            self._engine.memory.borrow(size, f"the copy for checkpoint {under_way.name!r}")
        except (LimitError, BusyError) as error:
            log.warning("%s: requests wait until it is written", error)
            return False
        under_way.counted = size
        try:
            under_way.shards = tuple(shard.copy() for shard in under_way.shards)
        except MemoryError:
            under_way.counted = 0
            self._engine.memory.give_back(size)
            log.warning("the system has not got %d bytes for a checkpoint: requests wait until it is written", size)
            return False
        return True

    def _write(self, under_way: _UnderWay, url: str) -> list[SavedShard]:
        fs, root = place(url)
        with reported(root, "making the folder"):
            fs.makedirs(root, exist_ok=True)

        def save(name: str, parts: Callable[[], Iterator[Any]]) -> SavedFile:
            def unless_discarded() -> Iterator[Any]:
                for part in parts():
                    if under_way.cancelled:
                        raise _discarded(under_way)
                    yield part

            return SavedFile(name, *write(fs, f"{root}/{name}", unless_discarded()))

        contents = [_files(shard) for shard in under_way.shards]
        with ThreadPoolExecutor(WRITERS, thread_name_prefix="ps2-write") as pool:
            writing = [
                {kind: pool.submit(save, name, parts) for kind, (name, parts) in files.items()} for files in contents
            ]
        try:
            return [
                SavedShard(shard.matrix, shard.partition, {kind: done.result() for kind, done in files.items()})
                for shard, files in zip(under_way.shards, writing, strict=True)
            ]
        except BaseException:
            for files in contents:
                for name, _ in files.values():
                    remove(fs, f"{root}/{name}")
            raise


def _discarded(under_way: _UnderWay) -> RecoveryError:
    return RecoveryError(f"checkpoint {under_way.name!r} was discarded")


def _freeze(matrix: int, shard: Shard, rows: Sequence[int]) -> _Frozen:
    if rows and rows[-1] >= shard.rows:
        raise RecoveryError(f"matrix {matrix:x}: row {rows[-1]} is in use, and this server has {shard.rows} rows of it")
    arrays = {"values": tuple(shard.array[begin:end, : shard.live] for begin, end in _runs(rows))}
    if shard.index is not None:
        arrays["keys"] = (shard.index.keys,)
    ids = {"applied": shard.applied.to_json(), "unused": sorted(shard.unused)}
    return _Frozen(matrix, shard.partition, arrays, json.dumps(ids).encode())


def _runs(rows: Sequence[int]) -> list[tuple[int, int]]:
    """Return ascending numbers as intervals [begin, end), one at least."""
    numbers = np.array(rows, np.int64)
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)
    return [(int(run[0]), int(run[-1]) + 1) if run.size else (0, 0) for run in runs]


def _copy(array: Array) -> Array:
    copied = np.empty_like(array, order="C")
    source, target = array, copied
    if array.ndim == 2 and array.shape[0] < array.shape[1]:
        # Blocks are cut along the first axis: the longer one, here the columns of a few rows.
        source, target = source.T, target.T
    over_blocks(np.copyto, (target, source), cost=source[:1].size)
    return copied


def _files(shard: _Frozen) -> dict[str, tuple[str, Callable[[], Iterator[Any]]]]:
    """Return the name of each file of a shard, and what makes its content."""
    stem = f"{shard.matrix:x}-{shard.partition.index}"
    files: dict[str, tuple[str, Callable[[], Iterator[Any]]]] = {
        kind: (f"{stem}-{kind}.npy", partial(npy, *pieces)) for kind, pieces in shard.arrays.items()
    }
    files["ids"] = f"{stem}-ids.json", lambda: iter([shard.ids])
    return files
