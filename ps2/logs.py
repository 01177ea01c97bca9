"""Logs with one line of JSON for each event (``PS2_LOG=json``, docs/logs.md), and rate-limited warnings."""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any, Literal, get_args

from ps2.errors import ConfigError

VARIABLE = "PS2_LOG"
LogFormat = Literal["text", "json"]
TEXT: LogFormat = "text"
JSON: LogFormat = "json"
# Optional fields of a line, in addition to time, level, logger and message.
FIELDS = ("fleet", "server", "run", "rank", "clock")

Fields = Mapping[str, object]


def log_format(environment: Mapping[str, str] = os.environ) -> LogFormat:
    """Return the format of this process's log: Python's own ("text"), or lines of JSON.

    Raises:
        ConfigError: ``PS2_LOG`` has another value.
    """
    value = environment.get(VARIABLE, "") or TEXT
    for name in get_args(LogFormat):
        if value == name:
            return name
    raise ConfigError(f"{VARIABLE}: expected 'text' or 'json', got {value!r}")


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON.

    ``ts`` is RFC 3339 in UTC; ``level``, ``logger`` and ``message`` follow, then the ``FIELDS`` that have values, and
    ``exception``, a traceback, if the record has one. A record's own fields (``extra=``) override the process's fields.
    """

    def __init__(self, fields: Callable[[], Fields] = dict) -> None:
        """``fields`` returns the current values of ``FIELDS`` in this process."""
        super().__init__()
        self._fields = fields

    def format(self, record: logging.LogRecord) -> str:
        time_text = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "ts": time_text.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        process_fields = self._fields()
        fields = {name: getattr(record, name, process_fields.get(name)) for name in FIELDS}
        line |= {name: value for name, value in fields.items() if value is not None}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class JsonLog:
    """Writes the records of a logger and its children to stderr as JSON, between ``open`` and ``close``.

    Between both calls, records do not propagate to parent loggers, whose handlers would print them again.
    """

    def __init__(self, fields: Callable[[], Fields] = dict, logger: str = "ps2", level: int = logging.INFO) -> None:
        """Args:
        fields: returns the current values of ``FIELDS`` in this process.
        logger: the logger's name; "" is the root logger.
        level: the level that ``open`` sets if the logger has none.
        """
        self._logger = logging.getLogger(logger)
        self._level = level
        self._fields = fields
        self._handler: logging.Handler | None = None
        self._original = self._logger.level, self._logger.propagate

    def open(self) -> None:
        logger, self._handler = self._logger, logging.StreamHandler()
        self._handler.setFormatter(JsonFormatter(self._fields))
        logger.addHandler(self._handler)
        self._original, logger.propagate = (logger.level, logger.propagate), False
        if logger.level == logging.NOTSET or logger is logging.root:
            logger.setLevel(self._level)

    def close(self) -> None:
        if self._handler is not None:
            self._logger.removeHandler(self._handler)
            self._handler = None
            level, self._logger.propagate = self._original
            self._logger.setLevel(level)


class RateLimitedWarning:
    """A warning that is logged at most once in ``PERIOD_S``, however often its cause occurs. Thread-safe."""

    PERIOD_S = 60.0

    def __init__(self, logger: logging.Logger, text: str) -> None:
        """``text``: the warning's text, with ``%`` formats for its arguments."""
        self._logger, self._text = logger, text
        self._lock = threading.Lock()
        self._logged_s = -math.inf

    def log(self, *args: object) -> None:
        now_s = time.monotonic()
        with self._lock:
            if now_s - self._logged_s < self.PERIOD_S:
                return
            self._logged_s = now_s
        self._logger.warning(self._text, *args)
