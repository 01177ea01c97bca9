"""Checks that a run's workers, and the jobs that ``onClock`` starts, get task slots; shows a run in one line."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ps2.errors import SlotsError
from ps2.interrupts import sleep
from ps2.progress_line import ShowProgress
from ps2.rpc.run_control import Logged
from ps2.run.options import RunOptions
from ps2.run.spark.backend import SparkBackend
from ps2.run.spark.errors import unreachable_driver
from ps2.run.state import RunState
from ps2.run.timeline import count, discipline, rounded

# The run ends after this time in which a rank has had no task, and Spark has not been starting one. In local mode.
START_TIMEOUT_S = 30.0
# The same time on a cluster, where Spark may have to start executors first.
EXECUTOR_TIMEOUT_S = 120.0
CHECK_INTERVAL_S = 1.0
POLL_S = 0.1


class WorkerTasks:
    """Checks the tasks of a run's job: task slots, connections to the driver, and logs."""

    def __init__(self, spark: SparkBackend, tag: str, run: RunState) -> None:
        self._spark = spark
        self._tag = tag
        self._run = run
        self._wait = _SlotWait(spark)
        self._checked_s = 0.0  # the time of the last check
        self._num_lost = self._log_checks = 0
        self._has_logs = False

    def check(self) -> None:
        """Raise SlotsError if ranks have had no task for long and Spark is not starting one. Called often.

        An earlier stage of the job (a shuffle) can take any time before the workers start.
        """
        now_s = time.monotonic()
        if now_s - self._checked_s < CHECK_INTERVAL_S:
            return
        self._checked_s = now_s
        self._spark.check_alive()
        self._find_logs()
        absent = self._run.absent()
        if len(absent) == self._run.workers and not self._run.failures:
            # No worker has reached the driver. Spark would restart the tasks again and again, with the same result.
            for message in self._spark.failure_messages(self._tag):
                if (error := unreachable_driver(message)) is not None:
                    raise error
        if self._wait.is_too_long(bool(absent) and self.active() <= self._run.attempts):
            raise SlotsError(
                f"run: {self._run.workers} workers need a task slot each, and Spark at {self._spark.master} has "
                f"{self._spark.total_slots()}; ranks {absent} have had no slot for {self._wait.timeout_s:.0f} s"
            )

    def _find_logs(self) -> None:
        """Record the URLs of the executors' logs when all workers have tasks, and again after a task was lost."""
        num_lost = sum(self._run.attempts_lost.values())
        if num_lost != self._num_lost:
            self._num_lost, self._log_checks, self._has_logs = num_lost, 0, False
        if self._spark.is_local or self._has_logs or self._run.absent():
            return
        self._log_checks += 1
        if self._log_checks & (self._log_checks - 1):  # Spark can record tasks late: ask it at checks 1, 2, 4, 8, ...
            return
        urls = self._spark.log_urls(self._tag)
        self._run.log_urls.update(urls)
        self._has_logs = len(urls) == self._run.workers

    def wait_for_end(self, timeout_s: float) -> int:
        """Wait until no task of the job runs; return the number of tasks that still run after ``timeout_s``."""
        deadline_s = time.monotonic() + timeout_s
        while (running := self.active()) and time.monotonic() < deadline_s:
            sleep(POLL_S)
        return running

    def active(self) -> int:
        """Return the number of the job's running tasks."""
        return self._spark.running_jobs_and_tasks(self._tag)[1]


class CallbackJobs:
    """Checks the Spark jobs that ``onClock`` starts. If the workers use all slots, such a job would wait forever."""

    def __init__(self, spark: SparkBackend, tag: str, workers: int) -> None:
        self._spark = spark
        self._tag = tag
        self._workers = workers
        self._wait = _SlotWait(spark)

    def check(self) -> None:
        """Raise SlotsError if a job has had no task for long."""
        jobs, tasks = self._spark.running_jobs_and_tasks(self._tag)
        if self._wait.is_too_long(bool(jobs) and not tasks):
            raise SlotsError(
                f"run: onClock has started a Spark job that has had no task slot for {self._wait.timeout_s:.0f} s: the "
                f"{self._workers} workers keep their slots, and Spark at {self._spark.master} has "
                f"{self._spark.total_slots()}; give the run fewer workers, or do the job's work in the workers"
            )

    def cancel(self) -> None:
        if not self._spark.is_stopped():
            self._spark.cancel_jobs(self._tag)


class _SlotWait:
    """Measures for how long a task slot has been missing."""

    def __init__(self, spark: SparkBackend) -> None:
        self.timeout_s = START_TIMEOUT_S if spark.is_local else EXECUTOR_TIMEOUT_S
        self._since_s: float | None = None

    def is_too_long(self, is_missing: bool) -> bool:
        """Record whether a slot is missing now; return whether it has been missing for more than ``timeout_s``."""
        self._since_s = (self._since_s or time.monotonic()) if is_missing else None
        return self._since_s is not None and time.monotonic() - self._since_s > self.timeout_s


# The minimum time between two changes of the progress line.
INTERVAL_S = 0.2


class RunProgress:
    """Shows a run in a progress line. Not thread-safe."""

    def __init__(self, line: ShowProgress, run: RunState, options: RunOptions, spark: SparkBackend) -> None:
        self._line, self._run, self._options = line, run, options
        self._hide_bar = spark.progress_bar_hider()
        self._shown_s = 0.0
        self._began_s: float | None = None  # the first time at which a worker had finished a clock

    def show(self) -> None:
        """Show the run's present state, unless the last call was less than ``INTERVAL_S`` ago."""
        now_s = time.monotonic()
        if now_s - self._shown_s < INTERVAL_S:
            return
        self._shown_s = now_s
        self._hide_bar()
        applied = self._run.applied()
        if self._began_s is None and max(applied) > self._run.first:
            self._began_s = now_s
        if self._began_s is None:
            return
        newest = self._run.metrics[-1][1] if len(self._run.metrics) else None
        elapsed_s = now_s - self._began_s
        words = describe(applied, self._run.first, self._options.staleness, elapsed_s, newest)
        self._line(min(applied) - self._run.first, words)


def describe(
    applied: Sequence[int], first: int, staleness: int | None, seconds: float, newest: Logged | None
) -> list[str]:
    """Describe a run in several texts, the most important one first.

    ``applied`` is the first unfinished clock of each rank, and ``seconds`` the time since a worker finished a clock.
    """
    lowest, highest = min(applied), max(applied)
    slowest = applied.index(lowest)
    return [
        f"clock {lowest}",
        f"{count(len(applied), 'worker')}, {discipline(staleness)}",
        *([] if newest is None else [f"{newest.name} {newest.value:.6g}"]),
        *([f"{rounded((lowest - first) / seconds)} clocks/s"] if seconds >= 1 else []),
        *([f"rank {slowest} is {count(highest - lowest, 'clock')} behind"] if highest > lowest else []),
    ]
