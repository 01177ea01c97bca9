"""What Spark tells of the tasks of a run: whether any is on its way, and why it gave up."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ps2.coordinator.slots import total_slots
from ps2.errors import ConfigError, SlotsError, UnreachableError
from ps2.interrupts import sleep
from ps2.run.state import Run

# A rank has no task, and none is on its way.
START_TIMEOUT_S = 30.0
# The same, where Spark may have to get executors first.
EXECUTOR_TIMEOUT_S = 120.0
# Spark's listeners may tell late.
LOOK_S = 1.0
POLL_S = 0.1
MOST_TASKS = 2**31 - 1
# Of what Spark says.
MAX_CHARS = 300
CANCELLED = re.compile(
    r"^: org\.apache\.spark\.SparkException: (?:\[\w+\] )?(Job \d+ cancelled.*?)(?: SQLSTATE: \w+)?$", re.MULTILINE
)
# Between the traceback of an error and that of the one that it led to.
LED_TO = re.compile(
    r"\n\n(?:The above exception was the direct cause of the following exception|"
    r"During handling of the above exception, another exception occurred):\n\n\Z"
)
RAISED = re.compile(r"^Traceback .*\n(?:[ \t].*\n)*(\S.*)", re.MULTILINE)
UNREACHED = re.compile(rf"^{UnreachableError.__module__}\.{UnreachableError.__name__}: (.*)", re.MULTILINE)


class Tasks:
    """The tasks of one run, as Spark tells of them."""

    def __init__(self, spark_context: Any, tag: str, run: Run) -> None:
        self._spark = spark_context
        self._tag = tag
        self._run = run
        self._since_s: float | None = None
        self._looked_s = 0.0

    def check(self) -> None:
        """Raise SlotsError if ranks have had no task for long, and none is on its way.

        An earlier stage of the job (a shuffle) may run for as long as it likes before the workers start.
        """
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        absent = self._run.absent()
        if len(absent) == self._run.workers and not self._run.failures:
            self._check_reach()
        if not absent or self.active() > self._run.attempts:
            self._since_s = None
            return
        self._since_s = self._since_s or now_s
        timeout_s = _patience_s(self._spark)
        if now_s - self._since_s > timeout_s:
            raise SlotsError(
                f"run: {self._run.workers} workers need a task slot each, and Spark at {self._spark.master} has "
                f"{total_slots(self._spark)}; ranks {absent} have had none for {timeout_s:.0f} s"
            )

    def _check_reach(self) -> None:
        """Raise ConfigError if a worker has ended as it could not reach the run, and no other has reached it either.

        Spark would start it again and again, with the same end.
        """
        for said in failures(self._spark, self._tag):
            if (error := not_reached(said)) is not None:
                raise error

    def wait_for_end(self, timeout_s: float) -> int:
        """Wait until no task runs any more; return how many still do."""
        deadline_s = time.monotonic() + timeout_s
        while (left := self.active()) and time.monotonic() < deadline_s:
            sleep(POLL_S)
        return left

    def active(self) -> int:
        """Return how many tasks of the job run now."""
        return jobs_and_tasks(self._spark, self._tag)[1]


class CallJobs:
    """The Spark jobs that ``onClock`` starts: where the workers have all slots, they would wait for ever."""

    def __init__(self, spark_context: Any, tag: str, workers: int) -> None:
        self._spark = spark_context
        self._tag = tag
        self._workers = workers
        self._since_s: float | None = None

    @contextmanager
    def marked(self) -> Iterator[None]:
        """Count the jobs that this thread starts meanwhile."""
        # Threads of pyspark.ml's validators share one object of local properties; the tag is for this thread alone.
        scala_context = self._spark._jsc.sc()
        scala_context.setLocalProperties(scala_context.getLocalProperties().clone())
        self._spark.addJobTag(self._tag)
        try:
            yield
        finally:
            if not is_stopped(self._spark):
                self._spark.removeJobTag(self._tag)

    def check(self) -> None:
        """Raise SlotsError if a job has had no task for long."""
        jobs, tasks = jobs_and_tasks(self._spark, self._tag)
        if not jobs or tasks:
            self._since_s = None
            return
        now_s = time.monotonic()
        self._since_s = self._since_s or now_s
        timeout_s = _patience_s(self._spark)
        if now_s - self._since_s > timeout_s:
            raise SlotsError(
                f"run: onClock has started a Spark job that has had no task slot for {timeout_s:.0f} s: the "
                f"{self._workers} workers keep theirs, and Spark at {self._spark.master} has "
                f"{total_slots(self._spark)}; give the run fewer workers, or do it in the workers"
            )

    def cancel(self) -> None:
        if not is_stopped(self._spark):
            self._spark.cancelJobsWithTag(self._tag)


def jobs_and_tasks(spark_context: Any, tag: str) -> tuple[int, int]:
    """Return how many jobs with a tag are under way, and how many tasks of theirs run now."""
    from py4j.protocol import Py4JError

    try:
        if is_stopped(spark_context):
            return 0, 0
        scala_context, tracker = spark_context._jsc.sc(), spark_context.statusTracker()
        found = [tracker.getJobInfo(job) for job in scala_context.statusTracker().getJobIdsForTag(tag)]
        jobs = [job for job in found if job is not None and job.status == "RUNNING"]
        stages = [tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds]
        # Of the scheduler: the tracker's count may be as old as the stage's last event.
        scheduler = scala_context.taskScheduler()
        sets = [scheduler.taskSetManagerForAttempt(s.stageId, s.currentAttemptId) for s in stages if s is not None]
        return len(jobs), sum(tasks.get().runningTasks() for tasks in sets if tasks.isDefined())
    except (Py4JError, OSError):  # it is stopping
        if is_stopped(spark_context):
            return 0, 0
        raise


def _patience_s(spark_context: Any) -> float:
    return START_TIMEOUT_S if spark_context._jsc.sc().isLocal() else EXECUTOR_TIMEOUT_S


def is_stopped(spark_context: Any) -> bool:
    """Tell whether a SparkContext is stopped, or gone with its Java process.

    The first question after a Ctrl-C in a call of Spark's may fail on the connection that this has cut; py4j has
    another one for the second question.
    """
    from py4j.protocol import Py4JError

    def ask() -> bool:
        return spark_context._jsc is None or bool(spark_context._jsc.sc().isStopped())

    with suppress(Py4JError, OSError):
        return ask()
    try:
        return ask()
    except (Py4JError, OSError):
        return True


def cancelled(error: Exception | None) -> str | None:
    """Return what Spark says of a job that somebody has cancelled: by its group or tag, or on Spark's web page."""
    found = CANCELLED.search(str(error))
    return found[1] if found else None


def said_by_spark(error: Exception | None) -> tuple[int | None, str]:
    """Return which task Spark gave up for, if it says so, and what it says, in a line."""
    text = str(error)
    found = re.search(r"Job aborted due to stage failure: [^\n]*", text)
    words = found[0] if found else " ".join(text.split("\n")[:2])
    # Where a worker could not even start, such as without NumPy, what its Python says is all there is.
    if raised := outermost(text):
        words = f"{words[: max(0, MAX_CHARS - len(raised) - 1)]} {raised}"
    task = re.search(r"Task (\d+) in stage \S+ failed", words)
    return int(task[1]) if task else None, words[:MAX_CHARS]


def outermost(text: str) -> str | None:
    """Return the line of the error that a text's first traceback ends in, after all those that led to it."""
    last, text = None, text[max(0, text.find("Traceback")) :]
    for found in RAISED.finditer(text):
        if last is not None and not LED_TO.search(text[last.end() : found.start()]):
            break
        last = found
    return last[1] if last else None


def not_reached(said: str) -> ConfigError | None:
    """Return the error of a run whose worker said that it could not reach it; None: it did not say so."""
    found = UNREACHED.search(said)
    return ConfigError(f"run: {found[1]}") if found else None


def failures(spark_context: Any, tag: str) -> list[str]:
    """Return what Spark says of tasks that have failed, of jobs with a tag that are under way."""
    from py4j.protocol import Py4JError

    said = []
    try:
        if is_stopped(spark_context):
            return []
        scala_context, tracker = spark_context._jsc.sc(), spark_context.statusTracker()
        found = [tracker.getJobInfo(job) for job in scala_context.statusTracker().getJobIdsForTag(tag)]
        for stage in (stage for job in found if job is not None for stage in job.stageIds):
            info = tracker.getStageInfo(stage)
            if info is None or not info.numFailedTasks:
                continue
            tasks = scala_context.statusStore().taskList(stage, info.currentAttemptId, MOST_TASKS)
            messages = [tasks.apply(at).errorMessage() for at in range(tasks.size())]
            said += [message.get() for message in messages if message.isDefined()]
    except (Py4JError, OSError):  # it is stopping
        if not is_stopped(spark_context):
            raise
    return said
