"""Checkpoints of a fleet. All servers write a consistent state; the manifest, written last, makes it complete."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ps2.coordinator.catalog import Entry
from ps2.coordinator.master import Master
from ps2.errors import ConfigError, PS2Error, RecoveryError
from ps2.rpc.control import CopyReport, ServerControl
from ps2.storage import folders
from ps2.storage.files import shared_url
from ps2.storage.manifest import LoadMatrix, Manifest, SavedShard
from ps2.transport.concurrent_calls import call_concurrently
from ps2.version import __version__

log = logging.getLogger(__name__)

# Maximum time in which servers hold requests back while all of them copy their data. If the coordinator dies, servers
# continue after this time.
FREEZE_TIMEOUT_S = 30.0
# Number of checkpoints that the live page can show.
MAX_RECENT = 50


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint.

    Attributes:
        path: folder of the checkpoint.
        number: number of the checkpoint. It is greater than the numbers of earlier checkpoints in the parent folder.
        step: number of the first step after the checkpoint; None if it belongs to no step.
        nbytes: size of its files in bytes.
        pauseS: maximum time, in seconds, in which a server held requests back.
        seconds: duration until the checkpoint was complete.
    """

    path: str
    number: int
    step: int | None
    nbytes: int
    pauseS: float
    seconds: float


@dataclass(frozen=True)
class Newest:
    """A complete checkpoint for rollbacks; ``mutations``: number applied before it, by server id."""

    path: str
    manifest: Manifest
    mutations: dict[str, int]


class Checkpoints:
    """Makes the checkpoints of one coordinator, one at a time."""

    def __init__(self, master: Master, servers: ServerControl, folder: str | None, keep: int) -> None:
        """Start without checkpoints. ``keep``: maximum number of this coordinator's checkpoints in a folder."""
        self._master = master
        self._servers = servers
        self.folder = folder
        self._keep = keep
        self._one_at_a_time = threading.Lock()  # excludes a second checkpoint
        self._trusted: list[Newest] = []  # checkpoints to which the fleet can roll back, oldest first
        self._removable: dict[str, set[str]] = {}  # checkpoints that this coordinator may delete, by parent folder
        self.recent: deque[tuple[float, Checkpoint]] = deque(
            maxlen=MAX_RECENT
        )  # newest checkpoints: (end in seconds since 1970, checkpoint)
        self.count = 0  # number of complete checkpoints
        self.distrusted = ""  # reason why the last unreadable checkpoint cannot be used; "": all can be read

    def parent(self, path: str | None) -> str:
        """Return the folder for a checkpoint: ``path``, or the default folder; raises ConfigError if there is none."""
        root = self.folder if path is None else path
        if root is None:
            raise ConfigError("checkpoint: give a path, or a checkpointDir to PS2Context.getOrCreate")
        return root

    @property
    def newest(self) -> Newest | None:
        """The checkpoint to which the fleet rolls back; None: there is none."""
        return self._trusted[-1] if self._trusted else None

    def resume_from(self, restored: Newest, folder: str) -> None:
        """Continue from an existing checkpoint. Earlier checkpoints of the same driver may be deleted from now on.

        The checkpoint itself and later ones are never deleted. Their driver, or another driver that started from the
        same checkpoint, may still be running and may have to roll back to them.
        """
        self._trusted.append(restored)
        start = folders.at_url(restored.path)
        if not folders.is_complete(folder):
            self._removable[folder.rstrip("/")] = {
                checkpoint.url
                for checkpoint in folders.find(folder)
                if checkpoint.run == start.run and checkpoint.number < start.number
            }

    def distrust(self, newest: Newest, reason: str) -> None:
        """Stop using an unreadable checkpoint. The fleet then rolls back to the checkpoint before it."""
        log.warning("checkpoint %s cannot be used: %s", newest.path, reason)
        self.distrusted = reason
        self._trusted = [checkpoint for checkpoint in self._trusted if checkpoint is not newest]

    def take(
        self,
        path: str | None,
        step: int | None,
        epoch: int,
        on_complete: Callable[[str], None] = lambda folder: None,
        messages: bytes = b"",
    ) -> Checkpoint:
        """Make a checkpoint in a new folder below ``path``. If it fails, the previous checkpoint stays the newest.

        ``step``: the first step after the checkpoint. ``on_complete`` gets the complete checkpoint's folder before the
        fleet can roll back to it. Raises RecoveryError if the fleet has rolled back since ``epoch``.
        """
        return self._make(path, step, epoch, on_complete, messages)[0]

    def hand_over(
        self,
        leaving: Collection[str],
        step: int | None,
        epoch: int,
        on_complete: Callable[[str], None] | None,
        messages: bytes,
    ) -> Newest:
        """Make the last checkpoint of servers (by address) that are leaving; they reject all later changes.

        ``on_complete`` None: only the replacements of these servers load it, and the fleet never rolls back to it.
        """
        return self._make(None, step, epoch, on_complete, messages, leaving)[1]

    def _make(
        self,
        path: str | None,
        step: int | None,
        epoch: int,
        on_complete: Callable[[str], None] | None,
        messages: bytes,
        leaving: Collection[str] = (),
    ) -> tuple[Checkpoint, Newest]:
        root = self.parent(path)
        with self._one_at_a_time:
            folders.prepare(root)
            root = shared_url(root).rstrip("/") or "/"
            number = 1 + max((checkpoint.number for checkpoint in folders.find(root)), default=0)
            folder = folders.folder(root, number, self._master.id)
            try:
                checkpoint, newest = self._take(folder, number, step, epoch, messages, leaving)
            except BaseException as error:
                self._discard(leaving, "")
                with suppress(PS2Error):
                    folders.remove(folder)
                if not isinstance(error, PS2Error):  # such as KeyboardInterrupt
                    raise
                fallback = f"; {self.newest.path} stays the newest complete one" if self.newest is not None else ""
                raise RecoveryError(f"checkpoint {folder} failed: {error}{fallback}") from error
            removable = self._removable.setdefault(root, set())
            removable.add(folder)
            self.recent.append((time.time(), checkpoint))
            self.count += 1
            self._master.registry.expect_recovery()
            if on_complete is None:
                return checkpoint, newest
            on_complete(folder)
            self._trusted = [*self._trusted, newest][-self._keep :]  # older ones are deleted below
            try:
                folders.prune(root, self._keep, removable)
            except RecoveryError as error:  # the new checkpoint is complete
                log.warning("an older checkpoint cannot be deleted: %s", error)
            log.info("checkpoint %s: %d bytes, requests held for %.3f s", folder, checkpoint.nbytes, checkpoint.pauseS)
            return checkpoint, newest

    def _take(
        self, folder: str, number: int, step: int | None, epoch: int, messages: bytes, leaving: Collection[str]
    ) -> tuple[Checkpoint, Newest]:
        start_s = time.monotonic()
        name = uuid.uuid4().hex
        self._master.registry.check_all_present()
        with self._master.exclusive_change():
            if self._master.epoch != epoch:
                raise RecoveryError("the fleet has rolled back to an earlier checkpoint")
            created_s = time.time()
            members = self._master.registry.members()
            addresses = [address for _, address in members]
            matrices = self._master.saved_matrices()
            # No row is allocated or freed until the servers have copied the rows in use.
            rows = {matrix.id: matrix.rows for matrix in matrices}
            freeze_s = time.monotonic()
            try:
                call_concurrently(addresses, lambda address: self._servers.freeze(address, name, FREEZE_TIMEOUT_S))
                copied: list[CopyReport] = call_concurrently(
                    addresses, lambda address: self._servers.copy(address, name, rows, last=address in leaving)
                )
            except BaseException:
                self._discard(addresses, name)
                raise
        try:
            written = call_concurrently(addresses, lambda address: self._servers.write(address, name, folder))
        except BaseException:
            self._discard(addresses, name)
            raise
        shards = [shard for server_shards in written for shard in server_shards]
        pause_s = max(copy.pause_s for copy in copied)
        if shards and any(copy.nbytes == 0 for copy in copied):
            # A server that lacks the memory for a copy holds requests back until its files are written.
            pause_s = max(pause_s, time.monotonic() - freeze_s)
        manifest = Manifest(
            number=number,
            step=step,
            created_s=created_s,
            pause_s=pause_s,
            seconds=time.monotonic() - start_s,
            version=__version__,
            matrices=tuple(replace(matrix, shards=_shards_of(matrix.id, shards)) for matrix in matrices),
            messages=folders.write_messages(folder, messages) if messages else None,
        )
        folders.check_present(folder, manifest)
        folders.write_manifest(folder, manifest)
        counts = {id: copy.mutations for (id, _), copy in zip(members, copied, strict=True)}
        checkpoint = Checkpoint(folder, number, step, manifest.nbytes, pause_s, time.monotonic() - start_s)
        return checkpoint, Newest(folder, manifest, counts)

    def _discard(self, addresses: Collection[str], name: str) -> None:
        for address in addresses:
            try:
                self._servers.discard(address, name)
            except PS2Error as error:  # the server may be lost; otherwise it continues after FREEZE_TIMEOUT_S
                log.debug("discarding a checkpoint on %s: %s", address, error)


def to_load(manifest: Manifest, entry: Entry, index: int) -> LoadMatrix | None:
    """Return the files and rows that server ``index`` must read for a matrix; None if it has no partition of it."""
    partitions = tuple(entry.partitions_of(index))
    if not partitions:
        return None
    saved = next((matrix for matrix in manifest.matrices if matrix.id == entry.id), None)
    generations = saved.generations if saved is not None else {}
    return LoadMatrix(
        matrix=entry.id,
        spec=entry.spec,
        partitions=partitions,
        saved=saved.spec if saved is not None else entry.spec,
        sources=saved.sources(partitions) if saved is not None else (),
        rows=saved.rows if saved is not None else (),
        unused=tuple(entry.retired),
        zeros=tuple(_missing_rows(entry, generations)),
    )


def missing_vectors(manifest: Manifest, master: Master) -> tuple[str, ...]:
    """Return texts with the vectors that a checkpoint lacks: names, or rows and matrix."""
    missing: list[str] = []
    names = {vector: name for name, vector in master.names().items()}
    saved = {matrix.id: matrix for matrix in manifest.matrices}
    for entry in master.entries():
        rows = _missing_rows(entry, saved[entry.id].generations if entry.id in saved else {})
        missing += [repr(names[entry.id, row]) for row in rows if (entry.id, row) in names]
        unnamed = [row for row in rows if (entry.id, row) not in names]
        if unnamed:
            missing.append(f"rows {unnamed} of matrix {entry.id:x}")
    return tuple(missing)


def _missing_rows(entry: Entry, saved: Mapping[int, int]) -> list[int]:
    """Return the rows in use that a checkpoint lacks, in ascending order; ``saved``: row -> generation in it."""
    return [row for row, generation in sorted(entry.generations.items()) if saved.get(row) != generation]


def _shards_of(matrix: int, shards: Sequence[SavedShard]) -> tuple[SavedShard, ...]:
    """Return the shards of one matrix in the order of their partitions."""
    matrix_shards = (shard for shard in shards if shard.matrix == matrix)
    return tuple(sorted(matrix_shards, key=lambda shard: shard.partition.index))
