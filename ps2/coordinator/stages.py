"""Finds the stages of a Spark application that are over. Servers and master then forget the ids of their requests.

A stage belongs to the jobs that need it. Spark numbers jobs and stages in the order in which it plans them. Spark
announces a job before the job starts. It announces a job's end before it plans another job that could need the same
stages. So a stage that is older than the newest known stage, and that belongs to no unfinished job, never runs again.
Later requests of that stage come from zombie tasks.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ps2.coordinator.master import Master
from ps2.errors import PS2Error
from ps2.guarded_loop import GuardedLoop
from ps2.rpc.control import ServerControl
from ps2.run.spark.backend import SparkBackend
from ps2.run.spark.classic import is_context_stopped

log = logging.getLogger(__name__)

POLL_INTERVAL_S = 2.0
# Maximum time that ``stop`` waits for the thread. A thread that waits for a silent server ends after that call.
STOP_TIMEOUT_S = 1.0
# Maximum number of stages without a known job that count as live; the oldest ones count as over.
UNKNOWN_STAGES = 1000
# A number above all stage numbers, which are Java ints: all stages are over.
NO_MORE_STAGES = 2**31 - 1


@dataclass(frozen=True)
class SparkJob:
    """A job as Spark describes it: its stages, and whether the job may still run them."""

    stages: frozenset[int]
    running: bool


@dataclass(frozen=True)
class FinishedStages:
    """All stages with a number below ``below`` are over, except the stages in ``live``."""

    below: int = 0
    live: frozenset[int] = frozenset()


class Stages:
    """The known stages of one application, from the job ``first_job`` on."""

    def __init__(self, first_job: int = 0) -> None:
        self._next_job = first_job
        self._running: dict[int, SparkJob] = {}
        self._below: int | None = None  # newest known stage + 1; None: no stage is known
        # Stages without a known job. They may run: a busy Spark drops the events that announce jobs.
        self._jobless: set[int] = set()

    def poll(self, get_job: Callable[[int], SparkJob | None], active: Callable[[], Sequence[int]]) -> FinishedStages:
        """Ask Spark for new and finished jobs, and return the stages that are over now.

        ``get_job`` returns a job by its number, or None if Spark does not know the job yet or has forgotten it.
        ``active`` returns the numbers of the running jobs.
        """
        # Ask about known jobs first. If a known job has ended, Spark already knows every later job that shares its
        # stages, and the loops below find that job.
        for number in list(self._running):
            self._record(number, get_job(number))
        while (job := get_job(self._next_job)) is not None:
            self._record(self._next_job, job)
            self._next_job += 1
        # Spark may have forgotten a job, or dropped its event: skip the missing number.
        newest = max(active(), default=-1)
        while self._next_job <= newest:
            self._record(self._next_job, get_job(self._next_job))
            self._next_job += 1
        live = frozenset(stage for job in self._running.values() for stage in job.stages)
        return FinishedStages(self._below or 0, live | self._jobless)

    def _record(self, number: int, job: SparkJob | None) -> None:
        if job is not None and job.stages:
            first = min(job.stages) if self._below is None else self._below
            self._below = max(first, max(job.stages) + 1)
            jobless = self._jobless.union(range(first, self._below)) - job.stages
            self._jobless = set(sorted(jobless)[-UNKNOWN_STAGES:])
        if job is not None and job.running:
            self._running[number] = job
        else:
            self._running.pop(number, None)


class StageWatch:
    """Polls Spark, and informs the servers and the master. It has its own thread, because each of them may hang."""

    def __init__(self, spark: SparkBackend, tracker: Any, series: str, master: Master, servers: ServerControl) -> None:
        """Start to watch. ``series`` names the application in the ids of its tasks' requests."""
        self._spark = spark
        self._tracker = tracker
        self._series = series
        self._master = master
        self._servers = servers
        # Begin with the oldest job that Spark remembers. Older jobs finished before the fleet existed.
        jobs = [*self._tracker.getJobIdsForGroup(), *self._tracker.getActiveJobsIds()]
        self._stages = Stages(min(jobs, default=0))
        self._informed: dict[str, FinishedStages] = {}  # by server id: a replacement server is informed, too
        self._master_informed = FinishedStages()
        self._all_informed = False  # True: the master and all servers know that the application is over
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ps2-stages", daemon=True)
        self._thread.start()

    def watches(self, spark: SparkBackend) -> bool:
        return self._spark == spark

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(STOP_TIMEOUT_S)

    def _watch(self) -> None:
        loop = GuardedLoop("ps2-stages")
        while not (self._all_informed or self._stopping.wait(POLL_INTERVAL_S)):
            loop.run_once(self._poll)

    def _poll(self) -> None:
        finished = self._finished_stages()
        if finished is not None and self._inform(finished):
            self._all_informed = finished.below == NO_MORE_STAGES

    def _finished_stages(self) -> FinishedStages | None:
        """Return the stages that are over; None if Spark does not answer."""
        from py4j.protocol import Py4JError

        try:
            if is_context_stopped(self._spark.context):
                return FinishedStages(NO_MORE_STAGES)
            return self._stages.poll(self._ask, self._tracker.getActiveJobsIds)
        except (Py4JError, OSError) as error:  # the application is stopping, or has finished
            log.debug("asking Spark for its jobs: %s", error)
            return None

    def _ask(self, number: int) -> SparkJob | None:
        job = self._tracker.getJobInfo(number)
        if job is None:
            return None
        return SparkJob(frozenset(job.stageIds), job.status in ("RUNNING", "UNKNOWN"))

    def _inform(self, finished: FinishedStages) -> bool:
        """Inform the servers and the master that have not been informed yet; return True if all of them know now."""
        present = self._master.registry.present()
        self._informed = {id: informed for id, informed in self._informed.items() if id in present}
        for id, address in present.items():
            if self._informed.get(id, FinishedStages()) == finished:
                continue
            try:
                self._servers.end_stages(address, self._series, finished.below, sorted(finished.live))
                self._informed[id] = finished
            except PS2Error as error:
                log.debug("informing %s of finished stages: %s", address, error)
        if any(self._informed.get(id, FinishedStages()) != finished for id in present):
            return False
        # Inform the master last. It then reuses freed rows, so every server must already reject writes of zombie tasks.
        if self._master_informed != finished:
            self._master.end_stages(self._series, finished.below, sorted(finished.live))
            self._master_informed = finished
        return True
