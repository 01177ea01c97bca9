"""Workers and servers die while clusters are sought: centres and costs are those of an undisturbed training."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from faults import processes
from pyspark.ml.linalg import Vectors

from ps2 import PS2Context
from ps2.algorithms.clusters import trainer, worker
from ps2.algorithms.clusters.options import KMeansOptions
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.phases import Phases
from ps2.algorithms.training.run import FIRST_CLOCK
from ps2.algorithms.training.table import Table

# A checkpoint that is under way as a server dies fails.
pytestmark = pytest.mark.filterwarnings("ignore::ps2.errors.CheckpointWarning")

OPTIONS = KMeansOptions(6, iterations=5, tolerance=0.0, seed=3, dim=4)
# Clocks in which rows are drawn, candidates are weighed, the first centres are put on the servers, and centres move.
DRAW, WEIGH, PLACE, STEP = FIRST_CLOCK + 4, FIRST_CLOCK + 7, FIRST_CLOCK + 8, FIRST_CLOCK + 9
# Of each worker, the clocks in which it dies.
DEATHS = {0: (WEIGH, STEP + 2), 1: (DRAW, PLACE)}


@pytest.fixture(scope="module")
def table(spark):
    rng = np.random.default_rng(0)
    points = rng.normal(size=(6, 4))[rng.integers(6, size=300)] + rng.normal(size=(300, 4))
    rows = [(Vectors.dense(x), float(w)) for x, w in zip(points, rng.random(300), strict=True)]
    frame = spark.createDataFrame(rows, ["features", "w"]).repartition(2).cache()
    return Table(frame, ColumnNames(label=None, weight="w"), 2)


def numbers_of(found):
    return found.centres.tolist(), found.sizes.tolist(), found.history.objective


@pytest.fixture(scope="module")
def undisturbed(spark, table):
    with PS2Context.getOrCreate(spark, servers=2) as ps:
        return numbers_of(trainer.train(ps, table, OPTIONS))


class DyingWorker:
    """A worker that is killed (-9) when it has sent its part of some clocks, before they count; once in each."""

    def __init__(self, worker, folder):
        self._worker, self._folder = worker, folder

    def __getattr__(self, name):
        return getattr(self._worker, name)

    def clocks(self, n):
        for clock in self._worker.clocks(n):
            yield clock
            path = Path(self._folder, str(clock))
            if clock in DEATHS[self.rank] and not path.exists():
                self._worker._loop.flush()
                path.touch()
                os.kill(os.getpid(), signal.SIGKILL)


class DyingProgram(worker.ClusteringProgram):
    folder = ""

    def __call__(self, worker, reading):
        super().__call__(DyingWorker(worker, self.folder), reading)


@pytest.mark.usefixtures("by_value")
def test_centres_when_workers_are_killed_then_are_the_same(spark, table, undisturbed, tmp_path, monkeypatch):
    monkeypatch.setattr(DyingProgram, "folder", str(tmp_path))
    monkeypatch.setattr(trainer, "ClusteringProgram", DyingProgram)
    with PS2Context.getOrCreate(spark, servers=2) as ps:
        found = trainer.train(ps, table, OPTIONS)
    assert sorted(int(path.name) for path in tmp_path.iterdir()) == sorted(DEATHS[0] + DEATHS[1])
    assert numbers_of(found) == undisturbed


@pytest.mark.parametrize("settings", [{"replicas": 1}, {"checkpointEverySteps": 3}], ids=["replicas", "checkpoints"])
def test_centres_when_servers_are_killed_then_are_the_same(spark, table, undisturbed, tmp_path, monkeypatch, settings):
    rolls_back = "replicas" not in settings
    if rolls_back:
        settings = {**settings, "checkpointDir": str(tmp_path)}
    done = []

    def killing(phases, clock, reports=(), original=Phases.on_clock):
        done.append(clock)
        # In a draw, and in an iteration.
        if done.count(clock) == 1 and clock in (3, 11):
            processes.kill(processes.servers_of(ps)[clock % 2])
        return original(phases, clock, reports)

    monkeypatch.setattr(Phases, "on_clock", killing)
    with PS2Context.getOrCreate(spark, servers=2, **settings) as ps:
        found = trainer.train(ps, table, OPTIONS)
        assert [recovery.rolledBack for recovery in ps.recoveries] == [rolls_back] * 2
    assert numbers_of(found) == undisturbed
