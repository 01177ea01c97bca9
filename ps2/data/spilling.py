"""Decides when the rows of a worker are written to a file, and in which folder. Pure, except for measuring memory."""

from __future__ import annotations

import os
import resource
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import psutil

from ps2 import cgroups
from ps2.errors import ConfigError

SpillName = Literal["auto", "always", "never"]
SPILL: tuple[SpillName, ...] = get_args(SpillName)

# The fraction of a worker's memory for rows. Reading and the first clocks of a training need memory for two copies of
# the rows, and models also need memory.
ROWS_FRACTION = 0.25
# The bytes of a block of rows. A worker has up to three blocks in memory: one that is read from the file, one that is
# written, and one that is in use.
BLOCK_BYTES = 8 << 20
# The environment variable that has the block manager's folders in Spark's Python workers, one on each local disk.
LOCAL_DIRS = "SPARK_LOCAL_DIRS"


@dataclass(frozen=True)
class Memory:
    """Free memory in bytes; None: there is no limit.

    Attributes:
        process: the memory that this process may still allocate (RLIMIT_DATA; RLIMIT_AS, which
            spark.executor.pyspark.memory sets).
        group: the memory that the process's control groups may still allocate.
        machine: the free memory of the machine.
    """

    process: int | None
    group: int | None
    machine: int

    def worker_bytes(self, tasks: int) -> int:
        """Return the memory of one worker if ``tasks`` workers run on this machine."""
        total = self.machine if self.group is None else min(self.machine, self.group)
        worker_bytes = total // max(1, tasks)
        return worker_bytes if self.process is None else min(worker_bytes, self.process)


@dataclass(frozen=True)
class Spill:
    """Where a worker stores its rows; picklable.

    Attributes:
        mode: "auto": in a file if they exceed ``limit_bytes``; "always": in a file; "never": in memory.
        limit_bytes: the maximum size of rows in memory; None: ``ROWS_FRACTION`` of the worker's memory when it begins
            to read.
        block_bytes: the approximate size of a block of the file.
    """

    mode: SpillName = "auto"
    limit_bytes: int | None = None
    block_bytes: int = BLOCK_BYTES

    def __post_init__(self) -> None:
        if self.mode not in SPILL:
            raise ConfigError(f"spill: expected one of {', '.join(SPILL)}, got {self.mode!r}")

    def worker_limit_bytes(self, workers: int) -> int:
        """Return the maximum size in memory of the rows of one worker, in a run of ``workers`` workers."""
        if self.limit_bytes is not None:
            return self.limit_bytes
        return int(free_memory().worker_bytes(max_tasks(workers, cgroups.usable_cores())) * ROWS_FRACTION)


def free_memory() -> Memory:
    """Measure the free memory."""
    process_memory = psutil.Process().memory_info()
    process_limits = []
    for limit, used in ((resource.RLIMIT_AS, process_memory.vms), (resource.RLIMIT_DATA, process_memory.data)):
        soft, _ = resource.getrlimit(limit)
        if soft != resource.RLIM_INFINITY:
            process_limits.append(max(0, soft - used))
    return Memory(min(process_limits, default=None), cgroups.free_memory_bytes(), psutil.virtual_memory().available)


def max_tasks(workers: int, cores: int) -> int:
    """Return the expected maximum number of a run's workers on one machine: two for each core."""
    return max(1, min(workers, 2 * cores))


def local_folders(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the folders of Spark's local disks; outside of Spark's tasks, the folder of temporary files."""
    folders = [folder for folder in environ.get(LOCAL_DIRS, "").split(",") if folder]
    return folders or [tempfile.gettempdir()]


def worker_folder(rank: int, folders: Sequence[str]) -> str:
    """Return a worker's folder: the ranks are spread evenly over the disks that have not failed."""
    usable = [folder for folder in folders if os.access(folder, os.W_OK | os.X_OK)] or list(folders)
    return usable[rank % len(usable)]
