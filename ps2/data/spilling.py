"""When rows go to a file, and where: pure decisions, and what they are made of."""

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

# Of a worker's memory, for rows: reading and the first clocks of a training hold them twice, and models need the rest.
SHARE = 0.25
# Of rows that are read, written and computed on at a time; a worker holds up to three such blocks.
BLOCK_BYTES = 8 << 20
# Set by Spark for its Python workers: the block manager's folders, one on each local disk.
LOCAL_DIRS = "SPARK_LOCAL_DIRS"


@dataclass(frozen=True)
class Memory:
    """Memory that is left, in bytes; None: there is no limit.

    Attributes:
        process: to this process alone (RLIMIT_AS, which spark.executor.pyspark.memory sets; RLIMIT_DATA).
        group: to the control groups that this process is in.
        machine: to all processes of the machine.
    """

    process: int | None
    group: int | None
    machine: int

    def of_worker(self, tasks: int) -> int:
        """Return the share of one of so many workers on this machine."""
        shared = self.machine if self.group is None else min(self.machine, self.group)
        share = shared // max(1, tasks)
        return share if self.process is None else min(share, self.process)


@dataclass(frozen=True)
class Spill:
    """How a worker keeps its rows; picklable.

    Attributes:
        mode: "auto": in a file once they exceed ``limit_bytes``; "always": in a file; "never": in memory.
        limit_bytes: that rows may take in memory; None: ``SHARE`` of the worker's memory as it begins to read.
        block_bytes: of rows, in a block of the file, about.
    """

    mode: SpillName = "auto"
    limit_bytes: int | None = None
    block_bytes: int = BLOCK_BYTES

    def __post_init__(self) -> None:
        if self.mode not in SPILL:
            raise ConfigError(f"spill: expected one of {', '.join(SPILL)}, got {self.mode!r}")

    def limit_of(self, workers: int) -> int:
        """Return the bytes that the rows of one of so many workers of a run may take in memory."""
        if self.limit_bytes is not None:
            return self.limit_bytes
        return int(memory_left().of_worker(tasks_here(workers, cgroups.usable_cores())) * SHARE)


def memory_left() -> Memory:
    """Measure the memory that is left."""
    taken = psutil.Process().memory_info()
    of_process = []
    for limit, used in ((resource.RLIMIT_AS, taken.vms), (resource.RLIMIT_DATA, taken.data)):
        soft, _ = resource.getrlimit(limit)
        if soft != resource.RLIM_INFINITY:
            of_process.append(max(0, soft - used))
    return Memory(min(of_process, default=None), cgroups.free_memory_bytes(), psutil.virtual_memory().available)


def tasks_here(workers: int, cores: int) -> int:
    """Return the most workers of a run that are expected on a machine: two a core."""
    return max(1, min(workers, 2 * cores))


def local_folders(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the folders of Spark's local disks; outside of Spark's tasks, that of temporary files."""
    folders = [folder for folder in environ.get(LOCAL_DIRS, "").split(",") if folder]
    return folders or [tempfile.gettempdir()]


def folder_of(rank: int, folders: Sequence[str]) -> str:
    """Return a worker's folder: ranks take turns at the disks; folders of disks that have failed are left out."""
    usable = [folder for folder in folders if os.access(folder, os.W_OK | os.X_OK)] or list(folders)
    return usable[rank % len(usable)]
