"""Background threads that must not end: an error in one iteration is logged, and the next iteration runs."""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger(__name__)


class GuardedLoop:
    """The iterations of one thread's loop. A repeated error is logged once, until an iteration succeeds."""

    def __init__(self, thread: str) -> None:
        self._thread = thread
        self._last_error = ""

    def run_once(self, iteration: Callable[[], object]) -> None:
        """Run one iteration; log its exception, with the traceback."""
        try:
            iteration()
        except Exception as error:  # the thread must not end
            text = repr(error)
            if text != self._last_error:
                log.exception("%s: unexpected error; the thread continues", self._thread)
            self._last_error = text
        else:
            self._last_error = ""
