"""Retries of transient errors, and the fleet's rollbacks to a checkpoint that this process knows of."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ps2.client.task import MutationIds, task_epoch
from ps2.config import RetryConfig
from ps2.errors import RolledBack, TransientError, UnavailableError, UnreachableError
from ps2.interrupts import sleep


class RetryPolicy:
    """Pauses between the attempts of one call, and decides when the call fails."""

    def __init__(self, retry: RetryConfig) -> None:
        self._retry = retry
        self._pause_s = retry.first_pause_s
        self._failing_since_s: float | None = None
        self._stalled_since_s = 0.0  # time of the last progress, or of the first failure if there was none
        self._master_error: TransientError | None = None

    def wait(self, error: TransientError) -> None:
        """Pause before the next attempt; raise the error if the time limit has passed."""
        now_s = time.monotonic()
        if self._failing_since_s is None:
            self._failing_since_s = self._stalled_since_s = now_s
        failing_s, stalled_s = now_s - self._failing_since_s, now_s + self._pause_s - self._stalled_since_s
        unreachable = self._master_error if isinstance(self._master_error, UnreachableError) else None
        total_s = self._retry.total_s
        if unreachable is not None:
            total_s = min(total_s, self._retry.first_contact_s)
        if isinstance(error, UnreachableError) and self._master_error is None:
            total_s = min(total_s, self._retry.unreached_s)
        if failing_s > self._retry.recovery_s or stalled_s > total_s:
            if self._master_error is None:
                raise error
            if unreachable is not None:
                raise unreachable from error
            raise UnavailableError(f"{error}; the master does not answer either: {self._master_error}") from error
        sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, self._retry.longest_pause_s)

    def record_progress(self) -> None:
        """Restart the time limit, because servers made progress or are being recovered."""
        self._stalled_since_s = time.monotonic()

    def record_master_error(self, error: TransientError | None) -> None:
        """Record the error of the last call to the master; None: the master answered.

        Raises the error if the master was unreachable and the time limit for a first contact has passed.
        """
        self._master_error = error
        stalled_s = 0.0 if self._failing_since_s is None else time.monotonic() - self._stalled_since_s
        if isinstance(error, UnreachableError) and stalled_s > self._retry.first_contact_s:
            raise error


@dataclass(eq=False)
class ThreadEpoch:
    """The rollbacks that one thread of the driver has handled.

    Attributes:
        epoch: the epoch of the last rollback that the thread has handled.
        has_run: True once the thread has begun a run. From then on, another thread cannot handle its rollbacks.
    """

    epoch: int
    has_run: bool = False


class _ThisThread(threading.local):
    own: ThreadEpoch | None = None


@dataclass(eq=False)
class RollbackTracker:
    """The fleet's rollbacks to a checkpoint that one session knows of.

    In the driver, each rollback raises RolledBack once: in each thread that has begun a run, and in one of the others.
    In a task, every call raises RolledBack, because the task may belong to a stage before the rollback. In ``ps.run``,
    the run tells its workers to resume at an earlier clock; until then their changes are discarded
    (``discard_changes``).

    Attributes:
        on_rollback: called in the driver with epoch and step, before RolledBack is raised.
        newest: the newest epoch (number of rollbacks) known to this process, and the step of its checkpoint.
    """

    ids: MutationIds
    on_rollback: Callable[[int, int | None], None]
    newest: tuple[int, int | None] = (0, None)
    _shared_epoch: int = 0  # the epoch of the last rollback that any thread of the driver has handled
    _thread: _ThisThread = field(default_factory=_ThisThread)

    @property
    def epoch(self) -> int:
        """The epoch of the last rollback that the calling thread of the driver has handled."""
        own = self._thread.own
        return own.epoch if own is not None and own.has_run else self._shared_epoch

    @property
    def origin(self) -> ThreadEpoch | None:
        """The state of the calling thread, for ``acting_for``."""
        own = self._thread.own
        return own if own is not None and own.has_run else None

    @contextmanager
    def acting_for(self, origin: ThreadEpoch | None) -> Iterator[None]:
        """Within the with-block, treat the calling thread as the thread of ``origin``."""
        before, self._thread.own = self._thread.own, origin
        try:
            yield
        finally:
            self._thread.own = before

    def remember_thread(self, begins_run: bool = False) -> None:
        """Record that the calling thread has made vectors or, with ``begins_run``, begins a run in the driver."""
        own = self._thread.own
        if own is None:
            own = self._thread.own = ThreadEpoch(self._shared_epoch)
        own.has_run |= begins_run

    def catch_up(self) -> None:
        """Count the rollbacks that other threads have handled as handled by the calling thread, too."""
        if (own := self._thread.own) is not None:
            own.epoch = max(own.epoch, self._shared_epoch)

    def acknowledge(self, epoch: int, step: int | None) -> None:
        """Record that the calling thread of the driver has handled the rollbacks up to an epoch."""
        self.record(epoch, step)
        if epoch > self.epoch:
            if (own := self._thread.own) is not None:
                own.epoch = max(own.epoch, epoch)
            self._shared_epoch = max(self._shared_epoch, epoch)
            self.on_rollback(epoch, self.newest[1] if self.newest[0] == epoch else step)

    def record(self, epoch: int, step: int | None) -> None:
        """Record that the fleet has rolled back ``epoch`` times, the last time to the checkpoint of ``step``."""
        self.newest = max(self.newest, (epoch, step), key=lambda pair: pair[0])

    def check(self) -> None:
        """Raise RolledBack if the fleet rolled back and the caller has not been told. No effect in ``ps.run``."""
        epoch, step = self.newest
        if self.ids.run is not None or not epoch:
            return
        epoch_of_task = task_epoch()
        if epoch <= (self.epoch if epoch_of_task is None else epoch_of_task):
            return
        if epoch_of_task is None:
            self.acknowledge(epoch, step)
        raise self.rolled_back()

    def is_current(self, changes: bool) -> bool:
        """Return True if no rollback prevents the caller from reading or, with ``changes``, from writing."""
        epoch, run = self.newest[0], self.ids.run
        if run is not None:
            return epoch <= run.seen and not (changes and run.seen > run.epoch)
        if epoch == 0:
            return True
        epoch_of_task = task_epoch()
        return epoch <= (self.epoch if epoch_of_task is None else epoch_of_task)

    def check_run(self, changes: bool) -> None:
        """Raise RolledBack if a worker must handle a rollback before it reads or, with ``changes``, writes."""
        run = self.ids.run
        if run is None:
            self.check()
        elif self.newest[0] > (run.epoch if changes else run.seen):
            raise self.rolled_back()

    @property
    def discards_changes(self) -> bool:
        """True if a worker is in a clock that will be repeated, so its changes are discarded."""
        run = self.ids.run
        return run is not None and run.seen > run.epoch

    def discard_changes(self) -> bool:
        """Let a worker continue in a clock that will be repeated. Return False outside ``ps.run``."""
        run = self.ids.run
        if run is not None:
            run.seen = self.newest[0]
        return run is not None

    def rolled_back(self) -> RolledBack:
        step = self.newest[1]
        return RolledBack(f"the fleet rolled back to a checkpoint; continue from step {step}", step)
