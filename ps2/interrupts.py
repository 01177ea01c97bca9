"""Deferral of Ctrl-C and other signals whose handlers can raise, until an exception can do no harm.

Python runs signal handlers in the main thread between any two instructions: even just after a lock was taken, or when
only half of a reply was read. While the main thread is inside ``SHIELD``, handlers are deferred until the thread leaves
``SHIELD`` or calls ``check``. So slow code calls ``check``, and waits with ``sleep``, ``wait_for`` and ``join``. The
handlers may be those of the user, of an IPython kernel or of a test runner. Outside of ``SHIELD`` they are unchanged.
"""

from __future__ import annotations

# The functions of ``signal`` without its wrappers, which take ten times as long. A small call of PS2 takes 30 us.
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
    def is_active(self) -> bool:
        """True if the calling thread is inside ``SHIELD``, and there are handlers to defer."""
        return bool(self._handlers) and bool(self._depth) and threading.get_ident() == self._main

    def check(self) -> None:
        """Run the handlers of signals that have arrived, at a place where an exception can do no harm."""
        if self._pending and self.is_active:
            with Opening():
                pass

    def reset(self) -> None:
        """Reset the state in a forked child, where this thread is the main thread."""
        self._main = threading.get_ident()
        self._depth = 0
        self._pending.clear()
        self._restore()

    def _record(self, signal_number: int, frame: FrameType | None) -> None:
        if signal_number not in self._pending:
            self._pending.append(signal_number)

    def _replace(self) -> None:
        """Replace the user's handlers: all of them, or none if a handler raises during the replacement."""
        try:
            for signal_number in SIGNALS:
                handler = _signal.getsignal(signal_number)
                if callable(handler) and handler is not self._recorder:
                    self._handlers[signal_number] = handler
                    _signal.signal(signal_number, self._recorder)
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
                signal_number, handler = next(reversed(self._handlers.items()))
                if _signal.getsignal(signal_number) is self._recorder:
                    _signal.signal(signal_number, handler)
                del self._handlers[signal_number]
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
                SHIELD._replace()  # a pending signal's handler raised the error
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
    while (remaining_s := end_s - time.monotonic()) > 0:
        time.sleep(min(remaining_s, POLL_S) if SHIELD.is_active else remaining_s)
        check()


def wait_for(condition: threading.Condition, predicate: Callable[[], object], timeout_s: float | None = None) -> bool:
    """Wait like ``condition.wait_for``; the caller holds its lock. Signal handlers can run during the wait."""
    if not SHIELD.is_active:
        return bool(condition.wait_for(predicate, timeout_s))
    end_s = None if timeout_s is None else time.monotonic() + timeout_s
    while not (result := predicate()) and (end_s is None or time.monotonic() < end_s):
        condition.wait(POLL_S if end_s is None else max(0.0, min(POLL_S, end_s - time.monotonic())))
        check()
    return bool(result)


def join(thread: threading.Thread, timeout_s: float | None = None) -> None:
    """Wait for a thread's end; signal handlers can run during the wait."""
    if not SHIELD.is_active:
        thread.join(timeout_s)
        return
    end_s = None if timeout_s is None else time.monotonic() + timeout_s
    while thread.is_alive() and (end_s is None or time.monotonic() < end_s):
        thread.join(POLL_S if end_s is None else max(0.0, min(POLL_S, end_s - time.monotonic())))
        check()
