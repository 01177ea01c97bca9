"""Sends additions in the background, while the caller continues (``add(..., wait=False)``)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

from ps2.client.plans import Plan
from ps2.client.read_your_writes import ReadYourWrites
from ps2.client.stopwatch import BusyTime
from ps2.errors import PS2Error
from ps2.interrupts import join, wait_for
from ps2.protocol.messages import RequestId

# Limits of the unanswered mutations. A caller that would exceed them waits.
WINDOW_BYTES = 64 << 20
WINDOW_PLANS = 64
# With fewer queued bytes, a read is faster if it waits until the queue is empty than if it adds queued values itself.
BACKED_UP_BYTES = 4 << 20
# The thread waits this long for the next mutation: starting a thread costs as much as sending a small addition.
IDLE_S = 1.0

Mutation = tuple["Plan[Any]", RequestId]

_OVERWRITING = ("push", "rows_push", "columns_push")


@dataclass(frozen=True, eq=False, slots=True)
class QueuedUpdate:
    """A mutation in the queue."""

    plan: Plan[Any]
    id: RequestId
    clock: int = 0  # the worker's clock when the mutation was queued; 0 outside ``ps.run``
    nbytes: int = 0  # the size of the mutation's arrays
    origin: object = None  # the thread that has queued the mutation, if threads are told apart


class Origins(Protocol):
    """Tells the threads apart that queue mutations: each gets its own errors. None: no thread of its own."""

    @property
    def origin(self) -> Any: ...
    def acting_for(self, origin: Any, /) -> AbstractContextManager[None]:
        """Within the with-block, treat the calling thread as the thread of ``origin``."""


class OneOrigin:
    """All threads are one."""

    origin = None

    def acting_for(self, origin: None, /) -> AbstractContextManager[None]:
        return nullcontext()


ONE_ORIGIN = OneOrigin()


def sendable(waiting: Sequence[QueuedUpdate]) -> list[QueuedUpdate]:
    """Return the mutations that may be sent now.

    A mutation that overwrites values of a matrix is sent after all earlier mutations of this matrix, and before all
    later ones.
    """
    updates: list[QueuedUpdate] = []
    overwritten: dict[int, bool] = {}
    for update in waiting:
        matrices = update.plan.matrices
        overwrites = any(operation.name in _OVERWRITING for operation in update.plan.operations)
        if not any(matrix in overwritten and (overwrites or overwritten[matrix]) for matrix in matrices):
            updates.append(update)
        overwritten.update({matrix: overwrites or overwritten.get(matrix, False) for matrix in matrices})
    return updates


class AsyncWriter:
    """Queues mutations and sends them from a thread, which ends after ``IDLE_S`` with an empty queue. Thread-safe.

    Attributes:
        is_idle: True if all mutations are answered, all errors are reported, and no read collects queued additions.
        transfers: measures the time in which the thread sends mutations and waits for the answers.
    """

    def __init__(self, send: Callable[[Sequence[Mutation]], list[PS2Error]], origins: Origins = ONE_ORIGIN) -> None:
        """``send`` sends mutations of one origin, and returns the errors of those that failed."""
        self.is_idle = True
        self.transfers = BusyTime()
        self._send = send
        self._origins = origins
        self._changed = threading.Condition()
        self._waiting: list[QueuedUpdate] = []
        self._in_flight: list[QueuedUpdate] = []
        self._bytes = 0
        self._errors: dict[object, Exception] = {}  # by origin, the first error that its caller has not received
        self._thread: threading.Thread | None = None
        self._lingers = False  # with an empty queue, the thread still waits for further mutations
        self._reads: list[ReadYourWrites] = []  # reads in flight; mutations of the values that they read wait
        self._collectors: list[ReadYourWrites] = []  # reads that still collect missing additions

    @property
    def is_backed_up(self) -> bool:
        """True if the queue is so long that a read should not wait for its end."""
        with self._changed:
            return sum(update.nbytes for update in self._waiting) >= BACKED_UP_BYTES

    def put(self, plan: Plan[Any], new_id: Callable[[], RequestId], clock: int = 0) -> None:
        """Queue a mutation; wait while the window is full. The caller must not change its arrays afterwards.

        ``new_id`` is called only when the window has space. If it were called earlier and the caller then stopped
        waiting, the server would wait forever for a mutation with this id.
        """
        nbytes = sum(operation.nbytes for operation in plan.operations)
        with self._changed:
            wait_for(self._changed, lambda: self._fits_window(nbytes))
            self._waiting.append(QueuedUpdate(plan, new_id(), clock, nbytes, self._origins.origin))
            self._update_idle()
            self._bytes += nbytes
            for collector in self._collectors:
                collector.add_missing_write(plan)
            self._lingers = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ps2-async_writer", daemon=True)
                self._thread.start()
            else:
                self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all mutations are answered; raise the first error that no caller has received."""
        with self._changed:
            wait_for(self._changed, self._is_empty)
            self._raise_errors()

    def drain(self) -> None:
        """Wait until all mutations are answered."""
        with self._changed:
            wait_for(self._changed, self._is_empty)

    def flush_below(self, clock: int) -> int | None:
        """Wait until all mutations of clocks below ``clock`` are answered; raise the first error, of any clock.

        Returns the first clock with an unanswered mutation; None if all are answered.
        """
        with self._changed:
            wait_for(self._changed, lambda: all(update.clock >= clock for update in self._unanswered()))
            self._raise_errors()
            return min((update.clock for update in self._unanswered()), default=None)

    def has_settled_below(self, clock: int, timeout_s: float) -> bool | None:
        """Wait at most ``timeout_s`` until all mutations of clocks below ``clock`` are answered.

        Returns False if a mutation has failed, None if some of these mutations are still unanswered.
        """
        with self._changed:
            is_settled = wait_for(
                self._changed, lambda: all(update.clock >= clock for update in self._unanswered()), timeout_s
            )
            return not self._errors if is_settled else None

    def discard(self) -> None:
        """Drop unsent mutations and errors; wait until sent mutations are answered and the thread has ended."""
        with self._changed:
            self._bytes -= sum(update.nbytes for update in self._waiting)
            self._waiting.clear()
            self._lingers = False
            self._changed.notify_all()
            wait_for(self._changed, self._is_empty)
            self._errors.clear()
            self._update_idle()
            thread = self._thread
        if thread is not None:
            join(thread)

    @contextmanager
    def hold_back(self, plans: Sequence[Plan[Any]]) -> Iterator[ReadYourWrites]:
        """Do not send mutations that change the values that ``plans`` read; yield a collector of these mutations.

        The collector receives them until ``forget`` is called. Mutations of other values are sent during the read: in a
        model rotation, for example, a worker sends its last block while it receives the next block.
        """
        read = ReadYourWrites(plans)
        try:
            with self._changed:
                self._reads.append(read)
                wait_for(self._changed, lambda: not any(read.touches(update.plan) for update in self._in_flight))
                for update in self._waiting:
                    read.add_missing_write(update.plan)
                self._collectors.append(read)
                self._update_idle()
            yield read
        finally:
            with self._changed:
                self._reads.remove(read)
                self._changed.notify_all()

    def forget(self, collector: ReadYourWrites) -> None:
        """End the collection of the additions that the answers of a read lack."""
        with self._changed:
            if collector in self._collectors:
                self._collectors.remove(collector)
                self._update_idle()

    def record_direct_writes(self, plans: Sequence[Plan[Any]]) -> None:
        """Record that this process has sent changes without this writer."""
        with self._changed:
            for collector in self._collectors:
                for plan in plans:
                    collector.add_possibly_missing_write(plan)

    def check(self) -> None:
        """Raise the first error that no caller has received."""
        with self._changed:
            self._raise_errors()

    def _run(self) -> None:
        while updates := self._next_updates():
            errors: list[tuple[object, Exception]] = []
            for _, same_origin in groupby(updates, lambda update: id(update.origin)):
                group = list(same_origin)
                errors += [(group[0].origin, error) for error in self._send_group(group)]
            with self._changed:
                for origin, error in errors:
                    self._errors.setdefault(origin, error)
                self._in_flight = []
                self._update_idle()
                self._bytes -= sum(update.nbytes for update in updates)
                self._changed.notify_all()

    def _send_group(self, updates: Sequence[QueuedUpdate]) -> Sequence[Exception]:
        """Send mutations of one origin; return the errors of those that failed."""
        try:
            with self.transfers, self._origins.acting_for(updates[0].origin):
                return self._send([(update.plan, update.id) for update in updates])
        except Exception as error:  # a bug: this thread has no caller, so the next call raises the error
            return [error]

    def _next_updates(self) -> list[QueuedUpdate]:
        """Wait for mutations that may be sent, and return them; an empty list after ``IDLE_S`` ends the thread."""
        with self._changed:
            while self._changed.wait_for(lambda: self._waiting or not self._lingers, IDLE_S) and self._waiting:
                updates = [
                    update
                    for update in sendable(self._waiting)
                    if not any(read.touches(update.plan) for read in self._reads)
                ]
                if not updates:
                    self._changed.wait()
                    continue
                sent = set(updates)
                self._waiting = [update for update in self._waiting if update not in sent]
                self._in_flight = updates
                return updates
            self._thread = None
            return []

    def _unanswered(self) -> list[QueuedUpdate]:
        return self._waiting + self._in_flight

    def _update_idle(self) -> None:
        self.is_idle = not (self._waiting or self._in_flight or self._collectors or self._errors)

    def _is_empty(self) -> bool:
        return not self._waiting and not self._in_flight

    def _fits_window(self, nbytes: int) -> bool:
        count = len(self._unanswered())
        return not count or (count < WINDOW_PLANS and self._bytes + nbytes <= WINDOW_BYTES)

    def _raise_errors(self) -> None:
        error = self._errors.pop(self._origins.origin, None)
        self._update_idle()
        if error is not None:
            raise error
