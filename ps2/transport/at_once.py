"""Calls to all servers at the same time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Generic, TypeVar

from ps2.errors import TransientError
from ps2.interrupts import SHIELD, check

# Calls under way at once; further ones wait.
MOST = 32
POLL_S = 0.02

T = TypeVar("T")
U = TypeVar("U")


class Calls(Generic[T]):
    """Calls of something for each of some things, under way until ``results`` has them.

    Not by an executor: those take nothing more once the main thread has ended, while other threads of the program go on
    with the fleet; and an interrupt of the caller would have to wait for calls under way, as the program's end would.
    """

    def __init__(self, things: Collection[U], call: Callable[[U], T]) -> None:
        self._results: dict[int, T] = {}
        self._errors: dict[int, BaseException] = {}
        waiting = deque(enumerate(things))

        def run() -> None:
            with suppress(IndexError):  # it is empty: there is nothing left to call
                while True:
                    number, thing = waiting.popleft()
                    try:
                        self._results[number] = call(thing)
                    except BaseException as error:
                        self._errors[number] = error

        count = min(len(things), MOST)
        self._threads = [threading.Thread(target=run, name="ps2-ask", daemon=True) for _ in range(count)]
        with SHIELD:
            try:
                for thread in self._threads:
                    thread.start()
            except RuntimeError:  # there may be no more of them: those that run do it all, or this one does
                if not any(thread.is_alive() for thread in self._threads):
                    run()

    def results(self, meanwhile: Callable[[], object] = lambda: None) -> list[T]:
        """Wait for all; return what they came to, in order.

        Args:
            meanwhile: called here again and again until all are done.

        Raises:
            BaseException: the first that a call raised, one that cannot pass by itself before one that can.
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


def at_once(things: Collection[U], call: Callable[[U], T], meanwhile: Callable[[], object] = lambda: None) -> list[T]:
    """Call something for each, and wait for all; return the results in order. See ``Calls.results``."""
    return Calls(things, call).results(meanwhile)
