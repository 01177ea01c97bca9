"""Concurrent calls, for example to all servers."""

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
POLL_S = 0.02

T = TypeVar("T")
U = TypeVar("U")


class ConcurrentCalls(Generic[T]):
    """Calls one function for several things concurrently, in threads; ``results`` waits for the calls.

    A ``ThreadPoolExecutor`` does not fit. It accepts no work after the main thread has ended, although other threads
    may still use the fleet. It also makes an interrupt and the program's exit wait for calls in flight.
    """

    def __init__(self, things: Collection[U], call: Callable[[U], T]) -> None:
        self._results: dict[int, T] = {}
        self._errors: dict[int, BaseException] = {}
        waiting = deque(enumerate(things))

        def run() -> None:
            with suppress(IndexError):  # the queue is empty
                while True:
                    number, thing = waiting.popleft()
                    try:
                        self._results[number] = call(thing)
                    except BaseException as error:
                        self._errors[number] = error

        count = min(len(things), MAX_CALLS)
        self._threads = [threading.Thread(target=run, name="ps2-ask", daemon=True) for _ in range(count)]
        with SHIELD:
            try:
                for thread in self._threads:
                    thread.start()
            except RuntimeError:  # out of threads: the started ones make all calls; without any, this thread does
                if not any(thread.is_alive() for thread in self._threads):
                    run()

    def results(self, meanwhile: Callable[[], object] = lambda: None) -> list[T]:
        """Wait for all calls; return their results in order.

        ``meanwhile`` is called in this thread repeatedly until all calls are done. Raises the first error of a
        call; permanent errors take precedence over TransientError.
        """
        with SHIELD:
            for thread in self._threads:
                while thread.is_alive():
                    thread.join(POLL_S)
                    meanwhile()
                    check()
        errors = self._errors
        if errors:
            raise errors[min(errors, key=lambda number: (isinstance(errors[number], TransientError), number))]
        return [self._results[number] for number in range(len(self._results))]


def call_concurrently(
    things: Collection[U], call: Callable[[U], T], meanwhile: Callable[[], object] = lambda: None
) -> list[T]:
    """Call a function for each thing concurrently; return the results in order. See ``ConcurrentCalls.results``."""
    return ConcurrentCalls(things, call).results(meanwhile)
