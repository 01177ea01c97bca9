"""Records events for the live page: warnings of PS2's loggers, and events that the coordinator adds."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque

from ps2.dashboard.snapshot import EventView
from ps2.run.worker_log import WORKERS

MAX_EVENTS = 500
# The logger whose warnings are ignored: they report lost servers, and the coordinator adds these events itself.
LOST_SERVERS = "ps2.coordinator.server_registry"
# Maximum length of an event's text.
MAX_CHARS = 400
LOGGER = "ps2"
# The kind of event for a logger's warnings; "warning" for all other loggers.
KINDS = {
    "ps2.coordinator.supervisor": "recovery",
    "ps2.coordinator.checkpoints": "checkpoint",
    WORKERS: "worker",
}


class EventLog(logging.Handler):
    """Stores the newest events. While it is open, it is a handler of the logger "ps2"."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._events: deque[EventView] = deque(maxlen=MAX_EVENTS)
        self._events_lock = threading.Lock()
        self._counts: Counter[str] = Counter()  # number of all events by kind

    def open(self) -> None:
        logging.getLogger(LOGGER).addHandler(self)

    def close(self) -> None:
        logging.getLogger(LOGGER).removeHandler(self)
        super().close()

    def add(self, kind: str, text: str, at_s: float | None = None) -> None:
        """Add an event; ``at_s``: its time in seconds since 1970; None: now."""
        with self._events_lock:
            self._counts[kind] += 1
            self._events.append(EventView(time.time() if at_s is None else at_s, kind, text[:MAX_CHARS]))

    def newest(self, limit: int) -> tuple[tuple[EventView, ...], int]:
        """Return at most ``limit`` events, newest first, and the number of older events."""
        with self._events_lock:
            shown = tuple(reversed(self._events))[:limit]
            return shown, self._counts.total() - len(shown)

    def counts(self) -> dict[str, int]:
        with self._events_lock:
            return dict(self._counts)

    def emit(self, record: logging.LogRecord) -> None:
        if record.name != LOST_SERVERS:
            self.add(KINDS.get(record.name, "warning"), record.getMessage())
        # Without another handler, logging would print the warning on stderr: print it here, too.
        is_logged = record.name == WORKERS  # the worker's process has printed the line
        if logging.lastResort is not None and not is_logged and not self._has_other_handlers(record.name):
            logging.lastResort.handle(record)

    def _has_other_handlers(self, name: str) -> bool:
        logger: logging.Logger | None = logging.getLogger(name)
        while logger is not None:
            if any(not isinstance(handler, EventLog) for handler in logger.handlers):
                return True
            logger = logger.parent if logger.propagate else None
        return False
