"""Additions that travel while the caller goes on (``add(..., wait=False)``)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ps2.client.plans import Plan
from ps2.errors import PS2Error
from ps2.wire.messages import RequestId

# What may be under way at once: the caller waits when there is more.
WINDOW_BYTES = 64 << 20
WINDOW_PLANS = 64

Mutation = tuple["Plan[Any]", RequestId]


class Outbox:
    """Sends mutations in order, by a thread that lives as long as there are any. Safe for threads."""

    def __init__(self, send: Callable[[Sequence[Mutation]], list[PS2Error]]) -> None:
        """``send`` sends mutations, and returns the errors of those that failed."""
        self._send = send
        self._changed = threading.Condition()
        self._waiting: deque[Mutation] = deque()
        self._bytes = 0
        self._count = 0
        self._errors: list[Exception] = []
        self._running = False

    def put(self, plan: Plan[Any], id: RequestId) -> None:
        """Send a mutation soon; wait while the window is full. Its arrays must not change any more."""
        size = _size(plan)
        with self._changed:
            self._changed.wait_for(
                lambda: not self._count or (self._count < WINDOW_PLANS and self._bytes + size <= WINDOW_BYTES)
            )
            self._waiting.append((plan, id))
            self._count += 1
            self._bytes += size
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="ps2-outbox", daemon=True).start()

    def flush(self) -> None:
        """Wait until everything has been answered; raise the first error, if there was one since the last time."""
        self.drain()
        with self._changed:
            errors, self._errors = self._errors, []
        if errors:
            raise errors[0]

    def drain(self) -> None:
        """Wait until everything has been answered."""
        with self._changed:
            self._changed.wait_for(lambda: not self._count)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._running = False
                    return
                taken = list(self._waiting)
                self._waiting.clear()
            errors: list[Exception]
            try:
                errors = list(self._send(taken))
            except Exception as error:  # a bug: for whoever waits, as this thread has nobody to tell
                errors = [error]
            with self._changed:
                self._errors += errors
                self._count -= len(taken)
                self._bytes -= sum(_size(plan) for plan, _ in taken)
                self._changed.notify_all()


def _size(plan: Plan[Any]) -> int:
    return sum(operation.nbytes for operation in plan.operations)
