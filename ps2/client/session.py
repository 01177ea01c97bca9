"""One process's connection to one fleet: sends plans, retries what may pass by itself, asks the master for rows."""

from __future__ import annotations

import contextlib
import functools
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ps2.client.fleet import FleetRef
from ps2.client.keysets import KnownKeys
from ps2.client.outbox import Mutation, Outbox
from ps2.client.overlay import Reading, is_plain
from ps2.client.pace import Pace
from ps2.client.patience import Patience
from ps2.client.plans import Plan
from ps2.client.requests import Piece, cut, group
from ps2.client.routes import Routes
from ps2.client.stopwatch import Stopwatch
from ps2.client.task import MutationIds, RunIds, task_epoch
from ps2.config import RetryConfig, WireConfig
from ps2.errors import (
    BusyError,
    KeyMissError,
    LimitError,
    LostError,
    PS2Error,
    RecoveringError,
    RolledBack,
    TransientError,
    UsageError,
)
from ps2.ops.table import writes
from ps2.partition import MatrixSpec
from ps2.route import Route
from ps2.wire.master_control import MasterControl, MatrixInfo
from ps2.wire.messages import RequestId, Result
from ps2.wire.transport import Transport

Results = list[list[Result | None]]
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

    def __post_init__(self) -> None:
        self.retry = replace(self.retry, recovery_s=self.fleet.retry_timeout_s)
        # How often the fleet has gone back to a checkpoint: what the driver's loop knows of, and what is known here.
        self.epoch = 0
        self._newest: tuple[int, int | None] = (0, None)
        self._master = MasterControl(self.transport, self.fleet.master)
        self._ids = MutationIds(self.fleet.id)
        self._pid = os.getpid()
        self._routes = Routes()
        self.stopwatch = Stopwatch()
        self._known = KnownKeys()
        self._outbox = Outbox(self._send_mutations)
        # Rows of handles that were garbage-collected; the collector may run anywhere, so it only notes them here.
        self._dropped: deque[tuple[int, int, str]] = deque()

    def run(self, plans: Sequence[Plan[Any]]) -> list[Any]:
        """Run plans in order, as one request a server, and return what each of them comes to.

        All servers work at the same time. A plan that changes data is applied once, however often it is sent. What
        takes more than ``wire.block_bytes`` on a server travels as several requests, each applied by itself.
        """
        self.check_process()
        with self.stopwatch.running("push" if any(plan.mutates for plan in plans) else "pull"):
            return self._run(plans)

    def _run(self, plans: Sequence[Plan[Any]]) -> list[Any]:
        if self._ids.run is not None and self._outbox.is_backed_up and is_plain(plans):
            self._outbox.check()
            results, reading = self.read(plans)
            self._outbox.forget(reading)
            if not reading.is_void:
                reading.lay()
                return _merged(plans, results)
        self.flush()
        self._note_routes(plans)
        self.check_epoch()
        id = self._ids.next() if any(plan.mutates for plan in plans) else None
        try:
            results = self._send_or_drop(plans, id)
        finally:
            if id is not None:
                self._ids.done(id)
                self._outbox.note_written(plans)
        return _merged(plans, results)

    def read(self, plans: Sequence[Plan[Any]]) -> tuple[Results, Reading]:
        """Run plans that only read, while additions wait.

        Returns:
            The results, and what collects, until the outbox is told to forget it, which additions they lack. Nothing
            is read if they lack what cannot be laid over them.
        """
        with self._outbox.held(plans) as reading:
            if reading.is_void:
                return [], reading
            try:
                self._note_routes(plans)
                self.check_epoch()
                return self._send_or_drop(plans, None), reading
            except BaseException:
                self._outbox.forget(reading)
                raise

    def run_later(self, plan: Plan[Any]) -> None:
        """Run a plan that changes data, and whose arrays nobody changes, while the caller goes on.

        Plans run in no particular order among themselves, and before any that ``run`` is given later.
        """
        self.check_process()
        self._note_routes([plan])
        clock = 0 if self._ids.run is None else self._ids.run.clock
        with self.stopwatch.running("push"):
            for part in self._outbox.cut(plan):
                self._outbox.put(part, self._ids.next, clock)

    def flush(self) -> None:
        """Wait for what ``run_later`` was given; raise if any of it failed."""
        self.check_process()
        with self.stopwatch.running("push"):
            self._outbox.flush()

    @property
    def outbox(self) -> Outbox:
        """What ``run_later`` was given and has not been answered."""
        self.check_process()
        return self._outbox

    def check_process(self) -> None:
        """Raise UsageError in a child of the process that this session is of."""
        check_process(self._pid)

    def check_epoch(self, newest: tuple[int, int | None] | None = None) -> None:
        """Raise RolledBack if the fleet has gone back to a checkpoint since the caller's loop began, or was told so.

        The driver is told once; a task, which may be a late one of an earlier stage, each time; a worker of a run
        never, as its run tells it where it stands: see ``_send_or_drop``.

        Args:
            newest: how often the fleet has gone back, and to which step, if the caller knows better.
        """
        self._newest = max(self._newest, newest or self._newest, key=lambda known: known[0])
        epoch, step = self._newest
        if self._ids.run is not None:
            return
        told = task_epoch()
        if epoch <= (self.epoch if told is None else told):
            return
        if told is None:
            self.epoch = epoch
            self.on_rollback(epoch, step)
        raise self._rolled_back()

    @contextlib.contextmanager
    def in_run(self, ids: RunIds, pace: Pace | None = None) -> Iterator[None]:
        """Name what changes data after a run's worker meanwhile, and let additions leave at its pace.

        What has not been sent in the end is forgotten: a worker that leaves has flushed, and one that fails sends it
        again.
        """
        self._ids.run = ids
        self._outbox.set_pace(pace or Pace())
        try:
            yield
        finally:
            self._outbox.discard()
            self._outbox.set_pace(Pace())
            self._ids.run = None

    def go_on(self, epoch: int) -> None:
        """Note that the run has told its worker where it stands, this often having gone back."""
        run = self._ids.run
        if run is not None and epoch > run.epoch:
            self._newest = max(self._newest, (epoch, None), key=lambda known: known[0])
            run.seen = max(run.seen, epoch)
            self._outbox.discard()  # what is still under way is of a clock that is done again
            run.epoch = epoch

    @property
    def holder(self) -> str:
        """Who holds the rows that are handed out now; ``drop`` names it again."""
        return self._ids.holder

    def new_matrix(self, spec: MatrixSpec, name: str = "") -> MatrixInfo:
        """Make a matrix; its row 0 is handed out, under a name if one is given."""
        self._release_dropped()
        with self._new_id() as id:
            return self._remember(self.ask(lambda: self._master.new_matrix(spec, id, self.holder, name)))

    def matrix(self, matrix: int) -> MatrixInfo:
        return self._remember(self._master.matrix(matrix))

    def take_rows(self, matrix: int, count: int = 0, name: str = "") -> list[int]:
        """Get rows of a matrix, as zeros: ``count`` of them, or for 0 all that are reserved and not in use.

        Args:
            name: for the row, with a count of 1.
        """
        self._release_dropped()
        with self._new_id() as id:
            return self.ask(lambda: self._master.take_rows(matrix, id, self.holder, count, name))

    def free_rows(self, matrix: int, rows: Sequence[int]) -> None:
        """Give rows back: at once, or in a task when its stage is over."""
        self._outbox.drain()  # it may still be about these rows
        of_task = self._ids.unnumbered()
        if of_task is not None:
            self.ask(lambda: self._master.free_rows(matrix, rows, of_task))
            return
        with self._new_id() as id:
            self.ask(lambda: self._master.free_rows(matrix, rows, id))

    def drop(self, matrix: int, rows: Sequence[int], holder: str) -> None:
        """Note that a holder's last handle to rows is gone; the master is told with the next call for rows."""
        self._dropped.extend((matrix, row, holder) for row in rows)

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
        patience = Patience(self.retry)
        with self._new_id() as id:
            while True:
                self.ask(lambda: self.matrix(matrix))
                self._check_run(changes=True)
                version = self._routes.version
                try:
                    done = attempt(self._routes_of({matrix})[matrix], version, id)
                except TransientError as error:
                    patience.wait(error)
                    self._refresh({matrix}, error, patience)
                    continue
                self.ask(lambda: self.matrix(matrix))
                self._check_run(changes=True)
                if self._routes.version == version:
                    return done

    def close(self) -> None:
        self.transport.close()

    def _send_or_drop(self, plans: Sequence[Plan[Any]], id: RequestId | None) -> Results:
        """Send plans; in a run, drop changes of a clock that will be done again, as the fleet has gone back.

        Raises:
            RolledBack: outside a run, or a change has an answer.
        """
        while True:
            try:
                return self._send(plans, id)
            except RolledBack:
                if not self._drift(plans):
                    raise

    def _drift(self, plans: Sequence[Plan[Any]]) -> bool:
        """Let a run's worker go on in a clock that will be done again; False if it cannot."""
        run = self._ids.run
        if run is None or any(plan.mutates and _has_answer(plan) for plan in plans):
            return False
        run.seen = self._newest[0]
        return True

    def _send(self, plans: Sequence[Plan[Any]], id: RequestId | None) -> Results:
        """Send the operations of plans until all are answered; return the results by plan."""
        results: Results = [[None] * len(plan.operations) for plan in plans]
        routes = self._routes_of({plan.matrix for plan in plans})
        run = self._ids.run
        if run is not None and run.seen > run.epoch:
            if any(plan.mutates and _has_answer(plan) for plan in plans):
                raise self._rolled_back()
            pieces = cut(plans, routes, self.wire.block_bytes)
            pieces = [piece for piece in pieces if not plans[piece.plan].mutates]
        else:
            pieces = cut(plans, routes, self.wire.block_bytes, id)
        if len(plans) == 1:
            self._send_pieces(pieces, results)
        else:
            # Later calls may build on earlier ones, so no request goes out before those it follows are answered.
            for part in range(max((piece.part for piece in pieces), default=-1) + 1):
                self._send_pieces([piece for piece in pieces if piece.part == part], results)
        return results

    def _send_mutations(self, mutations: Sequence[Mutation]) -> list[PS2Error]:
        """Send plans that do not depend on each other, all at once; return the errors of those that failed."""
        results: Results = [[None] * len(plan.operations) for plan, _ in mutations]
        errors: list[PS2Error] = []
        try:
            routes = self._routes_of({plan.matrix for plan, _ in mutations})
            self._send_pieces(
                [
                    piece
                    for number, (plan, id) in enumerate(mutations)
                    for piece in cut([plan], routes, self.wire.block_bytes, id, number)
                ],
                results,
            )
        except PS2Error:
            # Which one failed, and have the others been applied? Their ids let each be sent again by itself.
            for plan, id in mutations:
                try:
                    self._send_or_drop([plan], id)
                except PS2Error as error:
                    errors.append(error)
        finally:
            for _, id in mutations:
                self._ids.done(id)
        return errors

    def _note_routes(self, plans: Sequence[Plan[Any]]) -> None:
        for plan in plans:
            self._routes.offer(plan.matrix, plan.route)

    def _routes_of(self, matrices: set[int]) -> dict[int, Route]:
        """Return where matrices are; the master knows those that have been forgotten since their call began."""
        routes = self._routes.of(matrices)
        for matrix in matrices - routes.keys():
            routes[matrix] = self.ask(functools.partial(self.matrix, matrix)).route
        return routes

    def _send_pieces(self, pieces: Sequence[Piece], results: Results) -> None:
        """Send pieces, again and again where it may help, until all have brought their results."""
        patience = Patience(self.retry)
        while pieces:
            before = len(pieces)
            pieces, error = self._attempt(pieces, results)
            if error is None or isinstance(error, KeyMissError):
                continue
            patience.wait(error)
            if isinstance(error, BusyError):
                if len(pieces) < before:
                    patience.explain()
            else:
                self._refresh({piece.operation.matrix for piece in pieces}, error, patience)

    def _attempt(self, pieces: Sequence[Piece], results: Results) -> tuple[list[Piece], TransientError | None]:
        """Send pieces to their servers; return those to send again, with the error that is why."""
        version = self._routes.version
        requests = group(pieces, self._routes_of({piece.operation.matrix for piece in pieces}), version)
        # After the routes were looked up: who has those to a fleet that has gone back knows that it has.
        self._check_run(changes=any(piece.id is not None for piece in pieces))
        outcomes = self.transport.exchange(
            {address: [self._known.shorten(request) for _, request in mine] for address, mine in requests.items()}
        )
        again: list[Piece] = []
        transient: TransientError | None = None
        final: PS2Error | None = None
        for address, mine in requests.items():
            for (sent, request), outcome in zip(mine, outcomes[address], strict=True):
                if isinstance(outcome, KeyMissError):
                    self._known.forget(request)
                    again += sent
                    transient = transient or outcome
                elif isinstance(outcome, BusyError):
                    again += sent
                    # Others say more: where partitions are may have to be asked.
                    if transient is None or isinstance(transient, KeyMissError):
                        transient = BusyError(f"{address}: {outcome}")
                elif isinstance(outcome, TransientError):
                    again += sent
                    transient = outcome
                elif isinstance(outcome, PS2Error):
                    final = final or _placed(outcome, address)
                else:
                    self._known.add(request)
                    for piece, result in zip(sent, outcome.results, strict=True):
                        results[piece.plan][piece.position] = result
        if final is not None:
            raise final
        return again, transient

    def _refresh(self, matrices: set[int], error: TransientError, patience: Patience) -> None:
        """Ask the master where the matrices are now, and whether it is bringing a server of theirs back.

        Raises:
            LostError: they are nowhere any more.
            RolledBack: they are not what they were.
        """
        for matrix in matrices:
            try:
                info = self.matrix(matrix)
            except TransientError as silence:
                patience.doubt(silence)
                return
            if info.lost:
                raise LostError(f"{'; '.join(info.lost)}; {error}") from error
            if info.recovering:
                patience.explain()
        patience.doubt(None)
        self.check_epoch()

    def _check_run(self, changes: bool) -> None:
        """Raise RolledBack if the fleet is not what a run's worker takes it for: for reads, or for its changes."""
        run = self._ids.run
        if run is None:
            self.check_epoch()
        elif self._newest[0] > (run.epoch if changes else run.seen):
            raise self._rolled_back()

    def _rolled_back(self) -> RolledBack:
        step = self._newest[1]
        return RolledBack(f"the fleet went back to a checkpoint; go on from step {step}", step)

    def _remember(self, info: MatrixInfo) -> MatrixInfo:
        # In this order: see _attempt.
        self._newest = max(self._newest, (info.epoch, info.step), key=lambda known: known[0])
        self._routes.note(info.id, info.route)
        return info

    def _release_dropped(self) -> None:
        if self._dropped:
            self._outbox.drain()  # it may still be about these rows
        handles: dict[tuple[int, str], list[int]] = {}
        with contextlib.suppress(IndexError):  # it is empty, or another thread has just emptied it
            while True:
                matrix, row, holder = self._dropped.popleft()
                handles.setdefault((matrix, holder), []).append(row)
        for (matrix, holder), rows in handles.items():
            # No mutation of a task has the number that this would take: the collector runs when it likes.
            of_task = holder != self._ids.session
            with contextlib.nullcontext() if of_task else self._new_id() as id:
                self.ask(functools.partial(self._master.drop_rows, matrix, rows, holder, id))

    @contextlib.contextmanager
    def _new_id(self) -> Iterator[RequestId]:
        """The id of a call to the master, given up afterwards."""
        # A worker's next attempt asks once more for what it had before its first clock.
        id = replace(self._ids.next(), settled=0) if self._ids.run is not None else self._ids.next()
        try:
            yield id
        finally:
            self._ids.done(id)

    def ask(self, call: Callable[[], T]) -> T:
        """Ask the master or servers, again and again where it may help."""
        patience = Patience(self.retry)
        while True:
            try:
                return call()
            except LostError:
                raise
            except TransientError as error:
                patience.wait(error)
                if isinstance(error, RecoveringError):
                    patience.explain()


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


def _placed(error: PS2Error, address: str) -> PS2Error:
    """Return an error that names the server, if it is about that one's memory."""
    return LimitError(f"{address}: {error}") if isinstance(error, LimitError) else error


def _has_answer(plan: Plan[Any]) -> bool:
    """Tell whether a plan that changes data also brings something back."""
    return not plan.batchable or not all(writes(operation.name) for operation in plan.operations)
