"""The counting job: tasks that add 1 to every column so many times, whatever goes wrong meanwhile.

Every attempt of a task says what it does in a file of its own, written before it does it, so that a test can tell what
has happened even if the attempt was killed.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import ps2
from ps2 import DCV
from ps2.errors import PS2Error

# An attempt waits so long for what is to happen meanwhile, and then goes on: the test says what has not happened.
PATIENCE_S = 120.0
POLL_S = 0.02


@dataclass(frozen=True)
class Job:
    """What to count.

    Attributes:
        folder: where the attempts say what they do; a new one for each job.
        tasks, adds, dim: so many tasks add 1 to each of so many columns, so many times each.
        throwing: probability that an attempt throws, at a random place; the last that Spark allows a task never does.
        attempts: that Spark allows a task (``spark.task.maxFailures``).
        seed: of the places; attempts of one task differ.
        slow: the first attempts of these partitions add once, wait for Spark to start another one, and then go on
            beside it. Spark needs a slot for that: there must be fewer slow ones than slots.
        pause_s: before each add.
        disturbers: the last two tasks, one a slot, make their last adds when ``release`` was called so often: the job
            does not end before all has happened to it, however fast the machine is.
    """

    folder: str
    tasks: int = 16
    adds: int = 8
    dim: int = 1000
    throwing: float = 0.0
    attempts: int = 4
    seed: int = 0
    slow: tuple[int, ...] = ()
    pause_s: float = 0.0
    disturbers: int = 0

    @property
    def total(self) -> int:
        """What every column comes to."""
        return self.tasks * self.adds

    def release(self) -> None:
        """Say that one of the disturbers has done all that it was to do."""
        Path(self.folder, f"release-{threading.get_ident()}").touch()


@dataclass(frozen=True)
class Attempt:
    """What one attempt of a task said.

    Attributes:
        adds: that it began.
        thrown: it threw on purpose.
        ended: it came to its end.
        failed: the error that it came to otherwise; "" if none.
    """

    partition: int
    number: int
    pid: int
    adds: int
    thrown: bool
    ended: bool
    failed: str = ""

    @property
    def under_way(self) -> bool:
        """Whether it has neither thrown nor ended nor failed: it runs, or it was killed."""
        return not self.thrown and not self.ended and not self.failed


class ThrownOnPurposeError(Exception):
    """What an attempt throws at its place."""


def count(sc: Any, total: DCV, job: Job) -> None:
    """Run the job on an int64 vector."""
    sc.parallelize(range(job.tasks), job.tasks).foreachPartition(lambda _: _attempt(total, job))


def values_of(total: DCV) -> list[int]:
    """Return the distinct values of the columns: one, if all count alike."""
    return np.unique(total.pull()).tolist()


def attempts(folder: str) -> list[Attempt]:
    """Return what the attempts have said so far."""
    return [_said(path) for path in sorted(Path(folder).glob("attempt-*"))]


def running(folder: str) -> list[Attempt]:
    """Return the attempts that have begun to add and not ended, and whose processes run."""
    return [one for one in attempts(folder) if one.under_way and one.adds and Path(f"/proc/{one.pid}").exists()]


def place(job: Job, partition: int, number: int) -> int | None:
    """Return before which of its adds an attempt throws (after the last, if it is their number); None for never."""
    chance = np.random.default_rng([job.seed, partition, number])
    if number >= job.attempts - 1 or chance.random() >= job.throwing:
        return None
    return int(chance.integers(0, job.adds + 1))


def _attempt(total: DCV, job: Job) -> None:
    from pyspark import TaskContext

    context: Any = TaskContext.get()
    partition, number = context.partitionId(), context.attemptNumber()
    with open(Path(job.folder, f"attempt-{partition}-{number}"), "w", buffering=1) as file:
        print(os.getpid(), file=file)
        try:
            _add_all(total, job, partition, number, file)
        except PS2Error as error:
            print("failed", type(error).__name__, " ".join(str(error).split()), file=file)
            raise


def _add_all(total: DCV, job: Job, partition: int, number: int, file: Any) -> None:
    throws = place(job, partition, number)
    for k in range(job.adds):
        if k == throws:
            _throw(file)
        print("add", file=file)
        if k == 1 and partition in job.slow and number == 0:
            _wait_for(job.folder, f"attempt-{partition}-1", 1)
        if k == job.adds - 1 and partition >= job.tasks - 2:
            _wait_for(job.folder, "release-*", job.disturbers)
        time.sleep(job.pause_s)
        _add_one(total, job.dim, k)
    if throws == job.adds:
        _throw(file)
    ps2.flush()
    print("end", file=file)


def _add_one(total: DCV, dim: int, k: int) -> None:
    """Add 1 to every column, each time in another way."""
    ones = np.ones(dim, np.int64)
    half = dim // 2
    match k % 4:
        case 0:
            total.add(ones)
        case 1:
            columns = np.arange(dim)
            total.add(ones[:half], columns[:half])
            total.add(ones[half:], columns[half:])
        case 2:
            with ps2.batch():
                total.add(2 * ones)
                total.sub(ones)
        case 3:
            total.add(ones, wait=False)


def _throw(file: Any) -> None:
    ps2.flush()  # an add under way would be neither begun nor not begun
    print("throw", file=file)
    raise ThrownOnPurposeError("at its place")


def _wait_for(folder: str, pattern: str, files: int) -> None:
    """Wait until there are so many files."""
    deadline_s = time.monotonic() + PATIENCE_S
    while len([*Path(folder).glob(pattern)]) < files and time.monotonic() < deadline_s:
        time.sleep(POLL_S)


def _said(path: Path) -> Attempt:
    _, partition, number = path.name.split("-")
    lines = _lines(path)
    pid = int(lines[0]) if lines else 0
    failed = next((line.removeprefix("failed ") for line in lines if line.startswith("failed ")), "")
    return Attempt(int(partition), int(number), pid, lines.count("add"), "throw" in lines, "end" in lines, failed)


def _lines(path: Path) -> list[str]:
    text = path.read_text()
    return text[: text.rfind("\n") + 1].splitlines()  # the last one may be half written
