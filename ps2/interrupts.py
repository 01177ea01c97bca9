"""Deferral of Ctrl-C and other signals whose handlers can raise, until an exception can do no harm.

Python runs signal handlers in the main thread between any two instructions: even just after a lock was taken, or when
half of a reply was read. While the main thread is inside ``SHIELD``, handlers are deferred until it leaves ``SHIELD``
or calls ``check``. So code that can take long calls ``check``, and waits by ``sleep``, ``wait_for`` and ``join``. The
handlers are the user's, an IPython kernel's or a test runner's. Outside of ``SHIELD`` they are installed unchanged.
"""

from __future__ import annotations

# The functions that ``signal`` wraps in ones that take ten times as long. A small call of PS2 takes 30 us.
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

# The maximum time for which a handler is deferred while the main thread waits.
POLL_S = 0.05
# The signals for which programs have handlers that raise. The handler of SIGINT is restored last.
SIGNALS = tuple(
    int(getattr(signal, name))
    for name in (
        *("SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGVTALRM", "SIGPROF", "SIGXCPU"),
        *("SIGBREAK",),
    )
    if hasattr(signal, name)
)


class Shield:
    """``with SHIELD:`` defers signal handlers. It can be nested, and does nothing outside of the main thread."""

    __slots__ = ("_depth", "_handlers", "_main", "_pending", "_recorder")

    def __init__(self) -> None:
        self._main = threading.main_thread().ident
        self._depth = 0
        self._recorder = self._record
        # signal -> the user's handler, while it is replaced
        self._handlers: dict[int, Any] = {}
        self._pending: list[int] = []

    def __enter__(self) -> None:
        if threading.get_ident() == self._main:
            if not self._depth:
                self._replace()
            self._depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if threading.get_ident() == self._main:
            self._depth = max(0, self._depth - 1)
            if not self._depth:
                self._restore()

    @property
    def is_up(self) -> bool:
        """True if the calling thread is inside, and there are handlers to defer."""
        return bool(self._handlers) and bool(self._depth) and threading.get_ident() == self._main

    def check(self) -> None:
        """Run the handlers of signals that have arrived, at a place where an exception can do no harm."""
        if self._pending and self.is_up:
            with Opening():
                pass

    def reset(self) -> None:
        """Reset the state in a forked child, where this thread is the main thread."""
        self._main = threading.get_ident()
        self._depth = 0
        self._pending.clear()
        self._restore()

    def _record(self, number: int, frame: FrameType | None) -> None:
        if number not in self._pending:
            self._pending.append(number)

    def _replace(self) -> None:
        """Replace the user's handlers: all of them, or none if a handler raises during the replacement."""
        try:
            for number in SIGNALS:
                handler = _signal.getsignal(number)
                if callable(handler) and handler is not self._recorder:
                    self._handlers[number] = handler
                    _signal.signal(number, self._recorder)
        except ValueError:  # a subinterpreter, in which no handler runs
            self._main = 0
            self._handlers.clear()
        except BaseException:
            self._restore()
            raise

    def _restore(self) -> None:
        """Restore the user's handlers and run the handlers of pending signals, even if one raises."""
        try:
            while self._handlers:
                number, handler = next(reversed(self._handlers.items()))
                if _signal.getsignal(number) is self._recorder:
                    _signal.signal(number, handler)
                del self._handlers[number]
            while self._pending:
                signal.raise_signal(self._pending.pop(0))
        finally:
            if self._handlers or self._pending:
                self._restore()


SHIELD = Shield()
check = SHIELD.check
os.register_at_fork(after_in_child=SHIELD.reset)


class Opening:
    """``with Opening():`` lets handlers run inside ``SHIELD``, for the user's code and Spark's."""

    __slots__ = ("_depth",)

    def __init__(self) -> None:
        self._depth = 0

    def __enter__(self) -> None:
        if threading.get_ident() == SHIELD._main and SHIELD._depth:
            self._depth, SHIELD._depth = SHIELD._depth, 0
            try:
                SHIELD._restore()
            except BaseException:
                self.__exit__(None, None, None)
                raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._depth:
            try:
                SHIELD._replace()
            except BaseException:
                SHIELD._replace()  # the error is that of a pending signal's handler
                raise
            finally:
                SHIELD._depth = self._depth


def shielded(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that signal handlers must not interrupt."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        with SHIELD:
            return function(*args, **kwargs)

    return call


def sleep(seconds: float) -> None:
    """Sleep; signal handlers can run during the sleep."""
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:
        time.sleep(min(left_s, POLL_S) if SHIELD.is_up else left_s)
        check()


def wait_for(changed: threading.Condition, predicate: Callable[[], object], timeout_s: float | None = None) -> bool:
    """Wait like ``changed.wait_for``; the caller holds the condition. Signal handlers can run while it waits."""
    if not SHIELD.is_up:
        return bool(changed.wait_for(predicate, timeout_s))
    end_s = None if timeout_s is None else time.monotonic() + timeout_s
    while not (result := predicate()) and (end_s is None or time.monotonic() < end_s):
        changed.wait(POLL_S if end_s is None else max(0.0, min(POLL_S, end_s - time.monotonic())))
        check()
    return bool(result)


def join(thread: threading.Thread, timeout_s: float | None = None) -> None:
    """Wait for a thread's end; signal handlers can run while it waits."""
    if not SHIELD.is_up:
        thread.join(timeout_s)
        return
    end_s = None if timeout_s is None else time.monotonic() + timeout_s
    while thread.is_alive() and (end_s is None or time.monotonic() < end_s):
        thread.join(POLL_S if end_s is None else max(0.0, min(POLL_S, end_s - time.monotonic())))
        check()
