"""Ctrl-C and other signals whose handlers may raise: they wait until nothing is torn by them.

Python runs the handlers of signals in the main thread, between any two steps of it: also where a lock is just taken, or
half of a reply is read. While the main thread is inside ``SHIELD``, handlers are put off until it leaves, or comes to a
place where it may stop: those that may take long call ``check``, and wait by ``sleep``, ``wait_for`` and ``join``. The
handlers themselves are the user's, an IPython kernel's or a test runner's, and outside they are in place as they were.
"""

from __future__ import annotations

# The functions beneath those of ``signal``, which take ten times as long: a small call is one of 30 us.
import _signal  # type: ignore[import-not-found]
import functools
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# How long a handler waits while the main thread does.
POLL_S = 0.05
# Those for which programs have handlers that raise; SIGINT is put back last.
SIGNALS = tuple(
    int(getattr(signal, name))
    for name in (
        *("SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGVTALRM", "SIGPROF", "SIGXCPU"),
        *("SIGBREAK",),
    )
    if hasattr(signal, name)
)


class Shield:
    """``with SHIELD:`` puts handlers of signals off. It nests, and does nothing in other threads than the main one."""

    __slots__ = ("_come", "_depth", "_handlers", "_main", "_noting")

    def __init__(self) -> None:
        self._main = threading.main_thread().ident
        self._depth = 0
        self._noting = self._note
        # The user's, by signal, while ours are in their places.
        self._handlers: dict[int, Any] = {}
        self._come: list[int] = []

    def __enter__(self) -> None:
        if threading.get_ident() == self._main:
            if not self._depth:
                self._take()
            self._depth += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if threading.get_ident() == self._main:
            self._depth = max(0, self._depth - 1)
            if not self._depth:
                self._give_back()

    @property
    def is_up(self) -> bool:
        """Whether the calling thread is inside, and there are handlers to put off."""
        return bool(self._handlers) and bool(self._depth) and threading.get_ident() == self._main

    def check(self) -> None:
        """Run the handlers of signals that have come, where the caller can be left by an exception."""
        if self._come and self.is_up:
            with Opening():
                pass

    def begin_again(self) -> None:
        """Be as outside, in a child that was forked: this thread is its main one."""
        self._main = threading.get_ident()
        self._depth = 0
        self._come.clear()
        self._give_back()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number not in self._come:
            self._come.append(number)

    def _take(self) -> None:
        """Put ours in the places of the user's handlers; all or, if one raises meanwhile, none."""
        try:
            for number in SIGNALS:
                handler = _signal.getsignal(number)
                if callable(handler) and handler is not self._noting:
                    self._handlers[number] = handler
                    _signal.signal(number, self._noting)
        except ValueError:  # an interpreter beside the main one, in which no handler runs
            self._main = 0
            self._handlers.clear()
        except BaseException:
            self._give_back()
            raise

    def _give_back(self) -> None:
        """Put the user's handlers back, and run those of signals that have come, even if one raises."""
        try:
            while self._handlers:
                number, handler = next(reversed(self._handlers.items()))
                if _signal.getsignal(number) is self._noting:
                    _signal.signal(number, handler)
                del self._handlers[number]
            while self._come:
                signal.raise_signal(self._come.pop(0))
        finally:
            if self._handlers or self._come:
                self._give_back()


SHIELD = Shield()
check = SHIELD.check
os.register_at_fork(after_in_child=SHIELD.begin_again)


class Opening:
    """``with Opening():`` lets handlers run, inside ``SHIELD``: for code of the user's, and of Spark's."""

    __slots__ = ("_depth",)

    def __init__(self) -> None:
        self._depth = 0

    def __enter__(self) -> None:
        if threading.get_ident() == SHIELD._main and SHIELD._depth:
            self._depth, SHIELD._depth = SHIELD._depth, 0
            try:
                SHIELD._give_back()
            except BaseException:
                self.__exit__(None, None, None)
                raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._depth:
            try:
                SHIELD._take()
            except BaseException:
                SHIELD._take()  # what had come is being raised
                raise
            finally:
                SHIELD._depth = self._depth


def shielded(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that no handler of a signal is to interrupt."""

    @functools.wraps(function)
    def whole(*args: P.args, **kwargs: P.kwargs) -> T:
        with SHIELD:
            return function(*args, **kwargs)

    return whole


def sleep(seconds: float) -> None:
    """Sleep; handlers of signals run meanwhile."""
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:
        time.sleep(min(left_s, POLL_S) if SHIELD.is_up else left_s)
        check()


def wait_for(changed: threading.Condition, predicate: Callable[[], object], timeout_s: float | None = None) -> bool:
    """Wait for a condition, which the caller holds, as its ``wait_for`` does; handlers of signals run meanwhile."""
    if not SHIELD.is_up:
        return bool(changed.wait_for(predicate, timeout_s))
    end_s = None if timeout_s is None else time.monotonic() + timeout_s
    while not (fine := predicate()) and (end_s is None or time.monotonic() < end_s):
        changed.wait(POLL_S if end_s is None else max(0.0, min(POLL_S, end_s - time.monotonic())))
        check()
    return bool(fine)


def join(thread: threading.Thread, timeout_s: float | None = None) -> None:
    """Wait for a thread's end; handlers of signals run meanwhile."""
    if not SHIELD.is_up:
        thread.join(timeout_s)
        return
    end_s = None if timeout_s is None else time.monotonic() + timeout_s
    while thread.is_alive() and (end_s is None or time.monotonic() < end_s):
        thread.join(POLL_S if end_s is None else max(0.0, min(POLL_S, end_s - time.monotonic())))
        check()
