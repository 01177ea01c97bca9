"""Additions that travel while the caller goes on (``add(..., wait=False)``)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ps2.client.plans import Plan
from ps2.client.queued_updates import QueuedUpdate, held_bytes, in_turn
from ps2.client.read_your_writes import ReadYourWrites
from ps2.client.stopwatch import BusyTime
from ps2.errors import PS2Error
from ps2.interrupts import join, wait_for
from ps2.protocol.messages import RequestId

# What may be under way at once: the caller waits when there is more.
WINDOW_BYTES = 64 << 20
WINDOW_PLANS = 64
# With less waiting, a read is quicker if it lets it leave first.
BACKED_UP_BYTES = 4 << 20
# How long the thread waits for more: to start one costs as much as to send a small addition.
IDLE_S = 1.0

Mutation = tuple["Plan[Any]", RequestId]


class AsyncWriter:
    """Sends mutations by a thread that lives while there are any, and a little longer: all that wait and may leave.

    Safe for threads.

    Attributes:
        is_idle: nothing is under way, was lost, or is read meanwhile, as far as the calling thread is concerned.
        transfers: when mutations travel, or anything else in the background.
    """

    def __init__(self, send: Callable[[Sequence[Mutation]], list[PS2Error]]) -> None:
        """``send`` sends mutations, and returns the errors of those that failed."""
        self.is_idle = True
        self.transfers = BusyTime()
        self._send = send
        self._changed = threading.Condition()
        self._waiting: list[QueuedUpdate] = []
        self._flying: list[QueuedUpdate] = []
        self._bytes = 0
        self._error: Exception | None = None  # the first one that nobody has been told
        self._thread: threading.Thread | None = None
        self._lingers = False
        self._sending: list[ReadYourWrites] = []  # reads under way
        self._readings: list[ReadYourWrites] = []

    @property
    def is_backed_up(self) -> bool:
        """Whether a read should not wait until everything has been answered."""
        with self._changed:
            return sum(update.held_bytes for update in self._waiting) >= BACKED_UP_BYTES

    def put(self, plan: Plan[Any], name: Callable[[], RequestId], clock: int = 0) -> None:
        """Send a mutation soon; wait while the window is full. Its arrays must not change any more.

        Args:
            name: gives it its id, once there is room: nobody would answer for that of a caller who waits no longer.
        """
        size = held_bytes(plan)
        with self._changed:
            wait_for(self._changed, lambda: self._has_room(size))
            update = QueuedUpdate(plan, name(), clock, size)
            self._waiting.append(update)
            self._note_state()
            self._bytes += update.held_bytes
            for reading in self._readings:
                reading.lacks(plan)
            self._lingers = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ps2-async_writer", daemon=True)
                self._thread.start()
            else:
                self._changed.notify_all()

    def flush(self) -> None:
        """Wait until everything has been answered; raise the first error, if there was one since the last time."""
        with self._changed:
            wait_for(self._changed, self._is_empty)
            self._raise_errors()

    def drain(self) -> None:
        """Wait until everything has been answered."""
        with self._changed:
            wait_for(self._changed, self._is_empty)

    def flush_below(self, below: int) -> int | None:
        """Wait until what was made in the clocks below has been answered; raise the first error, of any clock.

        Returns:
            The first clock of which something has not been answered yet; None if all has.
        """
        with self._changed:
            wait_for(self._changed, lambda: all(update.clock >= below for update in self._open()))
            self._raise_errors()
            return min((update.clock for update in self._open()), default=None)

    def has_settled_below(self, below: int, timeout_s: float) -> bool | None:
        """Wait a while until what was made in the clocks below has been answered.

        Returns:
            Whether nothing has failed; None if some has not been answered yet.
        """
        with self._changed:
            if wait_for(self._changed, lambda: all(update.clock >= below for update in self._open()), timeout_s):
                return self._error is None
            return None

    def discard(self) -> None:
        """Forget what has not been sent, and what failed; wait for answers to the rest, and until no thread is left."""
        with self._changed:
            self._bytes -= sum(update.held_bytes for update in self._waiting)
            self._waiting.clear()
            self._lingers = False
            self._changed.notify_all()
            wait_for(self._changed, self._is_empty)
            self._error = None
            self._note_state()
            thread = self._thread
        if thread is not None:
            join(thread)

    @contextmanager
    def held(self, plans: Sequence[Plan[Any]]) -> Iterator[ReadYourWrites]:
        """Send nothing meanwhile that changes what is read; yield what collects, until ``forget``, what a read sent now
        lacks.

        Anything else may travel at the same time: in a rotation, the block that a worker has left travels to the
        servers while its next one comes from there, and links carry both ways at once.
        """
        reading = ReadYourWrites(plans)
        try:
            with self._changed:
                self._sending.append(reading)
                wait_for(self._changed, lambda: not any(reading.touches(update.plan) for update in self._flying))
                for update in self._waiting:
                    reading.lacks(update.plan)
                self._readings.append(reading)
                self._note_state()
            yield reading
        finally:
            with self._changed:
                self._sending.remove(reading)
                self._changed.notify_all()

    def forget(self, reading: ReadYourWrites) -> None:
        """Collect no more what a read lacks."""
        with self._changed:
            if reading in self._readings:
                self._readings.remove(reading)
                self._note_state()

    def note_written(self, plans: Sequence[Plan[Any]]) -> None:
        """Note that somebody else of this process has changed data."""
        with self._changed:
            for reading in self._readings:
                for plan in plans:
                    reading.may_lack(plan)

    def check(self) -> None:
        """Raise the first error, if there was one since the last time."""
        with self._changed:
            self._raise_errors()

    def _run(self) -> None:
        while taken := self._take():
            errors: list[Exception]
            try:
                with self.transfers:
                    errors = list(self._send([(update.plan, update.id) for update in taken]))
            except Exception as error:  # a bug: for whoever waits, as this thread has nobody to tell
                errors = [error]
            with self._changed:
                self._error = self._error or next(iter(errors), None)
                self._flying = []
                self._note_state()
                self._bytes -= sum(update.held_bytes for update in taken)
                self._changed.notify_all()

    def _take(self) -> list[QueuedUpdate]:
        """Return what leaves next, when it may; nothing if nothing has waited for a while: then the thread ends."""
        with self._changed:
            while self._changed.wait_for(lambda: self._waiting or not self._lingers, IDLE_S) and self._waiting:
                taken = [
                    update
                    for update in in_turn(self._waiting)
                    if not any(reading.touches(update.plan) for reading in self._sending)
                ]
                if not taken:
                    self._changed.wait()
                    continue
                gone = set(taken)
                self._waiting = [update for update in self._waiting if update not in gone]
                self._flying = taken
                return taken
            self._thread = None
            return []

    def _open(self) -> list[QueuedUpdate]:
        return self._waiting + self._flying

    def _note_state(self) -> None:
        self.is_idle = not (self._waiting or self._flying or self._readings or self._error)

    def _is_empty(self) -> bool:
        return not self._waiting and not self._flying

    def _has_room(self, size: int) -> bool:
        if self._is_empty():
            return True
        count = len(self._waiting) + len(self._flying)
        return count < WINDOW_PLANS and self._bytes + size <= WINDOW_BYTES

    def _raise_errors(self) -> None:
        error, self._error = self._error, None
        self._note_state()
        if error is not None:
            raise error
