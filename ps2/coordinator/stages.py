"""Which stages of a Spark application are over, so that nobody has to remember what their tasks have asked for.

A stage belongs to the jobs that need it. Spark numbers jobs and stages in the order in which it plans them, tells of a
job before it starts, and of its end before it plans what could need the job's stages again. So a stage that is older
than the newest one known, and that no unfinished job has, never runs again; what still comes of it is a zombie's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ps2.coordinator.master import Master
from ps2.coordinator.turns import Turns
from ps2.errors import PS2Error
from ps2.rpc.control import ServerControl

log = logging.getLogger(__name__)

POLL_INTERVAL_S = 2.0
# It may be asking a server that does not answer; it ends by itself then.
STOP_TIMEOUT_S = 1.0
# Stages that no job is known to have: at most so many are taken for live.
UNKNOWN_STAGES = 1000
# Spark counts stages by Java's int.
NO_MORE_STAGES = 2**31 - 1


@dataclass(frozen=True)
class SparkJob:
    """What Spark tells of a job: the stages that it needs, and whether it may still run them."""

    stages: frozenset[int]
    running: bool


@dataclass(frozen=True)
class Over:
    """All stages below a number are over, save the live ones."""

    below: int = 0
    live: frozenset[int] = frozenset()


class Stages:
    """What is known of the stages of one application, from a job on."""

    def __init__(self, first_job: int = 0) -> None:
        self._next_job = first_job
        self._running: dict[int, SparkJob] = {}
        self._below: int | None = None
        # No job was seen to have them. Spark drops what it tells when it is too busy, so one may run.
        self._unknown: set[int] = set()

    def look(self, ask: Callable[[int], SparkJob | None], active: Callable[[], Sequence[int]]) -> Over:
        """Bring the knowledge up to date, and return what is over now.

        Args:
            ask: tells of a job by its number; None for one that is not known, not yet or no more.
            active: tells the numbers of the jobs that run now.
        """
        # Those known first: a job that shares a stage with one that has ended is known by now, and is found below.
        for number in list(self._running):
            self._note(number, ask(number))
        while (job := ask(self._next_job)) is not None:
            self._note(self._next_job, job)
            self._next_job += 1
        # Spark may have forgotten a job, or not have told of it: go on after the gap.
        newest = max(active(), default=-1)
        while self._next_job <= newest:
            self._note(self._next_job, ask(self._next_job))
            self._next_job += 1
        live = frozenset(stage for job in self._running.values() for stage in job.stages)
        return Over(self._below or 0, live | self._unknown)

    def _note(self, number: int, job: SparkJob | None) -> None:
        if job is not None and job.stages:
            known = min(job.stages) if self._below is None else self._below
            self._below = max(known, max(job.stages) + 1)
            unknown = self._unknown.union(range(known, self._below)) - job.stages
            self._unknown = set(sorted(unknown)[-UNKNOWN_STAGES:])
        if job is not None and job.running:
            self._running[number] = job
        else:
            self._running.pop(number, None)


class StageWatch:
    """Asks Spark every now and then, and tells the servers and the master; by a thread, as any of them may hang."""

    def __init__(self, spark_context: Any, series: str, master: Master, servers: ServerControl) -> None:
        """Args:
        spark_context: whose stages; when it is stopped, all of them are over.
        series: by which the ids of its tasks name it.
        """
        self._spark = spark_context
        self._tracker = spark_context.statusTracker()
        self._series = series
        self._master = master
        self._servers = servers
        # Spark may have forgotten its first jobs; those that have ended cannot have asked for anything of ours.
        jobs = [*self._tracker.getJobIdsForGroup(), *self._tracker.getActiveJobsIds()]
        self._stages = Stages(min(jobs, default=0))
        self._told: dict[str, Over] = {}  # by server id: one that was replaced has to be told too
        self._master_told = Over()
        self._all_told = False  # that there is nothing more to come
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ps2-stages", daemon=True)
        self._thread.start()

    def watches(self, spark_context: Any) -> bool:
        return self._spark is spark_context

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(STOP_TIMEOUT_S)

    def _watch(self) -> None:
        turns = Turns("ps2-stages")
        while not (self._all_told or self._stopping.wait(POLL_INTERVAL_S)):
            turns.take(self._look_and_tell)

    def _look_and_tell(self) -> None:
        over = self._look()
        if over is not None and self._tell(over):
            self._all_told = over.below == NO_MORE_STAGES

    def _look(self) -> Over | None:
        """Return what is over; None if Spark does not answer."""
        from py4j.protocol import Py4JError

        try:
            jsc = self._spark._jsc
            if jsc is None or jsc.sc().isStopped():
                return Over(NO_MORE_STAGES)
            return self._stages.look(self._ask, self._tracker.getActiveJobsIds)
        except (Py4JError, OSError) as error:  # it is stopping, or gone
            log.debug("asking Spark for its jobs: %s", error)
            return None

    def _ask(self, number: int) -> SparkJob | None:
        job = self._tracker.getJobInfo(number)
        if job is None:
            return None
        return SparkJob(frozenset(job.stageIds), job.status in ("RUNNING", "UNKNOWN"))

    def _tell(self, over: Over) -> bool:
        """Tell whom it is news for; return whether everybody knows it now."""
        present = self._master.roster.present()
        self._told = {id: told for id, told in self._told.items() if id in present}
        for id, address in present.items():
            if self._told.get(id, Over()) == over:
                continue
            try:
                self._servers.end_stages(address, self._series, over.below, sorted(over.live))
                self._told[id] = over
            except PS2Error as error:
                log.debug("telling %s which stages are over: %s", address, error)
        if any(self._told.get(id, Over()) != over for id in present):
            return False
        # Last: what it takes back may be handed out again, and no server may still take a zombie's writes to it.
        if self._master_told != over:
            self._master.end_stages(self._series, over.below, sorted(over.live))
            self._master_told = over
        return True
