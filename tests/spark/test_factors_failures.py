"""Workers, servers and drivers die while factors are trained: the vectors are those of an undisturbed training."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from factors_training import COLUMNS, OPTIONS, replayed, trained
from faults import processes

from ps2 import PS2Context
from ps2.algorithms.factors import sgd, sgd_solver
from ps2.algorithms.factors.plan import START
from ps2.errors import ConfigError

# A checkpoint that is under way as a server dies fails.
pytestmark = pytest.mark.filterwarnings("ignore::ps2.errors.CheckpointWarning")

# An iteration has four turns; the second and the fourth one have a closing clock.
TURNS = 4
HELD = replace(COLUMNS, validation="held")


class DyingWorker:
    """A worker that is killed (-9) in a clock, with all that it has changed applied, before that clock counts; once."""

    def __init__(self, worker, clock, path):
        self._worker, self._clock, self._path = worker, clock, path

    def __getattr__(self, name):
        return getattr(self._worker, name)

    def report(self, value, merge="sum"):
        if self.rank == 1 and self._worker.clock == self._clock and not os.path.exists(self._path):
            self._worker._loop.flush()
            Path(self._path).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        self._worker.report(value, merge)


class DyingProgram(sgd.SgdProgram):
    path, clock = "", 0

    def __call__(self, worker, grid):
        super().__call__(DyingWorker(worker, self.clock, self.path), grid)


def assert_undisturbed(found, options, columns=COLUMNS):
    users, items, losses = replayed(options, columns)
    np.testing.assert_array_equal(found.user_factors, users[0])
    np.testing.assert_array_equal(found.item_factors, items[0])
    assert found.history.steps == options.iterations
    np.testing.assert_allclose(found.history.objective, losses)


@pytest.mark.parametrize(
    ("clock", "columns"),
    [
        (START, COLUMNS),
        (START + 2, COLUMNS),
        (START + 2 * TURNS + 1, COLUMNS),
        (START + 3 * TURNS + 2, COLUMNS),
        (START + 6 * TURNS + 3, COLUMNS),
        (START + 3 * TURNS, HELD),
    ],
    ids=["beginning", "first turns", "first save", "later", "last save", "evaluation"],
)
def test_vectors_when_worker_is_killed_then_are_the_same(ps, spark, by_value, tmp_path, monkeypatch, clock, columns):
    for name, value in {"path": str(tmp_path / "died"), "clock": clock}.items():
        monkeypatch.setattr(DyingProgram, name, value)
    monkeypatch.setattr(sgd_solver, "SgdProgram", DyingProgram)
    found = trained(ps, spark, columns=columns)
    assert (tmp_path / "died").exists()
    assert_undisturbed(found, OPTIONS, columns)


@pytest.mark.parametrize(
    "settings",
    [{"replicas": 1}, {"checkpointEverySteps": 5}, {"checkpointEverySteps": 1}],
    ids=["replicas", "some checkpoints", "a checkpoint a clock"],
)
def test_vectors_when_server_is_killed_then_are_the_same(no_fleet, spark, tmp_path, settings):
    steps = []

    def kill(report):
        steps.append(report.number)
        if len(steps) in (3, 5):
            processes.kill(processes.servers_of(ps)[0])

    if "replicas" not in settings:
        settings = {**settings, "checkpointDir": str(tmp_path)}
    with PS2Context.getOrCreate(spark, servers=2, **settings) as ps:
        found = trained(ps, spark, on_step=kill)
        assert ps.recoveries[-1].rolledBack == ("replicas" not in settings)
    assert steps[:3] == [1, 2, 3]
    assert_undisturbed(found, OPTIONS)


class Stopped(Exception):
    """The driver ends here."""


@pytest.mark.parametrize("every", [1, 7])
def test_vectors_when_driver_is_lost_then_are_the_same(no_fleet, spark, tmp_path, every):
    named, folder = replace(OPTIONS, name="factors"), str(tmp_path)

    def stop(report):
        if report.number == 4:
            raise Stopped

    with PS2Context.getOrCreate(spark, servers=2, checkpointDir=folder, checkpointEverySteps=every) as ps:
        with pytest.raises(Stopped):
            trained(ps, spark, named, on_step=stop)
        ps.stop()
    with PS2Context.getOrCreate(spark, servers=3, restore=folder) as ps:
        with pytest.raises(ConfigError, match="'factors' in the checkpoint is another one: rank was 5, and is 7"):
            trained(ps, spark, replace(named, rank=7))
        steps, more = [], replace(named, iterations=OPTIONS.iterations + 2)
        found = trained(ps, spark, more, on_step=steps.append)
    assert steps[0].number in (3, 4)
    assert steps[-1].number == more.iterations
    assert_undisturbed(found, more)
