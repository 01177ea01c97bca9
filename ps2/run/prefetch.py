"""Background reads while the worker computes, for this clock or a later clock (``worker.prefetch``).

A read sees the updates that are applied when it is sent. The driver lets a worker enter clock t when all updates that a
pull in clock t must see are applied. With each clock the driver sends the horizon: the highest clock that the other
workers let this worker enter. So a read for a later clock is not sent before the horizon reaches that clock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ps2.client import plans
from ps2.client.async_writer import AsyncWriter
from ps2.client.matrix import DCVMatrix
from ps2.client.plans import Plan
from ps2.client.read_your_writes import ReadYourWrites
from ps2.data.plain_arrays import as_array
from ps2.errors import PS2Error, RolledBack, UsageError
from ps2.number_checks import is_whole
from ps2.rpc.run_control import RunControl

if TYPE_CHECKING:
    from ps2.client.dcv import DCV
    from ps2.client.dispatch import Results
    from ps2.client.session import Session

# The maximum number of one worker's concurrent reads. Each has its own thread.
MAX_READS = 16


@dataclass
class Freshness:
    """The state of a worker that determines which updates its reads see.

    Attributes:
        clock: the clock that the worker is in.
        horizon: the highest clock that the other workers let this worker enter.
        epoch: the number of the fleet's rollbacks to a checkpoint.
        syncs: the number of barriers and broadcasts that the worker has passed. Reads after such a point see the other
            workers' updates from before the point.
    """

    clock: int
    horizon: int
    epoch: int
    syncs: int = 0


class Prefetch:
    """A background read; ``worker.prefetch`` returns it."""

    def __init__(self, session: Session, view: Freshness, plan: Callable[[], Plan[Any]], clock: int) -> None:
        """``plan`` is a function that returns the plan of the read; ``clock`` is the clock whose data are needed."""
        self.clock = clock
        self._session = session
        self._view = view
        self._make_plan = plan
        self._plan = plan()
        self._sent: tuple[int, int] | None = None  # the epoch and the number of syncs when the read was sent
        self._reading: Future[None] | None = None
        self._starting = threading.Lock()  # the progress poller's thread may start the read at the same time
        self._is_closed = False
        self._outcome: tuple[Results, ReadYourWrites] | None = None
        self._error: Exception | None = None
        self._values: Any = None

    def result(self) -> Any:
        """Return what ``pull`` would return: the same array each time.

        Waits until the read has finished. Pulls again if the read is out of date: the worker has entered a later clock,
        has passed a barrier or ``once``, or has changed the same vector by an operation that is not ``add`` or ``sub``
        of an array; or the fleet has rolled back to a checkpoint.

        Raises:
            PS2Error: any error of ``pull``.
        """
        if self._values is None:
            with self._session.stopwatch.running("pull"):
                self._values = self._finish()
        return self._values

    def start(self, threads: Executor) -> None:
        """Send the read in a background thread, unless the caller already waits for the result."""
        with self._starting:
            if self._is_closed:
                return
            self._sent = self._view.epoch, self._view.syncs
            self._reading = threads.submit(self._read)

    @property
    def is_started(self) -> bool:
        return self._reading is not None

    @property
    def is_read(self) -> bool:
        """True if ``result`` has returned the values."""
        return self._values is not None

    def close(self) -> None:
        """Wait until the read has finished, and drop its values. A read that was not sent is never sent."""
        with self._starting:
            self._is_closed = True
        if self._reading is not None:
            self._reading.result()
        if self._outcome is not None:
            self._session.async_writer.forget(self._outcome[1])
            self._outcome = None

    def _finish(self) -> Any:
        with self._starting:
            self._is_closed = True
        if self._reading is not None:
            self._reading.result()
        outcome, error = self._outcome, self._error
        self.close()
        is_current = self._view.clock <= self.clock and self._sent == (self._view.epoch, self._view.syncs)
        if error is not None and is_current and not isinstance(error, RolledBack):
            raise error
        if outcome is not None and is_current and not outcome[1].is_invalid:
            outcome[1].add_missing()
            return self._plan.merge(outcome[0])  # type: ignore[arg-type]
        return self._session.dispatch.run([self._make_plan()])[0]

    def _read(self) -> None:
        try:
            with self._session.async_writer.transfers:
                self._outcome = self._session.dispatch.read([self._plan])
        except Exception as error:  # ``result`` raises it
            self._error = error


class Prefetches:
    """The background reads of one worker. Other threads may call only ``allow``."""

    def __init__(self, session: Session, view: Freshness) -> None:
        self.view = view
        self._session = session
        self._open: list[Prefetch] = []
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(MAX_READS, "ps2-prefetch")

    def begin(self, source: DCV | DCVMatrix, indices: Any, ahead: int, columns: Any = None) -> Prefetch:
        """Start a read for the clock that is ``ahead`` clocks later, as soon as the other workers allow it."""
        if not is_whole(ahead) or ahead < 0:
            raise UsageError(f"prefetch: ahead: expected 0 (this clock), 1 (the next one) or more, got {ahead!r}")
        if not hasattr(source, "_session"):
            raise UsageError(f"prefetch: expected a DCV or a DCVMatrix, got {source!r}")
        if source._session is not self._session:
            raise UsageError(f"prefetch: {source!r} belongs to another context than this run")
        # Copied, because the caller may change the arrays.
        indices, columns = (
            None if values is None else as_array(name, values).copy()
            for name, values in (("indices", indices), ("columns", columns))
        )
        plan = partial(_pull, source, indices, columns)
        prefetch = Prefetch(self._session, self.view, plan, self.view.clock + int(ahead))
        with self._lock:
            self._open.append(prefetch)
            self._start()
        return prefetch

    def enter(self, clock: int, horizon: int, epoch: int) -> None:
        """Record that the worker enters a clock: start the reads for the clock, and drop those for earlier clocks."""
        with self._lock:
            self.view.clock, self.view.horizon, self.view.epoch = clock, horizon, epoch
            for outdated in [prefetch for prefetch in self._open if prefetch.clock < clock]:
                self._open.remove(outdated)
                outdated.close()
            self._start()

    def allow(self, horizon: int, epoch: int) -> None:
        """Record a later horizon, and start the reads that waited for it."""
        with self._lock:
            if epoch == self.view.epoch and horizon > self.view.horizon:
                self.view.horizon = horizon
                self._start()

    def restart(self, view: Freshness) -> None:
        """Drop all reads, because the worker restarts its work after a rollback."""
        with self._lock:
            self._drop_all()
            self.view = view

    def record_sync(self) -> None:
        """Record that the worker has passed a barrier or a broadcast."""
        self.view.syncs += 1

    def close(self) -> None:
        """Wait for all reads."""
        with self._lock:
            self._drop_all()
        self._threads.shutdown()

    def _drop_all(self) -> None:
        for prefetch in self._open:
            prefetch.close()
        self._open.clear()

    def _start(self) -> None:
        self._open = [prefetch for prefetch in self._open if not prefetch.is_read]
        for prefetch in self._open:
            if not prefetch.is_started and prefetch.clock <= self.view.horizon:
                prefetch.start(self._threads)


def _pull(source: DCV | DCVMatrix, indices: Any, columns: Any) -> Plan[Any]:
    """Return the plan of ``source.pull(indices)``; for a matrix the indices are rows."""
    if isinstance(source, DCVMatrix):
        return source._pull(indices, columns)
    if columns is not None:
        raise UsageError(f"prefetch: columns: expected a matrix, got {source!r}")
    target = source._target()
    if indices is not None:
        return plans.pull_columns(target, indices)
    if source.isSparse:
        raise UsageError("prefetch: expected indices, as the size of a sparse vector is not known before the read")
    return plans.pull(target, 0, target.spec.dim)


# The interval in which a poller's thread checks whether its clock has ended.
CHECK_S = 0.1


class ProgressPoller:
    """Polls the progress of the other workers, and reports that of this worker, while the worker computes.

    When a worker arrives at a clock, both happen anyway. But then a prefetch for that clock comes too late if additions
    are in flight (docs/decisions/0019). Each clock has a thread, which ends with the clock at the latest.
    """

    def __init__(self, control: RunControl, async_writer: AsyncWriter, prefetches: Prefetches) -> None:
        self._control = control
        self._async_writer = async_writer
        self._prefetches = prefetches
        self._clock = -1
        self._threads: list[threading.Thread] = []

    def enter(self, clock: int, epoch: int) -> None:
        """Start to poll whether other workers let this worker enter the clock after ``clock``."""
        self._clock = clock
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=self._poll, args=(clock, epoch), name="ps2-progress", daemon=True)
        self._threads.append(thread)
        thread.start()

    def leave(self) -> None:
        self._clock = -1

    def close(self) -> None:
        """Wait until polling has ended. The run's server answers polls of a leaving worker at once."""
        self.leave()
        for thread in self._threads:
            thread.join()

    def _poll(self, clock: int, epoch: int) -> None:
        is_settled = None  # None: updates of earlier clocks are in flight; False: an update failed
        while is_settled is None and self._clock == clock:
            is_settled = self._async_writer.has_settled_below(clock, CHECK_S)
        if is_settled is False:
            return  # the worker gets the error when its clock ends
        try:
            while self._clock == clock:
                progress = self._control.poll_progress(clock, clock + 1, epoch)
                if progress.epoch != epoch:
                    return
                self._prefetches.allow(progress.horizon, epoch)
                if progress.horizon > clock:
                    return
        except PS2Error:
            return  # the worker's own connection reports the error
