"""Mutation ids, by which servers apply each change once: of a Spark task, a worker of a run, or this process."""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from ps2.client.fleet import FleetRef, fleet_of, series_of, unseal
from ps2.errors import UsageError
from ps2.protocol.messages import RequestId

# Spark passes the environment of a Python function to the workers that run it, whichever thread submits the job. A
# local property would belong to one thread, and Spark writes local properties into its event log. Spark has a daemon of
# Python workers for each environment, so this variable is the same for all contexts.
ACCESS_VARIABLE = "PS2_TASK_ACCESS"
# Local property: the fleet of the active context, without secrets, for tasks whose closure has no handle.
FLEET_PROPERTY = "ps2.fleet"
# Local property: ids of the fleets whose contexts were stopped, so that a task of an older closure fails at once.
STOPPED_PROPERTY = "ps2.stopped"
# Local property: the number of the fleet's rollbacks to a checkpoint when the job was submitted.
EPOCH_PROPERTY = "ps2.epoch"
# A client of Spark Connect can set neither environment nor local properties. Files of its session have the same
# content; the file whose name sorts last is used. The epoch, which belongs to a job, is in a tag of the job.
TASK_FILES = "ps2-given-*.json"
EPOCH_TAG = "ps2-epoch-"
TAGS_PROPERTY = "spark.job.tags"
TAG = re.compile(rf"_Tag_{EPOCH_TAG}(\d+)(?:,|$)")


def task_context() -> Any | None:
    """Return pyspark's TaskContext inside a task, else None. Never imports pyspark itself."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark import TaskContext

    return TaskContext.get()


def is_later_attempt() -> bool:
    """Return True in a task that Spark has attempted before."""
    context = task_context()
    return context is not None and context.attemptNumber() > 0


def task_access() -> str | None:
    """Return the access to fleets that the driver passed to this task; None outside a task."""
    if task_context() is None:
        return None
    return os.environ.get(ACCESS_VARIABLE) or _task_file().access


def task_fleet() -> FleetRef | None:
    """Return the fleet of the first handle in this task's closure, or else of the thread that submitted the task.

    None outside a task, and if that thread has no fleet.
    """
    context = task_context()
    if context is None:
        return None
    if _function.attempt == context.taskAttemptId() and _function.fleet is not None:
        return _function.fleet
    text = context.getLocalProperty(FLEET_PROPERTY) or _task_file().fleet
    return fleet_of(text) if text else None


def stopped_fleets() -> list[str]:
    """Return the ids of the fleets that this task knows to be stopped."""
    context = task_context()
    if context is None:
        return []
    stopped = context.getLocalProperty(STOPPED_PROPERTY)
    return stopped.split() if stopped else _task_file().stopped


def task_epoch() -> int | None:
    """Return the fleet's rollback count at the submission of this task's job; None outside a task."""
    context = task_context()
    if context is None:
        return None
    epoch = context.getLocalProperty(EPOCH_PROPERTY)
    if epoch is None and (tag := TAG.search(context.getLocalProperty(TAGS_PROPERTY) or "")):
        epoch = tag[1]
    return int(epoch or 0)


@dataclass(frozen=True)
class _TaskFile:
    """The values that a client of Spark Connect passes to its tasks: those of ``ACCESS_VARIABLE`` and properties."""

    attempt: int | None = None
    access: str | None = field(default=None, repr=False)
    fleet: str | None = None
    stopped: list[str] = field(default_factory=list)


def write_task_file(folder: Path, access: str, fleet: str | None, stopped: Sequence[str]) -> Path:
    """Write the values for tasks of a session to a new file in a folder. Its name sorts after those of older files."""
    file = folder / TASK_FILES.replace("*", f"{time.time_ns():020}")
    file.touch(mode=0o600)
    file.write_text(json.dumps({"access": access, "fleet": fleet, "stopped": list(stopped)}))
    return file


_newest_task_file = _TaskFile()


def _task_file() -> _TaskFile:
    """Return the driver's settings for this task from a file; empty unless the driver is a client of Spark Connect."""
    global _newest_task_file
    context = task_context()
    if context is None or ACCESS_VARIABLE in os.environ:
        return _TaskFile()
    if _newest_task_file.attempt != context.taskAttemptId():
        folder = shipped_folder()
        files = sorted(Path(folder).glob(TASK_FILES)) if folder is not None else []
        content = json.loads(files[-1].read_text()) if files else {}
        _newest_task_file = _TaskFile(context.taskAttemptId(), **content)
    return _newest_task_file


def shipped_folder() -> str | None:
    """Return the folder on this host where Spark puts the files that it ships; None outside a task."""
    if task_context() is None:
        return None
    from pyspark import SparkFiles

    return os.path.abspath(SparkFiles.getRootDirectory())


@dataclass
class _Function:
    """The function that this worker runs for a task. Its name is that of the first handle in its closure, or in use.

    Two Python workers may run in one task (a DataFrame's function, then an RDD's), and must not share mutation ids. A
    pickled copy of a handle has its own name, which is the same in all attempts.
    """

    attempt: int | None = None
    name: str = ""
    fleet: FleetRef | None = None


_function = _Function()


def note_unpickled(copy: str, fleet: FleetRef | None = None) -> None:
    """Record that a copy of a handle was unpickled in this process.

    Only handles of the closure name the function: a reused worker can have a broadcast handle of an earlier task.
    """
    if task_context() is not None and _is_reading_closure():
        note_used(copy, fleet)


def note_used(copy: str, fleet: FleetRef | None = None) -> None:
    """Record that a copy of a handle is used in this process; "": the handle was never pickled."""
    context = task_context()
    if copy and context is not None and context.taskAttemptId() != _function.attempt:
        _function.attempt, _function.name, _function.fleet = context.taskAttemptId(), copy, fleet


def _is_reading_closure() -> bool:
    """Return True while pyspark's worker unpickles the function that a task runs."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "read_command" and frame.f_globals.get("__name__", "").startswith("pyspark."):
            return True
        frame = frame.f_back
    return False


# Bits of a mutation's number within one phase.
PHASE_BITS = 20


@dataclass
class RunIds:
    """Numbers the mutations of one worker of a run, by phase and then in order, so that a retry repeats the ids.

    Attributes:
        series: the fleet's series of runs.
        phase: 2 * t before clock t, and 2 * t + 1 in clock t.
        settled: mutations of phases below this phase are never repeated.
        epoch: the fleet's rollback count when the worker was last told its position.
        seen: the rollback count that the worker's reads reflect. If it exceeds ``epoch``, the current clock will be
            redone, and its changes are discarded.
        number: the number of the next mutation in this phase.
    """

    series: str
    run: int
    rank: int
    phase: int = 0
    settled: int = 0
    epoch: int = 0
    seen: int = 0
    number: int = 0

    @property
    def clock(self) -> int:
        """The clock that current mutations belong to."""
        return self.phase // 2

    def enter(self, phase: int, number: int = 0) -> None:
        """Begin a phase, or continue it at a mutation number."""
        self.phase, self.number = phase, number

    def next(self) -> RequestId:
        number, self.number = self.number, self.number + 1
        if number >> PHASE_BITS:
            raise UsageError(f"a worker may change vectors at most {1 << PHASE_BITS} times per clock")
        return RequestId(
            f"{self.series}/{self.run}/{self.rank}",
            (self.phase << PHASE_BITS) + number,
            settled=self.settled << PHASE_BITS,
            series=self.series,
            stage=self.run,
        )


@dataclass
class MutationIds:
    """Hands out mutation ids.

    In a run: see ``RunIds``. In another task, an id is (fleet, Spark application, stage, rdd_partition, function) and
    the index of the mutation in this attempt, so that a retried or speculative attempt of the task or its stage repeats
    the ids. In other processes, an id is the session and a counter.
    """

    fleet: str
    run: RunIds | None = None
    session: str = field(default_factory=lambda: f"session/{uuid.uuid4().hex}")
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _in_flight: set[int] = field(default_factory=set)
    _attempt: int | None = None
    _attempt_numbers: itertools.count[int] = field(default_factory=itertools.count)

    def next(self) -> RequestId:
        context = task_context()
        with self._lock:
            if self.run is not None:
                return self.run.next()
            if context is None:
                number = next(self._numbers)
                self._in_flight.add(number)
                return RequestId(self.session, number, settled=min(self._in_flight))
            if context.taskAttemptId() != self._attempt:
                self._attempt = context.taskAttemptId()
                self._attempt_numbers = itertools.count()
            function = _function.name if _function.attempt == self._attempt else ""
            series, stage = _series(self.fleet), context.stageId()
            scope = f"{series}/{stage}/{context.partitionId()}/{function}"
            return RequestId(scope, next(self._attempt_numbers), series=series, stage=stage)

    def unnumbered(self) -> RequestId | None:
        """Return an id that names this task's stage or run but is not one of its mutations; None outside a task."""
        context = task_context()
        if context is None:
            return None
        if self.run is not None:
            return RequestId(f"{self.run.series}/{self.run.run}", 0, series=self.run.series, stage=self.run.run)
        series, stage = _series(self.fleet), context.stageId()
        return RequestId(f"{series}/{stage}", 0, series=series, stage=stage)

    @property
    def holder(self) -> str:
        """The holder of handles created now: this attempt of a task, or this session."""
        context = task_context()
        return self.session if context is None else f"{_series(self.fleet)}/attempt/{context.taskAttemptId()}"

    def done(self, id: RequestId) -> None:
        """Record that a mutation was answered or abandoned. Ids of tasks stay: the next attempt may repeat them."""
        if id.scope == self.session:
            with self._lock:
                self._in_flight.discard(id.number)


def _series(fleet: str) -> str:
    """Return the id prefix of the current task's stages, which differs between Spark applications."""
    text = task_access()
    return fleet if text is None else series_of(fleet, unseal(text).application)
