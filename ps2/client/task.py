"""Mutation ids, by which servers apply each change once, in Spark tasks, workers of ``ps.run`` and other processes."""

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

from ps2.client.fleet import FleetRef, mutation_id_prefix, parse_fleet, unseal
from ps2.errors import UsageError
from ps2.protocol.messages import RequestId

# Environment variable: the secrets of a task (``Access``). Spark passes the environment of a Python function to the
# workers that run it, whichever thread submits the job. A local property would belong to one thread, and Spark writes
# local properties into its event log. The value is the same for all contexts of a driver, because Spark starts a daemon
# of Python workers for each different environment.
ACCESS_VARIABLE = "PS2_TASK_ACCESS"
# Local property: the fleet of the active context, without secrets. Tasks without a handle in their closure need it.
FLEET_PROPERTY = "ps2.fleet"
# Local property: ids of the fleets of stopped contexts. A task with a handle of such a fleet fails at once.
STOPPED_PROPERTY = "ps2.stopped"
# Local property: the number of the fleet's rollbacks to a checkpoint when the job was submitted.
EPOCH_PROPERTY = "ps2.epoch"
# A client of Spark Connect can set neither the environment nor local properties. It adds files with the same content to
# its session; tasks read the file whose name sorts last. The epoch belongs to a job, so it is in a tag of the job.
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
    """Return True in a task attempt after the first."""
    context = task_context()
    return context is not None and context.attemptNumber() > 0


def task_access() -> str | None:
    """Return the secrets that the driver passed to this task, for ``unseal``; None outside a task."""
    if task_context() is None:
        return None
    return os.environ.get(ACCESS_VARIABLE) or _task_file().access


def task_fleet() -> FleetRef | None:
    """Return the fleet of the first handle in this task's closure. Without a handle, that of the submitting thread.

    Returns None outside a task, and if the submitting thread has no fleet.
    """
    context = task_context()
    if context is None:
        return None
    if _function.attempt == context.taskAttemptId() and _function.fleet is not None:
        return _function.fleet
    text = context.getLocalProperty(FLEET_PROPERTY) or _task_file().fleet
    return parse_fleet(text) if text else None


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
    """What a client of Spark Connect passes to its tasks in a file: the access, the fleet and the stopped fleets."""

    attempt: int | None = None
    access: str | None = field(default=None, repr=False)
    fleet: str | None = None
    stopped: list[str] = field(default_factory=list)


def write_task_file(folder: Path, access: str, fleet: str | None, stopped: Sequence[str]) -> Path:
    """Write the values for the tasks of a Spark session to a new file in a folder. Its name sorts after older names."""
    file = folder / TASK_FILES.replace("*", f"{time.time_ns():020}")
    file.touch(mode=0o600)
    file.write_text(json.dumps({"access": access, "fleet": fleet, "stopped": list(stopped)}))
    return file


_newest_task_file = _TaskFile()


def _task_file() -> _TaskFile:
    """Return the values for this task from the newest file; no values if the driver is not a Spark Connect client."""
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
    """Return the folder on this host of the files that Spark sends to tasks (``SparkFiles``); None outside a task."""
    if task_context() is None:
        return None
    from pyspark import SparkFiles

    return os.path.abspath(SparkFiles.getRootDirectory())


@dataclass
class _Function:
    """The user's function that this Python worker runs for a task.

    One task may run two Python workers (a DataFrame's function, then an RDD's), and these must not share mutation ids.
    So ids contain the function's name: the id of the first pickled handle that its closure contains, or that it uses.
    This id is the same in all attempts.

    Attributes:
        attempt: the id of the task attempt that the name belongs to.
    """

    attempt: int | None = None
    name: str = ""
    fleet: FleetRef | None = None


_function = _Function()


def record_unpickled(copy: str, fleet: FleetRef | None = None) -> None:
    """Record that a copy of a handle was unpickled in this process. ``copy``: its id.

    Only handles in the closure can name the function, because a reused worker may also unpickle broadcast handles.
    """
    if task_context() is not None and _is_reading_closure():
        record_use(copy, fleet)


def record_use(copy: str, fleet: FleetRef | None = None) -> None:
    """Record that a pickled copy of a handle is used in this process. ``copy``: its id; "": it was never pickled."""
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


# A mutation's number is its phase, followed by this number of bits for its index in the phase.
PHASE_BITS = 20


@dataclass
class RunIds:
    """Numbers the mutations of one worker of a run: first by phase, then in order. A retry repeats the ids.

    Attributes:
        series: the common prefix of the mutation ids of the fleet's runs.
        run: the number of the run.
        rank: the worker's rank.
        phase: 2 * t between clock t - 1 and clock t, and 2 * t + 1 in clock t.
        settled: mutations of phases below this phase are never repeated.
        epoch: the fleet's rollback count when the run last told the worker its clock.
        seen: the fleet's rollback count at the worker's last read. If it exceeds ``epoch``, the worker will repeat the
            current clock, and its changes are discarded.
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
            raise UsageError(f"a worker's clock: expected at most {1 << PHASE_BITS} changes of vectors, got more")
        return RequestId(
            f"{self.series}/{self.run}/{self.rank}",
            (self.phase << PHASE_BITS) + number,
            settled=self.settled << PHASE_BITS,
            series=self.series,
            stage=self.run,
        )


@dataclass
class MutationIds:
    """Creates mutation ids.

    In ``ps.run``, see ``RunIds``. In another task, an id is (fleet, Spark application, stage, RDD partition, function)
    and the index of the mutation in this attempt. A retried or speculative attempt of the task or of its stage repeats
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

    def unnumbered_id(self) -> RequestId | None:
        """Return an id that identifies this task's stage or run, but no mutation of it; None outside a task."""
        context = task_context()
        if context is None:
            return None
        if self.run is not None:
            return RequestId(f"{self.run.series}/{self.run.run}", 0, series=self.run.series, stage=self.run.run)
        series, stage = _series(self.fleet), context.stageId()
        return RequestId(f"{series}/{stage}", 0, series=series, stage=stage)

    @property
    def holder(self) -> str:
        """The holder of the rows of new handles: this attempt of a task or, outside tasks, this session."""
        context = task_context()
        return self.session if context is None else f"{_series(self.fleet)}/attempt/{context.taskAttemptId()}"

    def retire(self, id: RequestId) -> None:
        """Record that a mutation was answered or given up. No effect in tasks: another attempt may repeat it."""
        if id.scope == self.session:
            with self._lock:
                self._in_flight.discard(id.number)


def _series(fleet: str) -> str:
    """Return the common prefix of the mutation ids of this task's Spark application."""
    text = task_access()
    return fleet if text is None else mutation_id_prefix(fleet, unseal(text).application)
