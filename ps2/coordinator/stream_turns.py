"""Mutual exclusion of streams' batches, runs and checkpoints, so that no checkpoint holds a part of a batch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ps2.errors import UsageError

# Interval at which a waiting batch checks whether a run has ended.
POLL_S = 0.05


class StreamTurns:
    """The streams of one coordinator. Batches take turns with each other and with runs.

    Every stream can roll back to every checkpoint, because checkpoints hold the positions of all streams.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._models: set[str] = set()
        self._thread: int | None = None  # the thread of the batch under way

    @property
    def are_open(self) -> bool:
        """True if a model learns from a stream."""
        return bool(self._models)

    def check_free(self, model: str) -> None:
        """Raise UsageError if a model learns from a stream."""
        if model in self._models:
            raise UsageError(f"model {model} learns from a stream already: stop that query first")

    @contextmanager
    def stream(self, model: str) -> Iterator[None]:
        """Register a model that learns from a stream. Meanwhile, the loss of a server rolls back the whole fleet.

        Raises:
            UsageError: the model learns from a stream already.
        """
        with self._changed:
            self.check_free(model)
            self._models.add(model)
        try:
            yield
        finally:
            with self._changed:
                self._models.remove(model)

    @contextmanager
    def batch(self, is_free: Callable[[], bool]) -> Iterator[None]:
        """Wait until no other batch and no run is in progress, and hold the turn.

        Args:
            is_free: returns False while a run or a step of the driver is in progress.
        """
        with self._changed:
            while self._thread is not None or not is_free():
                self._changed.wait(POLL_S)
            self._thread = threading.get_ident()
        try:
            yield
        finally:
            with self._changed:
                self._thread = None
                self._changed.notify_all()

    def wait(self) -> None:
        """Wait until no batch of another thread is in progress."""
        with self._changed:
            while self._thread not in (None, threading.get_ident()):
                self._changed.wait(POLL_S)
