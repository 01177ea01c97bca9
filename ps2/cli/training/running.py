"""Runs a command of ``ps2 train`` in Spark: starts session and fleet, and prints status lines on stderr."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from ps2.algorithms.training import progress
from ps2.cli.training.options import RunOptions
from ps2.logs import JSON, log_format

if TYPE_CHECKING:
    from ps2.run.spark.session import Interrupt

# The interval between two status lines.
INTERVAL_S = 10.0


def run_in_spark(name: str, run: RunOptions, interrupt: Interrupt, work: Callable[[Any, int], None]) -> None:
    """Call ``work`` with a Spark session and the number of workers; print status lines on stderr.

    The session and the fleet start before the call and end after it. ``name`` is the name of the Spark application.
    """
    from ps2.algorithms.frame.dealing import check_workers
    from ps2.algorithms.frame.model_files import prepare_folder
    from ps2.coordinator.context import PS2Context
    from ps2.run.spark.backend_lookup import backend_of
    from ps2.run.spark.session import get_or_create_session, plain_errors, silence_spark

    with StatusLines(name):
        spark = get_or_create_session(run.master, name)
        interrupt.install()
        progress.log_activity("starting the servers" if run.fleet is None else f"attaching to {run.fleet}")
        try:
            with plain_errors(), PS2Context.getOrCreate(spark, conf=run.conf()) as ps:
                progress.log_activity("waiting for free task slots")
                ps.waitForSlots()
                workers = run.workers or max(1, backend_of(spark).total_slots())
                check_workers(backend_of(spark), workers)
                prepare_folder(spark, run.output, run.overwrite)
                work(spark, workers)
        except BaseException:
            if interrupt.was_pressed:
                silence_spark(spark)
            raise
        finally:
            if not interrupt.was_pressed:
                spark.stop()


class StatusLines(logging.Handler):
    """Prints a line every ten seconds: the time since the command began, and the newest message of its progress.

    The messages are log records of ``ps2.algorithms.training.progress``. No line is printed while that module shows a
    live line in a terminal, or if the log is JSON: it contains the messages.
    """

    def __init__(self, command: str) -> None:
        super().__init__(logging.INFO)
        self._command = command
        self._status = "starting Spark"
        self._is_live = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._print_lines, name="ps2-status-lines", daemon=True)

    def emit(self, record: logging.LogRecord) -> None:
        self._status = record.getMessage()
        self._is_live = getattr(record, "is_live", False)

    def __enter__(self) -> StatusLines:
        self._level = progress.log.level
        progress.log.setLevel(logging.INFO)
        progress.log.addHandler(self)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        progress.log.removeHandler(self)
        progress.log.setLevel(self._level)

    def _print_lines(self) -> None:
        start_s = time.monotonic()
        while not self._ended.wait(INTERVAL_S):
            if not self._is_live and log_format() != JSON:
                click.echo(f"{self._command}: {time.monotonic() - start_s:.0f} s: {self._status}", err=True)
