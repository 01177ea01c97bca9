"""Warnings and errors that workers log. A limited number of them is sent to the driver with workers' messages."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ps2.rpc.run_control import LogLine, LogLines

# The name of the logger with which the driver logs the workers' lines.
WORKERS = "ps2.workers"
# The maximum numbers of lines of one attempt, and of all workers of a run. Further lines are only counted.
MAX_LINES = 100
MAX_RUN_LINES = 400
# The maximum length of a line; longer lines are cut.
MAX_CHARS = 2000

log = logging.getLogger(WORKERS)


class LineCollector:
    """Collects the lines that one attempt of a worker logs, until ``take``.

    It is not a handler of the root logger, because with a handler, a call of ``logging.basicConfig`` in the user's
    function would have no effect.
    """

    def __init__(self, clock: Callable[[], int], on_line: Callable[[str], object] = lambda logger: None) -> None:
        """``on_line`` is called with the name of a line's logger, in the thread that logs the line."""
        self._clock = clock
        self._on_line = on_line
        self._lock = threading.Lock()
        self._lines: list[LogLine] = []
        self._count = 0
        self._left_out = 0

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Collect the lines of all loggers of this process in the with-block."""
        original = logging.getLogRecordFactory()
        is_open = True

        def make_record(*args: object, **kwargs: object) -> logging.LogRecord:
            record = original(*args, **kwargs)
            if is_open and record.levelno >= logging.WARNING:
                self._add(record)
            return record

        logging.setLogRecordFactory(make_record)
        try:
            yield
        finally:
            is_open = False
            if logging.getLogRecordFactory() is make_record:  # otherwise another factory wraps this one
                logging.setLogRecordFactory(original)

    def take(self) -> LogLines:
        """Return the lines since the last call, and the number of lines beyond the limit."""
        with self._lock:
            lines = LogLines(tuple(self._lines), self._left_out)
            self._lines, self._left_out = [], 0
        return lines

    def _add(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
        except Exception as error:  # an argument's __str__ can raise anything; logging itself prints such errors
            text = f"{record.msg} ({type(error).__name__}: {error})"
        with self._lock:
            self._count += 1
            if self._count > MAX_LINES:
                self._left_out += 1
                return
            self._lines.append(LogLine(record.levelno, record.name, text[:MAX_CHARS], self._clock()))
        self._on_line(record.name)


class RunLines:
    """The lines of all workers of one run that the driver has not logged yet. The run's lock guards ``add``."""

    def __init__(self) -> None:
        self._lines: deque[tuple[int, LogLine]] = deque()
        self._count = 0
        self.left_out = 0

    def add(self, rank: int, lines: LogLines) -> None:
        capacity = max(0, MAX_RUN_LINES - self._count)
        self._lines.extend((rank, line) for line in lines.lines[:capacity])
        self._count += min(capacity, len(lines.lines))
        self.left_out += lines.left_out + max(0, len(lines.lines) - capacity)

    def log(self) -> None:
        """Log the lines in the driver, if its logger has a handler. The executors' logs contain all lines."""
        while self._lines:
            rank, line = self._lines.popleft()
            if log.hasHandlers():
                fields = {"rank": rank, "clock": line.clock}
                log.log(line.level, "rank %d, clock %d: %s: %s", rank, line.clock, line.logger, line.text, extra=fields)

    def log_left_out(self) -> None:
        if self.left_out and log.hasHandlers():
            log.warning("%d more lines of this run's workers are only in the executors' logs", self.left_out)
