"""Figures of a driver for its metrics. Pure."""

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
        staleness: the run's bound; None for ASP.
        clocks: the current or last clock of each worker.
        counts: shape (workers, 2 + categories): ended clocks, lost attempts, and seconds by category.
    """

    staleness: int | None
    clocks: Sequence[int]
    counts: Float64s


@dataclass(frozen=True)
class DriverFigures:
    """The figures of a driver.

    Attributes:
        info: the labels of ``ps2_driver_info``.
        memory_bytes, memory_limit_bytes: sums over all servers; None: no server has reported.
        recoveries: the number of recoveries of lost servers, by the source of the data.
        rollbacks: the number of rollbacks of the whole fleet.
        checkpoints: the number of complete checkpoints; ``checkpoint`` is the newest.
        runs: the number of runs that have begun.
        run: the current or last run.
        counts: the ``counts`` of ``RunFigures``, summed over all runs.
        events: the number of events by kind.
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
    total = np.zeros((max(len(first), len(second)), max(first.shape[1], second.shape[1])))
    for counts in (first, second):
        total[: counts.shape[0], : counts.shape[1]] += counts
    return total
