"""What a driver may know of its fleet, its run and its training."""

from __future__ import annotations

import numpy as np

from ps2.dashboard.fleet_view import ServerHealth, fleet_view
from ps2.dashboard.run_view import DriverFigures, RunFigures
from ps2.dashboard.snapshot import CheckpointView, RunView, TrainingView
from ps2.run.timeline import NAMES

INFO = {"version": "1.2", "fleet": "abc"}
CHECKPOINT = CheckpointView("/c/3", 3, 7, bytes=10, pause_s=0.25, seconds=2.0, at_s=1e9)


def run_of(workers, staleness=2):
    counts = np.arange(workers * (2 + len(NAMES)), dtype=float).reshape(workers, -1)
    figures = RunFigures(staleness, [5 + rank % 3 for rank in range(workers)], counts)
    view = RunView(
        *(4, workers, "SSP", 12.5, False, 5, 0, 7, 1.0, None, ()),
        window_s=1.0,
        states={"working": workers - 1, "no task": 1},
        shown=(),
        stragglers=(1,),
        rollbacks=0,
        series=(),
    )
    return view, figures


def training_of(value):
    return TrainingView(
        *("free text", "step", "loss", 3, 9, 6.0, 12.0, 100.0, 0, "training", (("a", "b"),), (("free text", 1.0),), ()),
        value=value,
        validation=0.75,
        step_s=2.5,
    )


def figures_of(workers=3, staleness=2, value=0.5):
    run = run_of(workers, staleness)
    health = [ServerHealth(0, "a", "h:1", 0.1, None), ServerHealth(1, "b", "h:2", 0.1, "gone")]
    return DriverFigures(
        *(INFO, fleet_view(health, {}, 0.0), 100, 1000, {"replica": 2}, 1, 3, CHECKPOINT, 5, run, run[1].counts),
        *(training_of(value), {"warning": 4, "free text": 9}),
    )
