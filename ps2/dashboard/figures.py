"""What a driver knows as figures, for its metrics. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ps2.array_types import Float64s
from ps2.dashboard.snapshot import CheckpointView, FleetView, RunView, TrainingView

NO_COUNTS: Float64s = np.zeros((0, 0))


@dataclass(frozen=True)
class RunFigures:
    """A run as figures by rank.

    Attributes:
        staleness: of the run; None for ASP.
        clocks: that the workers are in, or were last in.
        counts: of shape (workers, 2 + categories): clocks that each has ended, attempts that were lost, and seconds by
            category.
    """

    staleness: int | None
    clocks: Sequence[int]
    counts: Float64s


@dataclass(frozen=True)
class DriverFigures:
    """What a driver knows.

    Attributes:
        info: labels of ``ps2_driver_info``.
        memory_bytes, memory_limit_bytes: of all servers; None: they have not reported.
        recoveries: of lost servers, by where the data came from.
        rollbacks: of the whole fleet.
        checkpoints: number of complete ones; ``checkpoint`` is the newest.
        runs: number of those that have begun.
        run: the current or last one.
        counts: of all runs so far, as ``RunFigures`` has them of one.
        events: by kind.
    """

    info: Mapping[str, str]
    fleet: FleetView
    memory_bytes: int | None
    memory_limit_bytes: int | None
    recoveries: Mapping[str, int]
    rollbacks: int
    checkpoints: int
    checkpoint: CheckpointView | None
    runs: int
    run: tuple[RunView, RunFigures] | None
    counts: Float64s
    training: TrainingView | None
    events: Mapping[str, int]


def added(first: Float64s, second: Float64s) -> Float64s:
    """Return the sum of the counts of runs; a run with fewer workers has zeros for the others."""
    made = np.zeros((max(len(first), len(second)), max(first.shape[1], second.shape[1])))
    for each in (first, second):
        made[: each.shape[0], : each.shape[1]] += each
    return made
