"""The connection of one process to one fleet: sends calls to servers, and asks the master for rows."""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ps2.client.async_writer import AsyncWriter
from ps2.client.dispatch import Dispatch, Locator
from ps2.client.fleet import FleetRef, Owners
from ps2.client.retry import RetryPolicy, RollbackTracker
from ps2.client.task import MutationIds, RunIds, is_later_attempt
from ps2.config import RetryConfig, WireConfig
from ps2.errors import LostError, RecoveringError, TransientError, UnreachableError
from ps2.interrupts import shielded
from ps2.matrix.partition import MatrixSpec
from ps2.matrix.route import Route
from ps2.protocol.messages import RequestId
from ps2.rpc.control import Network
from ps2.rpc.master_control import MasterControl, MatrixInfo

T = TypeVar("T")


@dataclass(eq=False)
class Session:
    """A process's connection to one fleet. Thread-safe. After ``close``, calls raise StoppedError.

    Attributes:
        on_rollback: called in the driver with epoch and step of a rollback, before RolledBack is raised.
        master_address: the master's address for this process; "": the address that other processes use.
        master: the calls to the master; None: calls to the master's address.
        dispatch_type: creates the dispatch from its arguments.
        server_addresses: in the driver, returns the addresses of all servers of the fleet.
        opened: the sessions that read vectors of other namespaces (``ps2.client.published``), by namespace.
    """

    fleet: FleetRef
    network: Network
    retry: RetryConfig = field(default_factory=RetryConfig)
    wire: WireConfig = field(default_factory=WireConfig)
    on_rollback: Callable[[int, int | None], None] = lambda epoch, step: None
    master_address: str = ""
    master: MasterControl | None = None
    dispatch_type: Callable[..., Dispatch] = Dispatch
    server_addresses: Callable[[], Sequence[str]] = tuple
    opened: dict[str, Session] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.retry = replace(self.retry, recovery_s=self.fleet.retry_timeout_s)
        if is_later_attempt():
            self.retry = replace(self.retry, first_contact_s=self.retry.later_contact_s)
        self._master = self.master or MasterControl(self.network, self.master_address or self.fleet.master)
        self.ids = MutationIds(self.fleet.id)
        self.rollbacks = RollbackTracker(self.ids, self.on_rollback)
        locator = Locator(ask_once=self.matrix, ask_with_retries=lambda matrix: self.ask(lambda: self.matrix(matrix)))
        self.dispatch = self.dispatch_type(self.network, self.retry, self.wire, self.rollbacks, locator)
        self.stopwatch = self.dispatch.stopwatch
        self.routes = self.dispatch.routes
        self.owners = Owners()
        # Matrix id, row id and holder of garbage-collected handles.
        self._dropped: deque[tuple[int, int, str]] = deque()
        # Calls that tell the master about dropped rows and have not succeeded yet, with their ids (None: no id).
        self._unsent_drops: deque[tuple[Callable[[], None], RequestId | None]] = deque()

    @property
    def async_writer(self) -> AsyncWriter:
        """The writer of the mutations of ``dispatch.run_later``."""
        self.dispatch.check_process()
        return self.dispatch.writer

    @property
    def epoch(self) -> int:
        """The number of the fleet's rollbacks to a checkpoint that the calling thread's loop has been told about."""
        return self.rollbacks.epoch

    @shielded
    def check_epoch(self, newest: tuple[int, int | None]) -> None:
        """Raise RolledBack if the fleet rolled back to a checkpoint since the caller's loop began.

        ``newest``: epoch and step of the newest rollback that the caller knows of.
        """
        self.rollbacks.record(*newest)
        self.rollbacks.check()

    @shielded
    def acknowledge(self, epoch: int, step: int | None) -> None:
        """Record that the calling thread of the driver has handled the rollbacks up to an epoch."""
        self.rollbacks.acknowledge(epoch, step)

    @contextlib.contextmanager
    def in_run(self, ids: RunIds) -> Iterator[None]:
        """Within the ``with`` statement, number mutations as a worker of ``ps.run``.

        At the end of the statement, unsent additions are dropped. A worker that returned has none, and the next attempt
        of a failed worker sends them again.
        """
        self.ids.run = ids
        try:
            yield
        finally:
            self.dispatch.writer.discard()
            self.ids.run = None

    @shielded
    def resume(self, epoch: int) -> None:
        """Prepare a worker of ``ps.run`` to resume at an earlier clock after the fleet's ``epoch``-th rollback."""
        run = self.ids.run
        if run is not None and epoch > run.epoch:
            self.rollbacks.record(epoch, None)
            run.seen = max(run.seen, epoch)
            self.dispatch.writer.discard()  # queued changes belong to a clock that is repeated
            run.epoch = epoch

    @property
    def holder(self) -> str:
        """The holder to which the master allocates rows now: this attempt of a task, or this session; see ``drop``."""
        return self.ids.holder

    @shielded
    def new_matrix(self, spec: MatrixSpec, name: str = "") -> MatrixInfo:
        """Create a matrix, and allocate its row 0 under ``name`` ("": without a name)."""
        self._begin_allocation()
        with self._new_id() as id:
            return self._remember(self.ask(lambda: self._master.new_matrix(spec, id, self.holder, name)))

    @shielded
    def find_or_create(self, spec: MatrixSpec, name: str) -> tuple[int, MatrixInfo]:
        """Return the row id and matrix of a named vector; if there is none, create a matrix and name its row 0."""
        self._begin_allocation()
        with self._new_id() as id:
            row, info = self.ask(lambda: self._master.find_or_create(spec, id, self.holder, name))
        return row, self._remember(info)

    @shielded
    def matrix(self, matrix: int) -> MatrixInfo:
        return self._remember(self._master.matrix(matrix))

    @shielded
    def find_vector(self, name: str) -> tuple[int, MatrixInfo]:
        """Return the row id and matrix of a named vector."""
        matrix, row = self.ask(lambda: self._master.find_vector(name))
        return row, self.matrix(matrix)

    @shielded
    def take_rows(self, matrix: int, count: int = 0, name: str = "") -> list[int]:
        """Allocate ``count`` rows of zeros (0: all reserved rows that are not in use). ``name`` is for one row."""
        self._begin_allocation()
        with self._new_id() as id:
            return self.ask(lambda: self._master.take_rows(matrix, id, self.holder, count, name))

    @shielded
    def free_rows(self, matrix: int, rows: Sequence[int]) -> None:
        """Free rows: in a task when its stage is over, elsewhere at once."""
        self.dispatch.writer.drain()  # queued additions may still use these rows
        request_id = self.ids.unnumbered_id()
        if request_id is not None:
            self.ask(lambda: self._master.free_rows(matrix, rows, request_id))
            return
        with self._new_id() as id:
            self.ask(lambda: self._master.free_rows(matrix, rows, id))

    def drop(self, matrix: int, rows: Sequence[int], holder: str) -> None:
        """Record that a holder has no handle to these rows any more. The next call for rows tells the master."""
        self._dropped.extend((matrix, row, holder) for row in rows)

    @shielded
    def with_stable_route(self, matrix: int, attempt: Callable[[Route, int, RequestId], T]) -> T:
        """Call ``attempt(route, route version, mutation id)`` until the route stays the same; return its result.

        The attempt sends requests to several servers of a matrix. It is repeated, with the same mutation id, if a
        server could not answer or the route version changed during the attempt.
        """
        self.dispatch.flush()
        retries = RetryPolicy(self.retry)
        with self._new_id() as id:
            while True:
                self.ask(lambda: self.matrix(matrix))
                self.rollbacks.check_run(changes=True)
                version = self.routes.version
                try:
                    result = attempt(self.dispatch.current_routes({matrix})[matrix], version, id)
                except TransientError as error:
                    retries.wait(error)
                    self.dispatch.refresh({matrix}, error, retries)
                    continue
                self.ask(lambda: self.matrix(matrix))
                self.rollbacks.check_run(changes=True)
                if self.routes.version == version:
                    return result

    @shielded
    def close(self) -> None:
        self.network.close()

    def _remember(self, info: MatrixInfo) -> MatrixInfo:
        # Record the rollback first: a thread that sees the new route must also see the rollback (``Dispatch._send``).
        self.rollbacks.record(info.epoch, info.step)
        self.routes.store(info.id, info.route)
        return info

    def _begin_allocation(self) -> None:
        self.rollbacks.remember_thread()
        self._release_dropped()

    def _release_dropped(self) -> None:
        for owner in self.owners.pop_collected():
            self.drop(owner.matrix, owner.rows, owner.holder)
        if self._dropped:
            self.dispatch.writer.drain()  # queued additions may still use these rows
        dropped_rows: dict[tuple[int, str], list[int]] = {}
        with contextlib.suppress(IndexError):  # the queue is empty, or another thread has just emptied it
            while True:
                matrix, row, holder = self._dropped.popleft()
                dropped_rows.setdefault((matrix, holder), []).append(row)
        for (matrix, holder), rows in dropped_rows.items():
            # In a task the call gets no id. Garbage collection runs at arbitrary times, so using an id here would
            # change the ids of the task's later mutations.
            id = None if holder != self.ids.session else self._take_id()
            self._unsent_drops.append((functools.partial(self._master.drop_rows, matrix, rows, holder, id), id))
        with contextlib.suppress(IndexError):
            while True:
                drop_rows, id = self._unsent_drops.popleft()
                try:
                    self.ask(drop_rows)
                except TransientError:
                    self._unsent_drops.append((drop_rows, id))  # the next call for rows sends it again with the same id
                    raise
                if id is not None:
                    self.ids.retire(id)

    @contextlib.contextmanager
    def _new_id(self) -> Iterator[RequestId]:
        """Yield the id of a call to the master, and retire it afterwards."""
        id = self._take_id()
        try:
            yield id
        finally:
            self.ids.retire(id)

    def _take_id(self) -> RequestId:
        # Before its first clock, a worker's next attempt asks again for the rows that this attempt got. With settled=0,
        # the master keeps the answers to these ids.
        return replace(self.ids.next(), settled=0) if self.ids.run is not None else self.ids.next()

    @shielded
    def ask(self, call: Callable[[], T]) -> T:
        """Return the result of a call to the master or servers; retry transient errors."""
        retries = RetryPolicy(self.retry)
        while True:
            try:
                return call()
            except LostError:
                raise
            except TransientError as error:
                if isinstance(error, UnreachableError):
                    retries.record_master_error(error)
                retries.wait(error)
                if isinstance(error, RecoveringError):
                    retries.record_progress()
