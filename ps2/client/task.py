"""Who is calling: the identity of a Spark task, or of this process (exactly once, DESIGN section 6)."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import uuid
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from ps2.client.fleet import unseal
from ps2.errors import UsageError
from ps2.protocol.messages import RequestId

# Spark hands the environment of a Python function to the workers that run it, whichever thread submits the job; a local
# property would belong to one thread, and Spark writes those into its event log.
FLEET_VARIABLE = "PS2_TASK_FLEET"
# Local property: ids of the fleets whose contexts were stopped. A task of an older closure fails at once then.
STOPPED_PROPERTY = "ps2.stopped"
# Local property: how often the fleet had gone back to a checkpoint when the job was submitted.
EPOCH_PROPERTY = "ps2.epoch"


def task_context() -> Any | None:
    """Return pyspark's TaskContext inside a task, else None; never imports pyspark where it is not loaded."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark import TaskContext

    return TaskContext.get()


def is_later_attempt() -> bool:
    """Tell whether this is a task that Spark has tried before."""
    context = task_context()
    return context is not None and context.attemptNumber() > 0


def task_fleet() -> str | None:
    """Return what the driver handed to this task about its fleet."""
    return None if task_context() is None else os.environ.get(FLEET_VARIABLE)


def stopped_fleets() -> list[str]:
    """Return the ids of the fleets that this task knows to be stopped."""
    context = task_context()
    stopped = None if context is None else context.getLocalProperty(STOPPED_PROPERTY)
    return stopped.split() if stopped else []


def task_epoch() -> int | None:
    """Return how often the fleet had gone back to a checkpoint when this task's job was submitted; None in no task."""
    context = task_context()
    return None if context is None else int(context.getLocalProperty(EPOCH_PROPERTY) or 0)


def shipped_folder() -> str | None:
    """Return the folder of this task's host in which Spark puts the files that it ships; None in no task."""
    if task_context() is None:
        return None
    from pyspark import SparkFiles

    return os.path.abspath(SparkFiles.getRootDirectory())


@dataclass
class _Function:
    """Which function this worker runs for a task: named by the first handle of its closure, else the first it uses.

    Two Python workers may run in one task (a DataFrame's function, then an RDD's); they must not share ids. A handle's
    copy is named when it is pickled, so all attempts see the same name.
    """

    attempt: int | None = None
    name: str = ""


_function = _Function()


def note_unpickled(copy: str) -> None:
    """Note that a copy of a handle was unpickled here.

    One that is not of the closure names nothing: a worker that is used again has a broadcast's from an earlier task.
    """
    if task_context() is not None and _is_reading_closure():
        note_used(copy)


def note_used(copy: str) -> None:
    """Note that a copy of a handle is used here; "" was never pickled."""
    context = task_context()
    if copy and context is not None and context.taskAttemptId() != _function.attempt:
        _function.attempt, _function.name = context.taskAttemptId(), copy


def _is_reading_closure() -> bool:
    """Tell whether pyspark's worker is just unpickling the function that a task runs."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "read_command" and frame.f_globals.get("__name__", "").startswith("pyspark."):
            return True
        frame = frame.f_back
    return False


# Mutations that a worker may make in one phase.
PHASE_BITS = 20


@dataclass
class RunIds:
    """Numbers the mutations of one worker of a run: by phase, then in order, so that a later attempt asks for the same.

    Attributes:
        series: fleet, and that these are runs.
        run: which one; it is over when all have returned.
        phase: 2 t before clock t, 2 t + 1 in it.
        settled: no mutation of an earlier phase ever comes again.
        epoch: how often the fleet had gone back to a checkpoint when the worker was last told where it stands.
        seen: the same, of what it reads; if that is more, its clock will be done again, and its changes are dropped.
        number: of the next mutation in this phase.
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
        """The clock that what is done now belongs to."""
        return self.phase // 2

    def enter(self, phase: int, number: int = 0) -> None:
        """Begin a phase, or go on in it with a mutation of some number."""
        self.phase, self.number = phase, number

    def next(self) -> RequestId:
        number, self.number = self.number, self.number + 1
        if number >> PHASE_BITS:
            raise UsageError(f"a worker changes vectors at most {1 << PHASE_BITS} times in a clock")
        return RequestId(
            f"{self.series}/{self.run}/{self.rank}",
            (self.phase << PHASE_BITS) + number,
            settled=self.settled << PHASE_BITS,
            series=self.series,
            stage=self.run,
        )


@dataclass
class MutationIds:
    """Hands out the ids of mutations.

    In a run: see ``RunIds``. In another task: (fleet, Spark application, stage, rdd_partition, function) and the
    how-manieth mutation of this attempt, so that a retried or speculative attempt, of the task or of its stage, asks
    for the same ids. Elsewhere: this session and a counter.
    """

    fleet: str
    run: RunIds | None = None
    session: str = field(default_factory=lambda: f"session/{uuid.uuid4().hex}")
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _under_way: set[int] = field(default_factory=set)
    _attempt: int | None = None
    _attempt_numbers: itertools.count[int] = field(default_factory=itertools.count)

    def next(self) -> RequestId:
        context = task_context()
        with self._lock:
            if self.run is not None:
                return self.run.next()
            if context is None:
                number = next(self._numbers)
                self._under_way.add(number)
                return RequestId(self.session, number, settled=min(self._under_way))
            if context.taskAttemptId() != self._attempt:
                self._attempt = context.taskAttemptId()
                self._attempt_numbers = itertools.count()
            function = _function.name if _function.attempt == self._attempt else ""
            series, stage = _series(self.fleet), context.stageId()
            scope = f"{series}/{stage}/{context.partitionId()}/{function}"
            return RequestId(scope, next(self._attempt_numbers), series=series, stage=stage)

    def unnumbered(self) -> RequestId | None:
        """Return what names this task's stage, or run, without being one of its mutations; None outside a task."""
        context = task_context()
        if context is None:
            return None
        if self.run is not None:
            return RequestId(f"{self.run.series}/{self.run.run}", 0, series=self.run.series, stage=self.run.run)
        series, stage = _series(self.fleet), context.stageId()
        return RequestId(f"{series}/{stage}", 0, series=series, stage=stage)

    @property
    def holder(self) -> str:
        """Who holds the handles made now: this attempt of a task, or this session."""
        context = task_context()
        return self.session if context is None else f"{_series(self.fleet)}/attempt/{context.taskAttemptId()}"

    def done(self, id: RequestId) -> None:
        """Note that a mutation has been answered, or given up. One of a task may come again with the next attempt."""
        if id.scope == self.session:
            with self._lock:
                self._under_way.discard(id.number)


def _series(fleet: str) -> str:
    """Return whose stages the current task counts: stages of another Spark application have the same numbers."""
    text = task_fleet()
    return fleet if text is None else unseal(text).series
