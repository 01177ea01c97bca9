"""The observer of fits, such as the observer that logs to MLflow. A process has at most one observer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from ps2.algorithms.training.record import StepReport


class FitWatch(Protocol):
    """Receives the events of one fit. Its methods raise no errors. All except ``ended`` return at once."""

    def step(self, report: StepReport) -> None:
        """Record a step. Any thread may call this."""

    def ended(self, model: Any) -> None:
        """Record the end of the fit; ``model`` is None if the fit failed."""


# A function that is called with an estimator when its fit begins. It returns None to ignore the fit.
FitObserver = Callable[[Any], FitWatch | None]

_observer: FitObserver | None = None
_watch: ContextVar[FitWatch | None] = ContextVar("watch", default=None)
_is_fitting: ContextVar[bool] = ContextVar("is_fitting", default=False)


def observe_fits(observer: FitObserver | None) -> None:
    """Set the observer of all fits that begin later. It replaces the earlier observer; None: no observer."""
    global _observer
    _observer = observer


def current_watch() -> FitWatch | None:
    """Return the watch of the fit that runs in this thread, or None."""
    return _watch.get()


def new_watch(estimator: Any) -> FitWatch | None:
    """Return the observer's watch for a training that continues in other threads, or None."""
    return None if _observer is None else _observer(estimator)


@contextmanager
def watched_fit(estimator: Any) -> Iterator[Callable[[Any], None]]:
    """Watch a fit; yield the function to call with its model. Nested fits are not watched separately."""
    observer = _observer
    if observer is None or _is_fitting.get():
        yield lambda model: None
        return
    fitting_token = _is_fitting.set(True)
    watch = observer(estimator)
    watch_token = _watch.set(watch)
    models: list[Any] = [None]
    try:
        yield lambda model: models.__setitem__(0, model)
    finally:
        _watch.reset(watch_token)
        _is_fitting.reset(fitting_token)
        if watch is not None:
            watch.ended(models[0])
