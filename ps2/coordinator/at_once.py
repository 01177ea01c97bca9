"""Calls to all servers at the same time that have to work to the very end of the program."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import TypeVar

POLL_S = 0.02

T = TypeVar("T")
U = TypeVar("U")


def at_once(things: Collection[U], call: Callable[[U], T], meanwhile: Callable[[], object] = lambda: None) -> list[T]:
    """Call something for each, in a thread of its own; return the results in order, or raise the first error.

    Executors take nothing more once the main thread has ended, while other threads of the program go on with the fleet.

    Args:
        meanwhile: called here again and again until all are done.
    """
    results: dict[int, T] = {}
    errors: dict[int, BaseException] = {}

    def run(number: int, thing: U) -> None:
        try:
            results[number] = call(thing)
        except BaseException as error:
            errors[number] = error

    threads = [threading.Thread(target=run, args=both, name="ps2-ask", daemon=True) for both in enumerate(things)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(POLL_S)
            meanwhile()
    if errors:
        raise errors[min(errors)]
    return [results[number] for number in range(len(threads))]
