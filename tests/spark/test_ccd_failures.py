"""Workers, servers and drivers die in a coordinate descent: the vectors are those of an undisturbed training."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from descents import positive, replayed_descent
from factors_training import OPTIONS, ratings, trained
from faults import processes

from ps2 import PS2Context
from ps2.algorithms.factors import ccd_solver, ccd_worker

# A checkpoint that is under way as a server dies fails.
pytestmark = pytest.mark.filterwarnings("ignore::ps2.errors.CheckpointWarning")

EXPLICIT = replace(OPTIONS, solver="ccd", rank=6, biases=True)
IMPLICIT = replace(OPTIONS, solver="ccd", rank=6, implicit=True)
KINDS = {"explicit": EXPLICIT, "implicit": IMPLICIT}


class DyingWorker:
    """A worker that is killed (-9) at the barrier of a clock, with all that it has changed applied; once."""

    def __init__(self, worker, clock, path):
        self._worker, self._clock, self._path = worker, clock, path

    def __getattr__(self, name):
        return getattr(self._worker, name)

    def barrier(self):
        if self.rank == 1 and self._worker.clock == self._clock and not os.path.exists(self._path):
            self._worker._loop.flush()
            Path(self._path).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        self._worker.barrier()


class DyingProgram(ccd_worker.CcdProgram):
    path, clock = "", 0

    def __call__(self, worker, ratings):
        super().__call__(DyingWorker(worker, self.clock, self.path), ratings)


def fit(ps, spark, kind, **more):
    return trained(ps, spark, given=positive(ratings()), **{"options": KINDS[kind], **more})


@pytest.fixture(scope="module")
def expected():
    return {kind: replayed_descent(options) for kind, options in KINDS.items()}


def assert_same(found, expected):
    np.testing.assert_array_equal(found.user_factors, expected[0])
    np.testing.assert_array_equal(found.item_factors, expected[1])
    assert found.history.steps == OPTIONS.iterations


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clock", [1, 4], ids=["first", "later"])
def test_vectors_when_worker_dies_then_same(ps, spark, by_value, tmp_path, monkeypatch, expected, kind, clock):
    for name, value in {"path": str(tmp_path / "died"), "clock": clock}.items():
        monkeypatch.setattr(DyingProgram, name, value)
    monkeypatch.setattr(ccd_solver, "CcdProgram", DyingProgram)
    found = fit(ps, spark, kind)
    assert (tmp_path / "died").exists()
    assert_same(found, expected[kind])


@pytest.mark.parametrize("settings", [{"replicas": 1}, {"checkpointEverySteps": 2}], ids=["replicas", "checkpoints"])
def test_vectors_when_server_dies_then_same(no_fleet, spark, tmp_path, expected, settings):
    steps = []

    def kill(report):
        steps.append(report.number)
        if len(steps) == 3:
            processes.kill(processes.servers_of(ps)[0])

    if "replicas" not in settings:
        settings = {**settings, "checkpointDir": str(tmp_path)}
    with PS2Context.getOrCreate(spark, servers=2, **settings) as ps:
        found = fit(ps, spark, "implicit", on_step=kill)
        assert ps.recoveries[-1].rolledBack == ("replicas" not in settings)
    assert_same(found, expected["implicit"])


class Stopped(Exception):
    """The driver ends here."""


def test_vectors_when_driver_is_lost_then_same(no_fleet, spark, tmp_path, expected):
    named, folder = replace(EXPLICIT, name="factors"), str(tmp_path)

    def stop(report):
        if report.number == 4:
            raise Stopped

    with PS2Context.getOrCreate(spark, servers=2, checkpointDir=folder, checkpointEverySteps=1) as ps:
        with pytest.raises(Stopped):
            fit(ps, spark, "explicit", options=named, on_step=stop)
        ps.stop()
    steps = []
    with PS2Context.getOrCreate(spark, servers=3, restore=folder) as ps:
        found = fit(ps, spark, "explicit", options=named, on_step=steps.append)
    assert steps[0].number in (3, 4)
    assert_same(found, expected["explicit"])
