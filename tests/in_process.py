"""Trainings without Spark: rows are arrays, and servers and workers live in the test's process.

``training_context`` takes the place of a ``PS2Context``, and ``ArrayTable`` that of a table of a DataFrame::

    with training_context(servers=2) as ps:
        model = train(ps, ArrayTable.of(x, y, workers=2), problem, options, facts)

Engines, wire forms of arrays, ids of mutations, reports and messages are the product's. Workers take turns, clock by
clock: a run with any staleness runs as under BSP.
"""

from __future__ import annotations

import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import scipy.sparse as sp

from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.table import Table
from ps2.client.batch import batch
from ps2.client.fleet import FleetRef
from ps2.client.session import Session
from ps2.client.sessions import install, uninstall
from ps2.client.task import RunIds
from ps2.coordinator.checkpoints import Checkpoints, Newest
from ps2.coordinator.fleet_control import FleetControl
from ps2.coordinator.in_process import MASTER, InProcessServers
from ps2.errors import RolledBack
from ps2.protocol.plain_data import decode
from ps2.rpc.control import ServerControl
from ps2.rpc.run_control import Report
from ps2.rpc.server_status import ServerStatus
from ps2.run.message import STOP, Message
from ps2.run.prefetch import Freshness, Prefetch, Prefetches
from ps2.run.reports import merge_reports, report
from ps2.run.rotation import RotationSchedule
from ps2.run.turns import Rotations, Turn

# Kernels may be compiled meanwhile.
DEADLINE_S = 280.0
FOREVER = float("inf")
VECTOR = pa.struct(
    [("type", pa.int8()), ("size", pa.int32()), ("indices", pa.list_(pa.int32())), ("values", pa.list_(pa.float64()))]
)


def vectors(x: Any) -> pa.Array:
    """Return rows as Spark sends pyspark.ml's vectors: sparse ones of a sparse matrix, else dense ones."""
    if sp.issparse(x):
        rows = sp.csr_array(x)
        parts = [slice(*ends) for ends in zip(rows.indptr, rows.indptr[1:], strict=False)]
        items = [
            {"type": 0, "size": x.shape[1], "indices": rows.indices[part], "values": rows.data[part].astype(float)}
            for part in parts
        ]
    else:
        items = [{"type": 1, "size": None, "indices": None, "values": row} for row in np.asarray(x, float)]
    return pa.array(items, VECTOR)


@dataclass(frozen=True, eq=False)
class ArrayTable(Table):
    """A table whose ``frame`` is the Arrow batches of each worker."""

    @property
    def dealt(self) -> list[list[pa.RecordBatch]]:
        return self.frame

    @classmethod
    def of(
        cls,
        x: Any,
        y: Any = None,
        workers: int = 1,
        columns: ColumnNames | None = None,
        cuts: Sequence[int] | None = None,
        **others: Any,
    ) -> ArrayTable:
        """Deal rows out to workers.

        Args:
            x: features, an array or a sparse matrix, shape (n, dim).
            y: labels, shape (n,); None: there is no such column.
            workers: number of workers, who get rows by turns.
            cuts: rows with which the shards of all workers but the first begin; replaces ``workers``.
            others: further columns by name, each with n values.
        """
        rows = np.arange(x.shape[0])
        shards = [rows[w::workers] for w in range(workers)] if cuts is None else np.split(rows, list(cuts))
        labels = {} if y is None else {"label": y}
        numbers = {name: np.asarray(values) for name, values in {**labels, **others}.items()}
        frame = [
            [
                pa.RecordBatch.from_arrays(
                    [vectors(x[shard]), *(pa.array(values[shard]) for values in numbers.values())],
                    ["features", *numbers],
                )
            ]
            for shard in shards
        ]
        return cls(frame, columns or ColumnNames(), len(shards))


class TrainingContext:
    """What trainings need of a ``PS2Context``, and what vectors need: ``servers``, ``memory``, ``run`` and ``batch``.

    Attributes:
        reports: by run and clock, what workers reported.
        rollback_seed: of the rollbacks in each run (``Rollbacks``); None: there are none.
        messages: what ``onClock`` returned to an earlier driver; workers have these from the beginning.
    """

    batch = staticmethod(batch)
    rollback_seed: int | None = None

    def __init__(self, network: Network, session: Session) -> None:
        self.reports: list[list[list[Any]]] = []
        self.messages: list[Any] = []
        self._network, self._session = network, session

    def statuses(self) -> list[ServerStatus]:
        """What each server tells of itself."""
        control = ServerControl(self._network)
        return [control.status(address) for address in self.servers]

    @property
    def servers(self) -> list[str]:
        return list(self._network.engines)

    def memory(self) -> list[tuple[int, int]]:
        return [(engine.memory.limit_bytes, engine.memory.used_bytes) for engine in self._network.engines.values()]

    def run(
        self,
        data: Sequence[Any],
        worker_fn: Callable[..., Any],
        workers: int | None = None,
        staleness: int | None = 0,
        *,
        read: Callable[..., Any] = lambda worker, rows: rows,
        onClock: Callable[[int, list[Any]], object] = lambda clock, reports: None,
        onEnd: Callable[[], object] = lambda: None,
        firstClock: int = 0,
        seed: int = 0,
    ) -> list[Any]:
        """Run workers by turns; return their results by rank."""
        assert workers in (None, len(data))
        state = _RunState(self._session, self._network, len(self.reports), firstClock, seed, len(data))
        state.messages, state.clocks = list(self.messages), [firstClock - 1] * len(self.messages)
        self.reports.append([])
        team = [Worker(state, rank) for rank in range(len(data))]
        for worker, rows in zip(team, data, strict=True):
            worker.start(read, rows, worker_fn)
        with ExitStack() as ending:
            rollbacks = None
            if self.rollback_seed is not None:
                rollbacks = ending.enter_context(Rollbacks.during(state, self.rollback_seed))
            for worker in team:
                ending.callback(worker.close)
            while True:
                while active := [worker for worker in team if not worker.is_done]:
                    for worker in active:
                        worker.resume()
                    ended = [worker for worker in active if worker.is_at_end_of_clock]
                    if rollbacks is not None and rollbacks.go_back(team):
                        continue
                    if ended:
                        clock = ended[0].clock
                        given = merge_reports(clock, {worker.rank: worker.take_reports() for worker in ended})
                        self.reports[-1].append(given)
                        if rollbacks is None:
                            state.take(clock, onClock(clock, given))
                        else:
                            rollbacks.call(lambda clock=clock, given=given: state.take(clock, onClock(clock, given)))
                            rollbacks.end_clock(clock, team)
                if rollbacks is None:
                    onEnd()
                    break
                rollbacks.call(onEnd)
                if not rollbacks.end_run(team):
                    break
        return [worker.result for worker in team]


@contextmanager
def training_context(servers: int = 2, memory_limit_bytes: int = 1 << 30) -> Iterator[TrainingContext]:
    """Start servers in this process, and yield a context for trainings on them.

    Args:
        memory_limit_bytes: of each server.
    """
    network = Network(servers, memory_limit_bytes, allow_udf=True)
    session = Session(FleetRef(f"in-process-{uuid.uuid4().hex[:12]}", MASTER), network)
    install(session)
    try:
        yield TrainingContext(network, session)
    finally:
        uninstall(session.fleet.id)


class Network(InProcessServers):
    """Servers that may fail before a request.

    Attributes:
        before_request: called before each request of a worker's thread or the driver's.
    """

    before_request: Callable[[], None] = staticmethod(lambda: None)

    def exchange(self, requests: Any) -> Any:
        if not threading.current_thread().name.startswith("ps2-"):
            self.before_request()
        return super().exchange(requests)


class Rollbacks:
    """Rolls the servers, the driver and the workers of a run back, as a fleet does that loses servers.

    Each of the first clocks, some of the others, and the end of the run are rolled back from once, to one of the last
    cuts or to the first one. The servers go back before a random request of the clock, or at its end.
    """

    FIRST, SOME, EVERY = 8, 0.2, 2  # clocks that are rolled back from; the part of the others; clocks from cut to cut

    def __init__(self, state: _RunState, seed: int, folder: str) -> None:
        self._state, self._network = state, state.network
        network = state.network
        self._checkpoints = Checkpoints(network.master, network.control, folder, 1 << 30)
        launcher: Any = SimpleNamespace(servers=len(network.engines), replaces=False)
        self._fleet = FleetControl(network.master, launcher, network.control, 0)
        self._seed, self._rng = seed, np.random.default_rng(seed)
        self._cuts: dict[int, Newest] = {}  # by the first clock that each does not hold
        self._requests = 0  # until the servers go back
        self._clock = state.first
        self._left: int | None = None  # the clock to which servers have gone back, and workers and driver have not
        self._done: set[int] = set()  # clocks that were rolled back from
        self._cut(state.first)

    @staticmethod
    @contextmanager
    def during(state: _RunState, seed: int) -> Iterator[Rollbacks]:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            stack.enter_context(mock.patch("os.fsync"))  # which takes most of a checkpoint's time
            rollbacks = Rollbacks(state, seed, folder)
            state.network.before_request = rollbacks._count
            try:
                rollbacks._enter(state.first)
                yield rollbacks
            finally:
                state.network.before_request = lambda: None

    def go_back(self, team: Sequence[Worker]) -> bool:
        """If the servers have rolled back, let the workers follow when they all wait."""
        if self._left is None:
            return False
        clock, self._left = self._left, None
        for worker in team:
            while not (worker.is_at_end_of_clock or worker.is_done or worker.begins_again):
                worker.resume()
        self._state.go_back(clock)
        with suppress(RolledBack):
            self._state.session.check_epoch(self._network.master.last_rollback)
        for worker in team:
            worker.go_back(clock)
        self._enter(clock)
        return True

    def call(self, call: Callable[[], object]) -> None:
        """Call what is the driver's. A call during which the servers roll back does not count."""
        try:
            call()
            self._state.session.dispatch.flush()
        except RolledBack:
            assert self._left is not None

    def end_clock(self, clock: int, team: Sequence[Worker]) -> None:
        if self._left is None:
            if clock % self.EVERY == 0:
                self._cut(clock + 1)
            if self._is_due(clock):
                self._roll_back()
        if not self.go_back(team):
            self._enter(clock + 1)

    def end_run(self, team: Sequence[Worker]) -> bool:
        """Return whether workers that have returned go back."""
        if self._left is None and self._clock not in self._done:
            self._roll_back()
        return self.go_back(team)

    def _cut(self, clock: int) -> None:
        self._checkpoints.take(None, clock, self._network.master.epoch)
        newest = self._checkpoints.newest
        assert newest is not None
        self._cuts[clock] = newest

    def _enter(self, clock: int) -> None:
        self._clock, self._requests = clock, 0
        if self._is_due(clock):
            self._requests = int(self._rng.choice([1, 1, 2, 4, 8, 1 << 30]))

    def _is_due(self, clock: int) -> bool:
        """Whether the servers go back in a clock; the answer is the same until they have."""
        is_one = clock < self.FIRST or np.random.default_rng((self._seed, clock)).random() < self.SOME
        return is_one and clock not in self._done

    def _count(self) -> None:
        self._requests -= 1
        if self._requests == 0:
            self._roll_back()

    def _roll_back(self) -> None:
        """Roll the servers back."""
        self._done.add(self._clock)
        self._requests = 0
        clocks = sorted(self._cuts)
        self._left = int(self._rng.choice([*(clocks[:1] if self._clock < self.FIRST else []), *clocks[-2:]]))
        self._cuts = {clock: cut for clock, cut in self._cuts.items() if clock <= self._left}
        newest = self._cuts[self._left]
        self._fleet.load(newest, range(len(self._network.engines)), ids=True)
        self._network.master.roll_back(self._left)
        self._fleet.take_loaded(range(len(self._network.engines)))
        self._network.master.finish_rollback(newest.path)


@dataclass
class _RunState:
    """What the driver tells its workers."""

    session: Session
    network: Network
    number: int
    first: int
    seed: int
    workers: int
    messages: list[Any] = field(default_factory=list)
    is_over: bool = False
    clocks: list[int] = field(default_factory=list)  # of the messages
    stopped: int | None = None

    def take(self, clock: int, returned: object) -> None:
        if isinstance(returned, Message):
            self.messages.append(decode(returned.encoded))
            self.clocks.append(clock)
        if returned is STOP and not self.is_over:
            self.is_over, self.stopped = True, clock

    def go_back(self, clock: int) -> None:
        """Forget what the driver has returned in a clock and later."""
        left = sum(one < clock for one in self.clocks)
        del self.messages[left:], self.clocks[left:]
        self.is_over = self.stopped is not None and self.stopped < clock
        if not self.is_over:
            self.stopped = None  # the run may end in a later clock


class _RunAborted(BaseException):
    """Ends the thread of a worker whose run has failed."""


class Worker:
    """A ``ps2.Worker`` whose thread runs only while the driver waits for it."""

    def __init__(self, state: _RunState, rank: int) -> None:
        self.rank, self.workers, self.clock = rank, state.workers, state.first
        self.is_done = self.is_at_end_of_clock = self.begins_again = False
        self.result: Any = None
        self._state, self._session = state, state.session
        epoch = state.network.master.epoch
        self._ids = RunIds(f"{state.session.fleet.id}/runs", state.number, rank, epoch=epoch, seen=epoch)
        self._reports: list[Report] = []
        self._read = 0  # messages that ``messages`` has returned
        self._visible = 0  # messages that were there when the clock was entered
        self._prefetches = Prefetches(self._session, Freshness(self.clock, self.clock, epoch))
        self._resume = state.first  # the first clock that a rollback has left to do
        self._goes_back = False
        self._go, self._stopped, self._aborted = threading.Semaphore(0), threading.Semaphore(0), False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    # -- for the driver ------------------------------------------------------------------------------------------------

    def start(self, read: Callable[..., Any], rows: Any, work: Callable[..., Any]) -> None:
        def target() -> None:
            self._go.acquire()
            try:
                held = None if self._aborted else read(self, iter(rows))
                mutations = self._ids.number
                while not self._aborted:
                    self._begin(mutations)
                    self._attempt(work, held)
            except _RunAborted:
                pass
            except BaseException as error:  # the driver raises it
                self._error = error
            self._aborted = self.is_done = True
            self._stopped.release()

        self._thread = threading.Thread(target=target, daemon=True)
        self._thread.start()

    def _begin(self, mutations: int) -> None:
        self.clock, self._read, self._reports = self._state.first, 0, []
        self.is_done = self.begins_again = self._goes_back = False
        self._ids.settled = 2 * self._resume
        self._ids.enter(2 * self.clock, mutations)
        self._prefetches.restart(Freshness(self.clock, self.clock, self.epoch))

    def _attempt(self, work: Callable[..., Any], held: Any) -> None:
        """Call the worker's function; return when it must be called again."""
        epoch = self.epoch
        try:
            self.result = work(self, held)
            self._session.dispatch.flush()
            self.is_done = True
        except Exception:
            if self.epoch != epoch and not self._follows:
                return  # a loop of clocks has told it to begin again
            if not self._follows:
                raise
            self.begins_again = True
        self._pause()

    @property
    def _follows(self) -> bool:
        """Whether the servers have rolled back, and the worker has not."""
        return self._state.network.master.epoch > self.epoch

    def resume(self) -> None:
        """Let the worker run to the end of its clock, to its next barrier or to its end."""
        self.is_at_end_of_clock = False
        self._session.ids.run = self._ids
        try:
            self._go.release()
            assert self._stopped.acquire(timeout=DEADLINE_S), f"worker {self.rank} hangs"
        finally:
            self._session.ids.run = None
        if self._error is not None:
            raise self._error

    def go_back(self, clock: int) -> None:
        """Go back to a clock with the servers."""
        self._resume, self._goes_back, self._reports, self._read = clock, True, [], 0
        self.is_done = False
        self._session.ids.run = self._ids
        self._session.resume(self._state.network.master.epoch)
        self._session.ids.run = None

    def take_reports(self) -> list[Report]:
        taken, self._reports = self._reports, []
        return taken

    def close(self) -> None:
        """End the thread."""
        while not self._aborted or not self.is_done:
            self._aborted = True
            self.resume()
        assert self._thread is not None
        self._thread.join()
        self._prefetches.close()

    def _pause(self) -> None:
        self._session.dispatch.flush()
        self._stopped.release()
        self._go.acquire()
        if self._aborted:
            raise _RunAborted

    # -- for programs --------------------------------------------------------------------------------------------------

    def clocks(self, n: int, budget_s: float = FOREVER) -> Iterator[int]:
        begin = self.clock
        if begin >= n:
            return
        if self._resume > n:  # an earlier attempt has finished this loop
            self.clock = n
            return
        self.clock = max(begin, self._resume)
        while self.clock < n and not self._state.is_over:
            self._visible = len(self._state.messages)
            phase = 2 * self.clock + 1
            self._ids.settled = phase
            self._ids.enter(phase)
            self._prefetches.enter(self.clock, self.clock, self.epoch)
            self._ends_s = time.monotonic() + budget_s
            yield self.clock
            self.is_at_end_of_clock = True
            self._pause()
            self.clock, goes_back, self._goes_back = self.clock + 1, self._goes_back, False
            if goes_back:
                self.clock = self._resume
                if not begin <= self.clock <= n:
                    raise RolledBack(f"to clock {self.clock}, which is not of this loop", self.clock)
        self._ids.enter(2 * self.clock)

    @property
    def epoch(self) -> int:
        return self._ids.epoch

    @property
    def goesBack(self) -> bool:
        return self._ids.seen > self._ids.epoch

    def rotate(
        self,
        blocks: int,
        rotations: int = 1,
        slices: int = 2,
        budgetS: float | None = None,
        fetch: Any = None,
        at: Any = None,
    ) -> Iterator[Turn]:
        self.barrier()
        turns = Rotations(self, RotationSchedule(self.workers, blocks, slices), self._state.seed, rotations, fetch, at)
        for clock in self.clocks(turns.clocks, budgetS or FOREVER):
            turn = turns.turn(clock)
            if turn is not None:
                yield turn

    @property
    def timeLeft(self) -> float:
        return self._ends_s - time.monotonic()

    def report(self, value: Any, merge: str = "sum") -> None:
        self._reports.append(report(self.clock, value, merge))

    def barrier(self) -> None:
        self._pause()
        self._prefetches.record_sync()

    def prefetch(self, source: Any, indices: Any = None, ahead: int = 1, columns: Any = None) -> Prefetch:
        return self._prefetches.begin(source, indices, ahead, columns)

    @property
    def message(self) -> Any:
        return self._state.messages[self._visible - 1] if self._visible else None

    @property
    def messages(self) -> list[Any]:
        begin, self._read = self._read, self._visible
        return self._state.messages[begin : self._visible]

    def rng(self, *key: int) -> np.random.Generator:
        sequence = np.random.SeedSequence(self._state.seed, spawn_key=(self.rank, self.clock, *key))
        return np.random.Generator(np.random.Philox(sequence))
