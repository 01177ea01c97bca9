"""One process's connection to one fleet: runs plans, now or later, and asks the master for rows."""

from __future__ import annotations

import contextlib
import functools
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ps2.client.async_writer import AsyncWriter
from ps2.client.delivery import Delivery, Results
from ps2.client.fleet import FleetRef
from ps2.client.owners import Owners
from ps2.client.plans import Plan
from ps2.client.prepared import PreparedCalls
from ps2.client.read_your_writes import ReadYourWrites, is_plain
from ps2.client.retry import RetryPolicy
from ps2.client.rollback import RollbackTracker
from ps2.client.send_scheduler import SendScheduler
from ps2.client.stopwatch import Stopwatch
from ps2.client.task import MutationIds, RunIds, is_later_attempt
from ps2.config import RetryConfig, WireConfig
from ps2.errors import (
    LostError,
    RecoveringError,
    TransientError,
    UnreachableError,
    UsageError,
)
from ps2.interrupts import shielded
from ps2.matrix.partition import MatrixSpec
from ps2.matrix.route import Route
from ps2.protocol.messages import RequestId
from ps2.rpc.master_control import MasterControl, MatrixInfo
from ps2.rpc.transport import Transport

T = TypeVar("T")


@dataclass(eq=False)
class Session:
    """Safe for threads. ``close`` it when done; a closed one raises StoppedError."""

    fleet: FleetRef
    transport: Transport
    retry: RetryConfig = field(default_factory=RetryConfig)
    wire: WireConfig = field(default_factory=WireConfig)
    # Called in the driver with epoch and step, before RolledBack is raised.
    on_rollback: Callable[[int, int | None], None] = lambda epoch, step: None
    # Where this process reaches the master; "": where all others do.
    master_address: str = ""

    def __post_init__(self) -> None:
        self.retry = replace(self.retry, recovery_s=self.fleet.retry_timeout_s)
        if is_later_attempt():
            self.retry = replace(self.retry, first_contact_s=self.retry.later_contact_s)
        self._master = MasterControl(self.transport, self.master_address or self.fleet.master)
        self.ids = MutationIds(self.fleet.id)
        self.rollbacks = RollbackTracker(self.ids, self.on_rollback)
        self._pid = os.getpid()
        self.stopwatch = Stopwatch()
        self.prepared = PreparedCalls(self)
        self._delivery = Delivery(
            self.transport,
            self.retry,
            self.wire,
            self.rollbacks,
            locate=self.matrix,
            find=lambda matrix: self.ask(lambda: self.matrix(matrix)),
        )
        self.routes = self._delivery.routes
        self._async_writer = AsyncWriter(self._delivery.send_all)
        # The rows of handles that are there.
        self.owners = Owners()
        # Rows of handles that are gone.
        self._dropped: deque[tuple[int, int, str]] = deque()
        # What the master could not be told of them yet.
        self._untold: deque[tuple[Callable[[], None], RequestId | None]] = deque()

    @shielded
    def run(self, plans: Sequence[Plan[Any]], id: RequestId | None = None) -> list[Any]:
        """Run plans in order, as one request a server, and return what each of them comes to.

        All servers work at the same time. A plan that changes data is applied once, however often it is sent. What
        takes more than ``wire.block_bytes`` on a server travels as several requests, each applied by itself.

        Args:
            id: under which what changes data has been sent before; None: it has not.
        """
        self.check_process()
        with self.stopwatch.running("push" if any(plan.mutates for plan in plans) else "pull"):
            return self._run(plans, id)

    def _run(self, plans: Sequence[Plan[Any]], id: RequestId | None) -> list[Any]:
        if self.ids.run is not None and self._async_writer.is_backed_up and is_plain(plans):
            self._async_writer.check()
            results, reading = self.read(plans)
            self._async_writer.forget(reading)
            if not reading.is_void:
                reading.lay()
                return _merged(plans, results)
        try:
            self.flush()
            self._note_routes(plans)
            self.rollbacks.check()
            if id is None and any(plan.mutates for plan in plans):
                id = self.ids.next()
            results = self._delivery.send_or_drop(plans, id)
        finally:
            if id is not None:
                self.ids.done(id)
                self._async_writer.note_written(plans)
        return _merged(plans, results)

    @shielded
    def read(self, plans: Sequence[Plan[Any]]) -> tuple[Results, ReadYourWrites]:
        """Run plans that only read, while additions wait.

        Returns:
            The results, and the additions that they lack, collected until the writer is told to forget them. Nothing is
            read if they lack what cannot be laid over them.
        """
        with self._async_writer.held(plans) as reading:
            if reading.is_void:
                return [], reading
            try:
                self._note_routes(plans)
                self.rollbacks.check()
                return self._delivery.send_or_drop(plans, None), reading
            except BaseException:
                self._async_writer.forget(reading)
                raise

    @shielded
    def run_later(self, plan: Plan[Any]) -> None:
        """Run a plan that changes data, and whose arrays nobody changes, while the caller goes on.

        Additions run in no particular order among themselves; what overwrites runs after all that was given before it
        for its matrix, and before what is given after it. All run before any that ``run`` is given later.
        """
        self.check_process()
        self._note_routes([plan])
        clock = 0 if self.ids.run is None else self.ids.run.clock
        with self.stopwatch.running("push"):
            for part in self._async_writer.cut(plan):
                self._async_writer.put(part, self.ids.next, clock)

    @shielded
    def flush(self) -> None:
        """Wait for what ``run_later`` was given; raise if any of it failed."""
        self.check_process()
        with self.stopwatch.running("push"):
            self._async_writer.flush()

    @property
    def writer_is_idle(self) -> bool:
        """Whether nothing is to be said or waited for of what ``run_later`` was given."""
        return self._async_writer.is_idle

    @property
    def async_writer(self) -> AsyncWriter:
        """What ``run_later`` was given and has not been answered."""
        self.check_process()
        return self._async_writer

    def check_process(self) -> None:
        """Raise UsageError in a child of the process that this session is of."""
        check_process(self._pid)

    @property
    def epoch(self) -> int:
        """How often the fleet has gone back to a checkpoint, as far as the driver's loop has been told."""
        return self.rollbacks.epoch

    @shielded
    def check_epoch(self, newest: tuple[int, int | None]) -> None:
        """Raise RolledBack if the fleet has gone back to a checkpoint since the caller's loop began; see ``rollback``.

        Args:
            newest: how often the fleet has gone back, and to which step, if the caller knows better.
        """
        self.rollbacks.note(*newest)
        self.rollbacks.check()

    @contextlib.contextmanager
    def in_run(self, ids: RunIds, pace: SendScheduler | None = None) -> Iterator[None]:
        """Name what changes data after a run's worker meanwhile, and let additions leave at its pace.

        What has not been sent in the end is forgotten: a worker that leaves has flushed, and one that fails sends it
        again.
        """
        self.ids.run = ids
        self._async_writer.set_scheduler(pace or SendScheduler())
        try:
            yield
        finally:
            self._async_writer.discard()
            self._async_writer.set_scheduler(SendScheduler())
            self.ids.run = None

    @shielded
    def go_on(self, epoch: int) -> None:
        """Note that the run has told its worker where it stands, this often having gone back."""
        run = self.ids.run
        if run is not None and epoch > run.epoch:
            self.rollbacks.note(epoch, None)
            run.seen = max(run.seen, epoch)
            self._async_writer.discard()  # what is still under way is of a clock that is done again
            run.epoch = epoch

    @property
    def holder(self) -> str:
        """Who holds the rows that are handed out now; ``drop`` names it again."""
        return self.ids.holder

    @shielded
    def new_matrix(self, spec: MatrixSpec, name: str = "") -> MatrixInfo:
        """Make a matrix; its row 0 is handed out, under a name if one is given."""
        self._release_dropped()
        with self._new_id() as id:
            return self._remember(self.ask(lambda: self._master.new_matrix(spec, id, self.holder, name)))

    @shielded
    def matrix(self, matrix: int) -> MatrixInfo:
        return self._remember(self._master.matrix(matrix))

    @shielded
    def take_rows(self, matrix: int, count: int = 0, name: str = "") -> list[int]:
        """Get rows of a matrix, as zeros: ``count`` of them, or for 0 all that are reserved and not in use.

        Args:
            name: for the row, with a count of 1.
        """
        self._release_dropped()
        with self._new_id() as id:
            return self.ask(lambda: self._master.take_rows(matrix, id, self.holder, count, name))

    @shielded
    def free_rows(self, matrix: int, rows: Sequence[int]) -> None:
        """Give rows back: at once, or in a task when its stage is over."""
        self._async_writer.drain()  # it may still be about these rows
        of_task = self.ids.unnumbered()
        if of_task is not None:
            self.ask(lambda: self._master.free_rows(matrix, rows, of_task))
            return
        with self._new_id() as id:
            self.ask(lambda: self._master.free_rows(matrix, rows, id))

    def drop(self, matrix: int, rows: Sequence[int], holder: str) -> None:
        """Note that a holder's last handle to rows is gone; the master is told with the next call for rows."""
        self._dropped.extend((matrix, row, holder) for row in rows)

    @shielded
    def at_one_version(self, matrix: int, attempt: Callable[[Route, int, RequestId], T]) -> T:
        """Ask servers of a matrix for more than one request can bring; return what an attempt comes to.

        It is made anew, as a whole, where a server could not answer or was replaced meanwhile.

        Args:
            attempt: is given the route, the route version that its calls are to carry, and the id of a mutation, the
                same each time.

        Raises:
            LostError: a server is gone for good.
            RolledBack: the fleet went back to a checkpoint meanwhile.
        """
        self.flush()
        attempts = RetryPolicy(self.retry)
        with self._new_id() as id:
            while True:
                self.ask(lambda: self.matrix(matrix))
                self.rollbacks.check_run(changes=True)
                version = self.routes.version
                try:
                    done = attempt(self._delivery.routes_of({matrix})[matrix], version, id)
                except TransientError as error:
                    attempts.wait(error)
                    self._delivery.refresh({matrix}, error, attempts)
                    continue
                self.ask(lambda: self.matrix(matrix))
                self.rollbacks.check_run(changes=True)
                if self.routes.version == version:
                    return done

    @shielded
    def close(self) -> None:
        self.transport.close()

    def _note_routes(self, plans: Sequence[Plan[Any]]) -> None:
        for plan in plans:
            self.routes.offer(plan.matrix, plan.route)

    def _remember(self, info: MatrixInfo) -> MatrixInfo:
        # In this order: see _attempt.
        self.rollbacks.note(info.epoch, info.step)
        self.routes.note(info.id, info.route)
        return info

    def _release_dropped(self) -> None:
        for owner in self.owners.take_gone():
            self.drop(owner.matrix, owner.rows, owner.holder)
        if self._dropped:
            self._async_writer.drain()  # it may still be about these rows
        handles: dict[tuple[int, str], list[int]] = {}
        with contextlib.suppress(IndexError):  # it is empty, or another thread has just emptied it
            while True:
                matrix, row, holder = self._dropped.popleft()
                handles.setdefault((matrix, holder), []).append(row)
        for (matrix, holder), rows in handles.items():
            # No mutation of a task has the number that this would take: the collector runs when it likes.
            id = None if holder != self.ids.session else self._take_id()
            self._untold.append((functools.partial(self._master.drop_rows, matrix, rows, holder, id), id))
        with contextlib.suppress(IndexError):
            while True:
                tell, id = self._untold.popleft()
                try:
                    self.ask(tell)
                except TransientError:
                    self._untold.append((tell, id))  # the next call for rows tells it, by the same id
                    raise
                if id is not None:
                    self.ids.done(id)

    @contextlib.contextmanager
    def _new_id(self) -> Iterator[RequestId]:
        """The id of a call to the master, given up afterwards."""
        id = self._take_id()
        try:
            yield id
        finally:
            self.ids.done(id)

    def _take_id(self) -> RequestId:
        # A worker's next attempt asks once more for what it had before its first clock.
        return replace(self.ids.next(), settled=0) if self.ids.run is not None else self.ids.next()

    @shielded
    def ask(self, call: Callable[[], T]) -> T:
        """Ask the master or servers, again and again where it may help."""
        attempts = RetryPolicy(self.retry)
        while True:
            try:
                return call()
            except LostError:
                raise
            except TransientError as error:
                if isinstance(error, UnreachableError):
                    attempts.doubt(error)
                attempts.wait(error)
                if isinstance(error, RecoveringError):
                    attempts.explain()


def check_process(pid: int) -> None:
    """Raise UsageError unless this process is that one: a child shares what it was forked with."""
    if os.getpid() != pid:
        raise UsageError(
            f"vectors work in a task or a driver itself (process {pid}), in any of its threads, and not in a process "
            f"that it has started (this one, {os.getpid()}), whose updates could not be counted once: let it compute "
            "on arrays, and pull and push in the task or the driver"
        )


def _merged(plans: Sequence[Plan[Any]], results: Results) -> list[Any]:
    return [plan.merge(found) for plan, found in zip(plans, results, strict=True)]  # type: ignore[arg-type]
