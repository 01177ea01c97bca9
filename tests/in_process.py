"""Trainings without Spark: rows are arrays, and servers and workers live in the test's process.

``training_context`` takes the place of a ``PS2Context``, and ``ArrayTable`` that of a table of a DataFrame::

    with training_context(servers=2) as ps:
        model = train(ps, ArrayTable.of(x, y, workers=2), problem, options, facts)

Engines, wire forms of arrays, ids of mutations, reports and messages are the product's. Workers take turns, clock by
clock: a run with any staleness runs as under BSP.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

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
from ps2.coordinator.in_process import MASTER, InProcessServers
from ps2.protocol.plain_data import decode
from ps2.rpc.control import ServerControl
from ps2.rpc.run_control import Report
from ps2.rpc.server_status import ServerStatus
from ps2.run.message import STOP, Message
from ps2.run.prefetch import Freshness, Prefetch, Prefetches
from ps2.run.reports import merged, report
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
    """

    batch = staticmethod(batch)

    def __init__(self, network: InProcessServers, session: Session) -> None:
        self.reports: list[list[list[Any]]] = []
        self._network, self._session = network, session

    def statuses(self) -> list[ServerStatus]:
        """What each server tells of itself."""
        control = ServerControl(self._network)
        return [control.status(address) for address in self.servers]

    @property
    def servers(self) -> list[str]:
        return list(self._network.engines)

    def memory(self) -> list[tuple[int, int]]:
        return [(engine.memory.limit_bytes, engine.memory.taken_bytes) for engine in self._network.engines.values()]

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
        state = _RunState(self._session, len(self.reports), firstClock, seed, len(data))
        self.reports.append([])
        team = [Worker(state, rank) for rank in range(len(data))]
        for worker, rows in zip(team, data, strict=True):
            worker.start(lambda worker=worker, rows=rows: worker_fn(worker, read(worker, iter(rows))))
        try:
            while active := [worker for worker in team if not worker.is_done]:
                for worker in active:
                    worker.resume()
                if ended := [worker for worker in active if worker.is_at_end_of_clock]:
                    clock = ended[0].clock
                    given = merged(clock, {worker.rank: worker.take_reports() for worker in ended})
                    self.reports[-1].append(given)
                    state.take(onClock(clock, given))
            onEnd()
        finally:
            for worker in team:
                worker.close()
        return [worker.result for worker in team]


@contextmanager
def training_context(servers: int = 2, memory_limit_bytes: int = 1 << 30) -> Iterator[TrainingContext]:
    """Start servers in this process, and yield a context for trainings on them.

    Args:
        memory_limit_bytes: of each server.
    """
    network = InProcessServers(servers, memory_limit_bytes, allow_udf=True)
    session = Session(FleetRef(f"in-process-{uuid.uuid4().hex[:12]}", MASTER), network)
    install(session)
    try:
        yield TrainingContext(network, session)
    finally:
        uninstall(session.fleet.id)


@dataclass
class _RunState:
    """What the driver tells its workers."""

    session: Session
    number: int
    first: int
    seed: int
    workers: int
    messages: list[Any] = field(default_factory=list)
    is_over: bool = False

    def take(self, returned: object) -> None:
        if isinstance(returned, Message):
            self.messages.append(decode(returned.encoded))
        self.is_over = self.is_over or returned is STOP


class _RunAborted(BaseException):
    """Ends the thread of a worker whose run has failed."""


class Worker:
    """A ``ps2.Worker`` whose thread runs only while the driver waits for it."""

    epoch, goesBack = 0, False

    def __init__(self, state: _RunState, rank: int) -> None:
        self.rank, self.workers, self.clock = rank, state.workers, state.first
        self.is_done = self.is_at_end_of_clock = False
        self.result: Any = None
        self._state, self._session = state, state.session
        self._ids = RunIds(f"{state.session.fleet.id}/runs", state.number, rank)
        self._reports: list[Report] = []
        self._read = 0  # messages that ``messages`` has returned
        self._visible = 0  # messages that were there when the clock was entered
        self._prefetches = Prefetches(self._session, Freshness(self.clock, self.clock, 0))
        self._go, self._stopped, self._aborted = threading.Semaphore(0), threading.Semaphore(0), False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    # -- for the driver ------------------------------------------------------------------------------------------------

    def start(self, work: Callable[[], Any]) -> None:
        def target() -> None:
            self._go.acquire()
            try:
                if not self._aborted:
                    self.result = work()
                    self._session.dispatch.flush()
            except _RunAborted:
                pass
            except BaseException as error:  # the driver raises it
                self._error = error
            self.is_done = True
            self._stopped.release()

        self._thread = threading.Thread(target=target, daemon=True)
        self._thread.start()

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

    def take_reports(self) -> list[Report]:
        taken, self._reports = self._reports, []
        return taken

    def close(self) -> None:
        """End the thread."""
        self._aborted = True
        while not self.is_done:
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
        while self.clock < n and not self._state.is_over:
            self._visible = len(self._state.messages)
            phase = 2 * self.clock + 1
            self._ids.settled = phase
            self._ids.enter(phase)
            self._prefetches.enter(self.clock, self.clock, 0)
            self._ends_s = time.monotonic() + budget_s
            yield self.clock
            self.is_at_end_of_clock = True
            self._pause()
            self.clock += 1

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
        self._prefetches.note_sync()

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
