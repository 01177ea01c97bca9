"""Shorter turns of Python's threads while one of them loads an export."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# A thread that waits for the interpreter's lock asks for it after so long; Python's own 5 ms are 50 scores.
TURN_S = 5e-4

_lock = threading.Lock()
_state = {"users": 0, "before_s": 0.0}


@contextmanager
def short_turns() -> Iterator[None]:
    """Let other threads have the interpreter's lock soon, in the whole process, until the last user of this has ended.

    A score gives the lock up for each of its kernels, and then waits for it as long as a turn of the loading thread.
    """
    with _lock:
        _state["users"] += 1
        if _state["users"] == 1:
            _state["before_s"] = sys.getswitchinterval()
            sys.setswitchinterval(min(TURN_S, _state["before_s"]))
    try:
        yield
    finally:
        with _lock:
            _state["users"] -= 1
            if not _state["users"]:
                sys.setswitchinterval(_state["before_s"])
