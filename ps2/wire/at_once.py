"""Calls to all servers at the same time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TypeVar

from ps2.errors import TransientError

# Calls under way at once; further ones wait.
MOST = 32
POLL_S = 0.02

T = TypeVar("T")
U = TypeVar("U")


def at_once(things: Collection[U], call: Callable[[U], T], meanwhile: Callable[[], object] = lambda: None) -> list[T]:
    """Call something for each, and wait for all; return the results in order.

    Not by an executor: those take nothing more once the main thread has ended, while other threads of the program go on
    with the fleet; and an interrupt of the caller would have to wait for calls under way.

    Args:
        meanwhile: called here again and again until all are done.

    Raises:
        BaseException: the first that a call raised, one that cannot pass by itself before one that can.
    """
    results: dict[int, T] = {}
    errors: dict[int, BaseException] = {}
    waiting = deque(enumerate(things))

    def run() -> None:
        with suppress(IndexError):  # it is empty: there is nothing left to call
            while True:
                number, thing = waiting.popleft()
                try:
                    results[number] = call(thing)
                except BaseException as error:
                    errors[number] = error

    count = min(len(things), MOST)
    threads = [threading.Thread(target=run, name="ps2-ask", daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(POLL_S)
            meanwhile()
    if errors:
        raise errors[min(errors, key=lambda number: (isinstance(errors[number], TransientError), number))]
    return [results[number] for number in range(len(results))]
