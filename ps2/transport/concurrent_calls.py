"""Calls a function for many items concurrently, for example for all servers."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Generic, TypeVar

from ps2.errors import TransientError
from ps2.interrupts import SHIELD, check

# Maximum number of concurrent calls; further calls wait.
MAX_CALLS = 32
# Interval at which a waiting thread checks for interrupts and calls ``while_waiting``.
POLL_S = 0.02

T = TypeVar("T")
U = TypeVar("U")


class ConcurrentCalls(Generic[T]):
    """Calls one function for several items concurrently, in threads; ``results`` waits for the calls.

    ``ThreadPoolExecutor`` is not suitable: it accepts no work after the main thread has ended, although other threads
    may still use the fleet, and interrupts and the program's exit wait for its calls in flight.
    """

    def __init__(self, items: Collection[U], call: Callable[[U], T]) -> None:
        self._results: dict[int, T] = {}
        self._errors: dict[int, BaseException] = {}
        queue = deque(enumerate(items))

        def run_queued() -> None:
            with suppress(IndexError):  # the queue is empty
                while True:
                    index, item = queue.popleft()
                    try:
                        self._results[index] = call(item)
                    except BaseException as error:
                        self._errors[index] = error

        count = min(len(items), MAX_CALLS)
        self._threads = [threading.Thread(target=run_queued, name="ps2-ask", daemon=True) for _ in range(count)]
        with SHIELD:
            try:
                for thread in self._threads:
                    thread.start()
            except RuntimeError:  # no more threads: the started threads make all calls; without any, this thread does
                if not any(thread.is_alive() for thread in self._threads):
                    run_queued()

    def results(self, while_waiting: Callable[[], object] = lambda: None) -> list[T]:
        """Wait for all calls; return their results in order.

        This thread calls ``while_waiting`` repeatedly until all calls are done. Raises the first error of a call;
        permanent errors take precedence over TransientError.
        """
        with SHIELD:
            for thread in self._threads:
                while thread.is_alive():
                    thread.join(POLL_S)
                    while_waiting()
                    check()
        errors = self._errors
        if errors:
            raise errors[min(errors, key=lambda index: (isinstance(errors[index], TransientError), index))]
        return [self._results[index] for index in range(len(self._results))]


def call_concurrently(
    items: Collection[U], call: Callable[[U], T], while_waiting: Callable[[], object] = lambda: None
) -> list[T]:
    """Call a function for each item concurrently; return the results in order. See ``ConcurrentCalls.results``."""
    return ConcurrentCalls(items, call).results(while_waiting)
