"""Who is calling: the identity of a Spark task, or of this process (exactly once, DESIGN section 6)."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import uuid
from dataclasses import dataclass, field
from typing import Any

from ps2.wire.messages import RequestId

# Spark hands the environment of a Python function to the workers that run it, whichever thread submits the job; a local
# property would belong to one thread, and Spark writes those into its event log.
FLEET_VARIABLE = "PS2_TASK_FLEET"
# Local property: ids of the fleets whose contexts were stopped. A task of an older closure fails at once then.
STOPPED_PROPERTY = "ps2.stopped"


def task_context() -> Any | None:
    """Return pyspark's TaskContext inside a task, else None; never imports pyspark where it is not loaded."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark import TaskContext

    return TaskContext.get()


def task_fleet() -> str | None:
    """Return what the driver handed to this task about its fleet."""
    return None if task_context() is None else os.environ.get(FLEET_VARIABLE)


def stopped_fleets() -> list[str]:
    """Return the ids of the fleets that this task knows to be stopped."""
    context = task_context()
    stopped = None if context is None else context.getLocalProperty(STOPPED_PROPERTY)
    return stopped.split() if stopped else []


@dataclass
class _Function:
    """Which function this worker runs for a task: named by the first handle that came with it.

    Two Python workers may run in one task (a DataFrame's function, then an RDD's); they must not share ids. A handle's
    copy is named when the closure is pickled, so all attempts see the same name.
    """

    attempt: int | None = None
    name: str = ""


_function = _Function()


def note_handle(copy: str) -> None:
    """Note that a copy of a handle was unpickled here."""
    context = task_context()
    if context is not None and context.taskAttemptId() != _function.attempt:
        _function.attempt, _function.name = context.taskAttemptId(), copy


@dataclass
class MutationIds:
    """Hands out the ids of mutations.

    In a task: (fleet, stage, rdd_partition, function) and the how-manieth mutation of this attempt, so that a retried
    or speculative attempt asks for the same ids. Elsewhere: this session and a counter.
    """

    fleet: str
    session: str = field(default_factory=lambda: f"session/{uuid.uuid4().hex}")
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _under_way: set[int] = field(default_factory=set)
    _attempt: int | None = None
    _attempt_numbers: itertools.count[int] = field(default_factory=itertools.count)

    def next(self) -> RequestId:
        context = task_context()
        with self._lock:
            if context is None:
                number = next(self._numbers)
                self._under_way.add(number)
                return RequestId(self.session, number, settled=min(self._under_way))
            if context.taskAttemptId() != self._attempt:
                self._attempt = context.taskAttemptId()
                self._attempt_numbers = itertools.count()
            function = _function.name if _function.attempt == self._attempt else ""
            scope = f"{self.fleet}/{context.stageId()}/{context.partitionId()}/{function}"
            return RequestId(scope, next(self._attempt_numbers))

    def done(self, id: RequestId) -> None:
        """Note that a mutation has been answered, or given up. One of a task may come again with the next attempt."""
        if id.scope == self.session:
            with self._lock:
                self._under_way.discard(id.number)
