"""The counting run: workers that stay, and add 1 to every column in each clock, whatever goes wrong meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ps2 import DCV


def counting(total: DCV, clocks: int, folder: object) -> Callable[..., Any]:
    """Return a worker's function; its attempts leave files named RANK-ATTEMPT-PID, and it returns its clocks."""
    folder = str(folder)

    def work(worker: Any, rows: Any) -> list[int]:
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        Path(folder, f"{worker.rank}-{context.attemptNumber()}-{os.getpid()}").touch()
        seen = []
        for clock in worker.clocks(clocks):
            seen.append(clock)
            total.pull()
            total.add(np.ones(total.dim, np.int64))
        return seen

    return work


def attempts(folder: object) -> dict[tuple[int, int], int]:
    """Return the pid of each attempt that has got its rank's place, by rank and number."""
    result = (tuple(map(int, path.name.split("-"))) for path in Path(str(folder)).iterdir())
    return {(rank, number): pid for rank, number, pid in result}
