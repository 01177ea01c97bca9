"""What happened, with times: the warnings of PS2's loggers, and what others note."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque

from ps2.dashboard.snapshot import EventView
from ps2.run.worker_log import WORKERS

MAX_EVENTS = 500
# Lost servers are noted by the coordinator, whether or not they are worth a warning.
NOTED = "ps2.coordinator.server_registry"
MAX_CHARS = 400
LOGGER = "ps2"
# What the warnings of some loggers are about.
KINDS = {
    "ps2.coordinator.supervisor": "recovery",
    "ps2.coordinator.checkpoints": "checkpoint",
    WORKERS: "worker",
}


class EventLog(logging.Handler):
    """Keeps the newest events; a handler of PS2's loggers while it is open."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._events: deque[EventView] = deque(maxlen=MAX_EVENTS)
        self._events_lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def open(self) -> None:
        logging.getLogger(LOGGER).addHandler(self)

    def close(self) -> None:
        logging.getLogger(LOGGER).removeHandler(self)
        super().close()

    def note(self, kind: str, text: str, at_s: float | None = None) -> None:
        """Add an event; ``at_s``: when it happened, if not now."""
        with self._events_lock:
            self._counts[kind] += 1
            self._events.append(EventView(time.time() if at_s is None else at_s, kind, text[:MAX_CHARS]))

    def newest(self, most: int) -> tuple[tuple[EventView, ...], int]:
        """Return the newest events, the newest first, and how many there were before them."""
        with self._events_lock:
            shown = tuple(reversed(self._events))[:most]
            return shown, self._counts.total() - len(shown)

    def counts(self) -> dict[str, int]:
        """Return how many events of each kind there were."""
        with self._events_lock:
            return dict(self._counts)

    def emit(self, record: logging.LogRecord) -> None:
        if record.name != NOTED:
            self.note(KINDS.get(record.name, "warning"), record.getMessage())
        # A program without handlers of its own gets its warnings on stderr, as if this one were not there.
        is_said = record.name == WORKERS  # by the worker
        if logging.lastResort is not None and not is_said and not self._has_others(record.name):
            logging.lastResort.handle(record)

    def _has_others(self, name: str) -> bool:
        logger: logging.Logger | None = logging.getLogger(name)
        while logger is not None:
            if any(not isinstance(handler, EventLog) for handler in logger.handlers):
                return True
            logger = logger.parent if logger.propagate else None
        return False
