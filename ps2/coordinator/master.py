"""The master: it allocates matrices and rows, records which processes use them, and announces rollbacks."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from ps2.config import FleetConfig
from ps2.coordinator.call_deduplicator import CallDeduplicator, DeferredFree, DeferredFrees
from ps2.coordinator.catalog import Caller, Catalog, Entry, Grant, MatrixState
from ps2.coordinator.pending_frees import PendingFrees
from ps2.coordinator.published_catalog import CatalogPublisher
from ps2.coordinator.recovery import backup_of
from ps2.coordinator.server_registry import ServerRegistry
from ps2.dashboard.fleet_view import ServerReports
from ps2.errors import (
    BusyError,
    LimitError,
    ProtocolError,
    PS2Error,
    RecoveringError,
    StoppedError,
)
from ps2.matrix.partition import MatrixSpec
from ps2.matrix.route import Route
from ps2.protocol.messages import RequestId
from ps2.rpc.control import ServerControl
from ps2.run.host import ActiveRuns
from ps2.server.applied import EndedStages
from ps2.storage.manifest import SavedMatrix

log = logging.getLogger(__name__)

# How long a request waits for another change of matrices or rows. A longer wait would occupy the threads that answer
# heartbeats.
CHANGE_TIMEOUT_S = 2.0


class Master:
    """Allocates matrices and rows on the servers for all clients. Thread-safe."""

    def __init__(
        self,
        servers: ServerControl,
        config: FleetConfig,
        id: str = "",
        replicas: int = 0,
        active: ActiveRuns | None = None,
        is_attached: bool = False,
    ) -> None:
        """Start without matrices.

        ``replicas``: 0 or 1. ``active``: the driver's run, which pauses during a rollback. ``is_attached``: the servers
        outlive this coordinator, and store its catalog for the next one.
        """
        self._replicas = replicas
        self._active = active or ActiveRuns()
        self.reports = ServerReports()
        self.id = id
        self.config = config
        # Number of rollbacks of the whole fleet that have begun; the next step according to the checkpoint of the last
        # rollback (None: the checkpoint belongs to no step).
        self.epoch = 0
        self.step: int | None = None
        # The same (epoch, step) for the last rollback that all servers have completed.
        self.last_rollback: tuple[int, int | None] = (0, None)
        self._servers = servers
        self._lock = threading.RLock()  # guards all fields; it is released before a server is called
        self._change_lock = threading.Lock()  # one change of rows at a time; acquired before ``_lock``
        self.registry = ServerRegistry(config.lost_after_s, self._active.give_up)
        self._catalog = Catalog(secrets.randbits(30) << 32)
        self._calls = CallDeduplicator()
        self._ended_stages = EndedStages()
        self._deferred_frees = DeferredFrees()
        self._ended_frees: dict[int, dict[int, int]] = {}  # rows to free: matrix -> row -> generation
        self.pending_frees = PendingFrees(servers, self.registry.members)
        self._publisher = CatalogPublisher(servers, self.registry, id, replicas) if is_attached else None

    @contextmanager
    def block_changes(self) -> Iterator[None]:
        """Allow no change of matrices and rows within the with-block; first wait for a change in progress."""
        with self._change_lock:
            yield

    @contextmanager
    def exclusive_change(self) -> Iterator[None]:
        """Change matrices or rows in the with-block, while no other thread changes them.

        Raises RecoveringError if another change takes longer than ``CHANGE_TIMEOUT_S``.
        """
        if not self._change_lock.acquire(timeout=CHANGE_TIMEOUT_S):
            raise RecoveringError("no matrix can change while a server is restored or a checkpoint is saved")
        try:
            yield
        finally:
            self._change_lock.release()

    def update_routes(self) -> None:
        """Increase the route version, and write the servers' present addresses into all routes."""
        with self._lock:
            self._servers.route_version += 1
            self._catalog.update_routes(self.registry.addresses(), self._servers.route_version)

    def roll_back(self, step: int | None) -> None:
        """Announce that the whole fleet is about to roll back to a checkpoint.

        A client gets the new epoch together with the new route version. Servers reject the old version, so only clients
        that know of the rollback can use the restored shards.
        """
        with self._lock:
            # Pause the runs first: no worker may change a shard before all shards are restored.
            self._active.pause()
            self.epoch += 1
            self.step = step
            self.update_routes()

    def finish_rollback(self, checkpoint: str) -> None:
        """Record that all servers have loaded a checkpoint. The next call of each older session raises RolledBack."""
        with self._lock:
            self.last_rollback = self.epoch, self.step
        self._active.roll_back(self.epoch, checkpoint)

    def route_and_epoch(self, entry: Entry) -> tuple[Route, int]:
        """Return the route of a matrix, and the fleet's epoch that belongs to this route."""
        with self._lock:
            return entry.route, self.epoch

    def ended_stages(self) -> list[tuple[str, int, list[int]]]:
        """Return a tuple (series, below, live) for each series: stages below ``below`` are over, except ``live``."""
        with self._lock:
            return self._ended_stages.all()

    def entries(self) -> list[Entry]:
        with self._lock:
            return self._catalog.entries()

    def names(self) -> dict[str, tuple[int, int]]:
        """Return (matrix, row) of each named vector, by name."""
        with self._lock:
            return dict(self._catalog.names)

    def rows_by_name(self) -> dict[int, dict[str, int]]:
        """Return the rows of the named vectors: matrix -> name -> row."""
        rows: dict[int, dict[str, int]] = {}
        for name, (matrix, row) in self.names().items():
            rows.setdefault(matrix, {})[name] = row
        return rows

    def find(self, name: str) -> tuple[int, int]:
        """Return (matrix, row) of a named vector."""
        with self._lock:
            return self._catalog.find(name)

    def present(self) -> dict[str, str]:
        """Return the address of each server that is not lost, by server id."""
        return self.registry.present()

    def saved_matrices(self) -> list[SavedMatrix]:
        """Return the descriptions of all matrices for a checkpoint's manifest; their lists of files are empty."""
        with self._lock:
            return self._catalog.saved()

    def publish(self) -> None:
        """Store the catalog on every server of an attached fleet, for a later coordinator."""
        if self._publisher is not None:
            self._publisher.publish(self.saved_matrices())

    def adopt(self, matrices: Sequence[SavedMatrix], repartition: bool) -> None:
        """Take over an earlier coordinator's matrices; ``repartition``: partition them for the present servers."""
        with self._lock:
            self._catalog.adopt(matrices, self.registry.addresses(), self._servers.route_version, repartition)

    def new_matrix(self, spec: MatrixSpec, name: str = "", caller: Caller | None = None) -> Entry:
        """Allocate a matrix on all servers or on none, and return it with row 0 in use.

        A repeated call of the same caller gets the same matrix.
        """
        if caller is None:
            return self._new_matrix(spec, name)
        entry = self._calls.once(caller.id, lambda: self._new_matrix(spec, name))
        with self._lock:
            entry.add_holders([0], caller.row_holders)
        return entry

    def find_or_create(self, spec: MatrixSpec, name: str, caller: Caller | None = None) -> tuple[Entry, int]:
        """Return matrix and row of a named vector; if it does not exist, allocate a matrix and name its row 0.

        If several callers ask at the same time, only one of them creates the vector. ``spec`` is ignored if the vector
        exists.
        """
        if caller is None:
            return self._find_or_create(spec, name)
        return self._calls.once(caller.id, lambda: self._find_or_create(spec, name))

    def _find_or_create(self, spec: MatrixSpec, name: str) -> tuple[Entry, int]:
        with self.exclusive_change():
            with self._lock:
                if name in self._catalog.names:
                    matrix, row = self._catalog.find(name)
                    return self._catalog.get(matrix), row
            return self._create(spec, name), 0

    def _new_matrix(self, spec: MatrixSpec, name: str) -> Entry:
        with self.exclusive_change():
            return self._create(spec, name)

    def _create(self, spec: MatrixSpec, name: str) -> Entry:
        """Allocate a matrix. Call within ``exclusive_change``."""
        with self._lock:
            self._catalog.check_name(name)
            self.registry.check_all_present()
            entry = self._catalog.plan(spec, self.registry.addresses(), self._servers.route_version)
        try:
            with self.registry.explain_lost_servers():
                self._allocate(entry)
            with self._lock:
                self._catalog.allocate(entry, entry.grant(1), name)
                self._catalog.add(entry)
        except PS2Error:
            self._drop(entry)
            raise
        if name:
            self.publish()
        return entry

    def _allocate(self, entry: Entry) -> None:
        addresses = self.registry.addresses()
        for index, address in enumerate(addresses):
            if partitions := entry.partitions_of(index):
                if self._replicas:  # allocate copies first: a shard forwards even its first request to its copy
                    backup = addresses[backup_of(index, len(addresses))]
                    self._servers.create_matrix(backup, entry.id, entry.spec, partitions, copies=True)
                self._servers.create_matrix(address, entry.id, entry.spec, partitions)

    def _holders(self, entry: Entry) -> list[int]:
        """Return the index of each server that has shards of a matrix, or copies of them."""
        owners = set(entry.owners)
        if self._replicas:
            owners |= {backup_of(owner, len(self.registry.addresses())) for owner in entry.owners}
        return sorted(owners)

    def matrix(self, id: int) -> MatrixState:
        with self._lock:
            entry = self._catalog.get(id)
            lost, recovering = self.registry.lost_reasons(entry.owners, entry.route.servers)
            return MatrixState(entry, lost, recovering, self.epoch, self.step)

    def take_rows(self, id: int, count: int = 0, name: str = "", caller: Caller | None = None) -> Sequence[int]:
        """Allocate rows of zeros in a matrix; ``count`` 0: all reserved rows that are not in use.

        A repeated call of the same caller gets the same rows.
        """
        if caller is None:
            return self._take_rows(id, count, name)
        rows = self._calls.once(caller.id, lambda: self._take_rows(id, count, name))
        with self._lock:
            if id in self._catalog.ids():
                self._catalog.get(id).add_holders(rows, caller.row_holders)
        return rows

    def _take_rows(self, id: int, count: int, name: str) -> Sequence[int]:
        if name and count != 1:
            raise ProtocolError(f"name {name!r}: expected one row, got {count or 'all reserved rows'}")
        with self.exclusive_change():
            with self._lock:
                self._catalog.check_name(name)
                entry = self._catalog.get(id)
                grant = entry.grant(count) if count else entry.grant_reserved()
                old_total = entry.spec.rows
            if grant.total > entry.spec.rows:
                grant = self._grow(entry, grant)
            if grant.reused:
                self._update_rows(entry, reused=grant.reused)
            with self._lock:
                self._catalog.allocate(entry, grant, name)
            # Publish only matrices with named vectors: a later coordinator frees all others.
            if name or grant.total > old_total or any(matrix == id for matrix, _ in self._catalog.names.values()):
                self.publish()
            return grant.rows

    def free_rows(self, id: int, rows: Sequence[int], call: RequestId | None = None) -> None:
        """Free rows; free the matrix with its last row. Ignore rows that are not in use.

        A repeated call does nothing. Rows that a Spark task frees stay allocated until its stage is over, because
        another attempt of the task may write to them.
        """
        if call is None:
            self._free_rows(id, rows)
        elif not call.series:
            self._calls.once(call, lambda: self._free_rows(id, rows))
        else:
            with self._lock:
                if self._ended_stages.has(call.series, call.stage):
                    raise StoppedError(
                        f"stage {call.stage} of {call.series} is over: its tasks cannot free rows any more"
                    )
                generations = self._catalog.get(id).generations if id in self._catalog.ids() else {}
                for row in set(rows).intersection(generations):
                    self._deferred_frees.add(
                        call.series, call.stage, DeferredFree(id, row, generations[row], orphan=False)
                    )

    def drop_rows(self, id: int, rows: Sequence[int], holder: str, call: RequestId | None = None) -> None:
        """Record that a process has no handles to rows any more; free the rows that no other process holds.

        Rows that a Spark task allocated stay allocated until its stage is over, because another attempt of the task
        gets the same rows. A repeated call does nothing: the process may have got the rows again after the first call.
        """
        if call is None:
            self._drop_rows(id, rows, holder)
        else:
            self._calls.once(call, lambda: self._drop_rows(id, rows, holder))

    def _drop_rows(self, id: int, rows: Sequence[int], holder: str) -> None:
        generations: dict[int, int] = {}
        with self._lock:
            if id not in self._catalog.ids():
                return
            entry = self._catalog.get(id)
            for row in entry.remove_holder(rows, holder):
                holders = entry.row_holders[row]
                if not holders.series or self._ended_stages.has(holders.series, holders.stage):
                    generations[row] = entry.generations[row]
                else:
                    deferred = DeferredFree(id, row, entry.generations[row], orphan=True)
                    self._deferred_frees.add(holders.series, holders.stage, deferred)
        if generations:
            self._free_rows(id, list(generations), generations)

    def end_stages(self, series: str, below: int, live: Sequence[int]) -> None:
        """Record that the stages below a number are over, except live ones: forget their calls, and free their rows."""
        with self._lock:
            self._ended_stages.add(series, below, live)
            ended_frees = self._deferred_frees.take(self._ended_stages)
        self._calls.end(self._ended_stages)
        with self._lock:
            for free in ended_frees:
                if not (free.orphan and self._is_held(free)):  # another attempt of the task may hold the row now
                    self._ended_frees.setdefault(free.matrix, {})[free.row] = free.generation
        if ended_frees:
            with suppress(RecoveringError), self.exclusive_change():  # after an error, ``catch_up`` frees the rows
                self._free_ended()

    def catch_up(self) -> None:
        """Free rows that are still to be freed, in the catalog and on servers. Do nothing during another change."""
        if not (self._ended_frees or len(self.pending_frees)) or not self._change_lock.acquire(blocking=False):
            return
        try:
            self._free_ended()
            with self._lock:
                free = {entry.id: list(entry.retired) for entry in self._catalog.entries()}
            self.pending_frees.catch_up(free)
        finally:
            self._change_lock.release()

    def _free_ended(self) -> None:
        with self._lock:
            ended_frees, self._ended_frees = self._ended_frees, {}
        for matrix, generations in ended_frees.items():
            self._free_now(matrix, list(generations), generations)

    def _is_held(self, free: DeferredFree) -> bool:
        if free.matrix not in self._catalog.ids():
            return False
        holders = self._catalog.get(free.matrix).row_holders.get(free.row)
        return holders is not None and bool(holders.holders)

    def _free_rows(self, id: int, rows: Sequence[int], generations: Mapping[int, int] | None = None) -> None:
        """Free rows; with ``generations``, only the rows that still have these generations."""
        with self.exclusive_change():
            self._free_now(id, rows, generations)

    def _free_now(self, id: int, rows: Sequence[int], generations: Mapping[int, int] | None = None) -> None:
        with self._lock:
            if id not in self._catalog.ids():
                return
            entry = self._catalog.get(id)
            if generations is not None:
                rows = [row for row in rows if entry.generations.get(row) == generations[row]]
            num_names = len(self._catalog.names)
            freed = self._catalog.retire(entry, rows)
            if not entry.used:
                self._catalog.remove(id)
            lost_names = len(self._catalog.names) < num_names
        if not entry.used:
            self._drop(entry)
        elif freed:
            self.pending_frees.retire(entry.id, freed, self._holders(entry))
        if lost_names:
            self.publish()

    def free_all(self) -> None:
        """Free every matrix. Called at the end of a coordinator whose servers continue to run."""
        with self.exclusive_change():
            with self._lock:
                entries = [self._catalog.get(id) for id in self._catalog.ids()]
                for entry in entries:
                    self._catalog.remove(entry.id)
            for entry in entries:
                self._drop(entry)

    def _grow(self, entry: Entry, grant: Grant) -> Grant:
        """Grow a matrix to ``grant.total`` rows, or only by the needed rows if a server's memory does not suffice."""
        try:
            self._update_rows(entry, rows=grant.total)
            return grant
        except (LimitError, BusyError):
            needed = max(grant.rows) + 1  # fast: the rows are a range, or a short list
            if needed == grant.total:
                raise
            self._update_rows(entry, rows=needed)
            return Grant(grant.rows, grant.reused, needed)

    def _update_rows(self, entry: Entry, rows: int = 0, reused: Sequence[int] = ()) -> None:
        with self.registry.explain_lost_servers():
            addresses = self.registry.addresses()
            for index in self._holders(entry):
                self._servers.update_rows(addresses[index], entry.id, rows, (), reused)

    def _drop(self, entry: Entry) -> None:
        self.pending_frees.free_matrix(entry.id, self._holders(entry))
