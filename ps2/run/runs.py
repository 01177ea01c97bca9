"""The runs of one context: several threads can drive a run each, on the task slots that they share."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ps2.errors import PS2Error, StoppedError, TransientError, UsageError
from ps2.interrupts import Opening, sleep, wait_for
from ps2.run.clock_loop import run_series
from ps2.run.driver import RunDriver
from ps2.run.host import RunHost
from ps2.run.job import WorkerJob, check_call, pickled, takes_reports
from ps2.run.options import RunOptions
from ps2.run.result import RunResult
from ps2.run.slots import SlotLedger
from ps2.run.spans import Preparation
from ps2.run.spark.backend import SparkBackend
from ps2.run.spark.backend_lookup import max_slots

log = logging.getLogger(__name__)

# The time for which a run waits for task slots that other jobs use. They may be about to end.
SLOTS_TIMEOUT_S = 10.0
# The time for which ``Runs.stop`` waits for the runs to end.
STOP_TIMEOUT_S = 25.0
# The time in which ``_forget`` retries calls of servers that are being replaced.
FORGET_TIMEOUT_S = 5.0
# The interval between these retries.
POLL_S = 0.5


class Runs:
    """The runs of one context, each driven by the thread that calls ``run``. Thread-safe.

    Attributes:
        count: the number of calls of ``run`` so far, which is the number of the next run.
    """

    def __init__(self, host: RunHost) -> None:
        self.host = host
        self.count = 0
        self.slots = SlotLedger()
        self._changed = threading.Condition()
        self._threads: dict[int, int] = {}  # run -> the thread that drives it
        self._is_stopped = False
        self._forgetting = threading.Lock()  # held while servers are told which runs are over

    def run(self, spark: SparkBackend, data: Any, worker_fn: Callable[..., Any], options: RunOptions) -> RunResult:
        """Run workers to their end; see ``PS2Context.run``."""
        with self._numbered() as number:
            preparation = Preparation()
            with Opening():  # signal handlers may interrupt users' code and Spark's
                function = pickled(worker_fn, options.read)
            if options.on_clock is not None:
                reports = ["reports"] if takes_reports(options.on_clock) else []
                check_call("onClock", options.on_clock, "clock", *reports)
            if options.on_log is not None:
                check_call("onLog", options.on_log, "rank", "clock", "name", "value")
            preparation.lap("coordinator")
            slots = max_slots(spark) or spark.total_slots()
            with Opening():
                job = WorkerJob(spark, data, function, options.workers, slots)
            with self.slots.holding(spark, number, job.workers, SLOTS_TIMEOUT_S):
                preparation.lap("spark")
                self.host.session.dispatch.flush()
                driver = RunDriver(self.host, number, spark, job, options, preparation)
                return driver.drive(lambda: self._forget(number))

    def stop(self) -> None:
        """End all runs, and wait for their end."""
        self._is_stopped = True
        self.slots.stop()
        for run in self.host.active.all():
            run.fail(StoppedError("this PS2Context was stopped"))
        # ``onClock`` can stop its own run, and must not wait for itself.
        thread = threading.get_ident()
        with self._changed:
            wait_for(self._changed, lambda: set(self._threads.values()) <= {thread}, STOP_TIMEOUT_S)

    @contextmanager
    def _numbered(self) -> Iterator[int]:
        """Yield the number of a new run of this thread."""
        thread = threading.get_ident()
        with self._changed:
            if thread in self._threads.values():
                raise UsageError("run: another run of this context is under way in this thread")
            number, self.count = self.count, self.count + 1
            self._threads[number] = thread
        try:
            yield number
        finally:
            with self._changed:
                del self._threads[number]
                self._changed.notify_all()

    def _forget(self, run: int) -> None:
        """Let servers and master drop the mutation ids of ``run`` and of all earlier runs that are over."""
        with self._forgetting:
            with self._changed:
                below, live = self.count, sorted(self._threads.keys() - {run})
            series = run_series(self.host.session.fleet)
            deadline_s = time.monotonic() + FORGET_TIMEOUT_S
            pending = self.host.fleet.present()
            while pending:
                for id, address in list(pending.items()):
                    try:
                        self.host.servers.end_stages(address, series, below, live)
                        del pending[id]
                    except PS2Error as error:
                        log.debug("telling %s that a run is over: %s", address, error)
                        if not isinstance(error, TransientError):
                            del pending[id]
                present = self.host.fleet.present()
                pending = {id: address for id, address in pending.items() if id in present}
                if self._is_stopped or time.monotonic() > deadline_s:
                    break
                if pending:
                    sleep(POLL_S)
            self.host.fleet.end_stages(series, below, live)
