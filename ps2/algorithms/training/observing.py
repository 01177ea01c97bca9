"""Who watches fits: one observer in a process, such as the one that logs to MLflow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from ps2.algorithms.training.record import StepReport


class FitWatch(Protocol):
    """Watches one fit. Its methods do not raise, and return at once, except for ``ended``."""

    def step(self, report: StepReport) -> None:
        """Take note of a step; called in any thread."""

    def ended(self, model: Any) -> None:
        """Take note of the end; ``model`` is None if the fit failed."""


# Called with an estimator as its fit begins; returns None if it does not watch this one.
FitObserver = Callable[[Any], FitWatch | None]

_observer: FitObserver | None = None
_watch: ContextVar[FitWatch | None] = ContextVar("watch", default=None)
_is_fitting: ContextVar[bool] = ContextVar("is_fitting", default=False)


def observe_fits(observer: FitObserver | None) -> None:
    """Have an observer watch all fits that begin from now on, instead of the one before; None: nobody watches."""
    global _observer
    _observer = observer


def current_watch() -> FitWatch | None:
    """Return what watches the fit under way in this thread, or None."""
    return _watch.get()


def observed(estimator: Any) -> FitWatch | None:
    """Return what watches a training that begins now and goes on in other threads, or None."""
    return None if _observer is None else _observer(estimator)


@contextmanager
def watched_fit(estimator: Any) -> Iterator[Callable[[Any], None]]:
    """Watch a fit; yield the function to call with its model. Fits within this one are parts of it."""
    observer = _observer
    if observer is None or _is_fitting.get():
        yield lambda model: None
        return
    fitting = _is_fitting.set(True)
    watch = observer(estimator)
    token = _watch.set(watch)
    made: list[Any] = [None]
    try:
        yield lambda model: made.__setitem__(0, model)
    finally:
        _watch.reset(token)
        _is_fitting.reset(fitting)
        if watch is not None:
            watch.ended(made[0])
