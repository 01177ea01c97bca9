"""What ``ps2 train`` tells on stderr while it has no live line to show."""

from __future__ import annotations

import logging
import threading
import time
from types import TracebackType

import click

from ps2.algorithms.training import progress
from ps2.logs import JSON, log_format

INTERVAL_S = 10.0


class StatusLines(logging.Handler):
    """Prints a line every ten seconds: how long the command has run, and what it does now.

    What it does is the newest message of ``ps2.algorithms.training.progress``. While that shows a live line in a
    terminal, nothing is printed; nor is it if the log is JSON, which has these messages.

    Args:
        command: such as "ps2 train lr".
    """

    def __init__(self, command: str) -> None:
        super().__init__(logging.INFO)
        self._command = command
        self._now = "starting Spark"
        self._is_live = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._tell, name="ps2-status-lines", daemon=True)

    def emit(self, record: logging.LogRecord) -> None:
        self._now = record.getMessage()
        self._is_live = getattr(record, "is_live", False)

    def __enter__(self) -> StatusLines:
        self._level = progress.log.level
        progress.log.setLevel(logging.INFO)
        progress.log.addHandler(self)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        progress.log.removeHandler(self)
        progress.log.setLevel(self._level)

    def _tell(self) -> None:
        began_s = time.monotonic()
        while not self._ended.wait(INTERVAL_S):
            if not self._is_live and log_format() != JSON:
                click.echo(f"{self._command}: {time.monotonic() - began_s:.0f} s: {self._now}", err=True)
