"""Threads that have to go on: what one turn raises is logged, and the next one comes all the same."""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger(__name__)


class Turns:
    """The turns of one thread. The same error again and again is logged once, until a turn succeeds."""

    def __init__(self, thread: str) -> None:
        self._thread = thread
        self._said = ""

    def take(self, turn: Callable[[], None]) -> None:
        """Do one turn; log what it raises, with the traceback."""
        try:
            turn()
        except Exception as error:  # nobody would hear of it, and nobody do this thread's work
            said = repr(error)
            if said != self._said:
                log.exception("%s: an unexpected error; it goes on", self._thread)
            self._said = said
        else:
            self._said = ""
