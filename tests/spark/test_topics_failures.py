"""Workers and servers die while topics are sampled: counts stay those of the topics that all tokens have."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from faults import processes
from topics_training import OPTIONS, documents, saved_counts, trained

from ps2 import PS2Context
from ps2.algorithms.topics import local_worker, trainer, worker
from ps2.errors import ConfigError

LONG = replace(OPTIONS, iterations=8)
LOCAL = replace(LONG, via="local", threads=2)


@pytest.fixture
def assigned(monkeypatch):
    """Counts of words by the topics that workers have in the end."""
    found = []

    def fitted(driver, original=trainer._Driver.fitted):
        found.append(saved_counts(driver._fleet, driver._options, driver._sizes.workers))
        return original(driver)

    monkeypatch.setattr(trainer._Driver, "fitted", fitted)
    return found


class DyingWorker:
    """A worker that is killed (-9) in a clock, with all that it has changed applied, before that clock counts; once.

    Args:
        reads: it is killed when it has asked for so many slices of words; 0: when it has sent its part of the clock.
    """

    def __init__(self, worker, clock, reads, path):
        self._worker, self._clock, self._reads, self._path = worker, clock, reads, path

    def __getattr__(self, name):
        return getattr(self._worker, name)

    def clocks(self, n):
        for clock in self._worker.clocks(n):
            yield clock
            self._die(not self._reads)

    def rotate(self, *args, **kwargs):
        for turn in self._worker.rotate(*args, **kwargs):
            yield turn
            self._die(not self._reads)

    def prefetch(self, source, indices=None, ahead=1, columns=None):
        if columns is not None and self._worker.clock == self._clock and self._reads:
            self._reads -= 1
            self._die(not self._reads)
        return self._worker.prefetch(source, indices, ahead, columns)

    def _die(self, is_time):
        if (
            is_time
            and self.rank == self.workers - 1
            and self._worker.clock == self._clock
            and not os.path.exists(self._path)
        ):
            self._worker._loop.flush()
            Path(self._path).touch()
            os.kill(os.getpid(), signal.SIGKILL)


class DyingLocalProgram(local_worker.LocalProgram):
    path, clock = "", 0

    def __call__(self, worker, reading):
        super().__call__(DyingWorker(worker, self.clock, 0, self.path), reading)


class DyingProgram(worker.SamplingProgram):
    path, clock, reads = "", 0, 0

    def __call__(self, worker, reading):
        super().__call__(DyingWorker(worker, self.clock, self.reads, self.path), reading)


@pytest.mark.parametrize(
    ("sync", "clock", "reads"),
    [("ssp", 1, 0), ("ssp", 4, 3), ("average", 5, 0), ("rotation", 12, 0)],
    ids=["in the first clock", "in mid iteration", "average", "in a turn"],
)
def test_counts_when_worker_is_killed_then_match_token_topics(
    ps, spark, by_value, assigned, tmp_path, monkeypatch, sync, clock, reads
):
    for name, value in {"path": str(tmp_path / "died"), "clock": clock, "reads": reads}.items():
        monkeypatch.setattr(DyingProgram, name, value)
    monkeypatch.setattr(trainer, "SamplingProgram", DyingProgram)
    found = trained(ps, spark, replace(LONG, sync=sync))
    assert (tmp_path / "died").exists()
    np.testing.assert_array_equal(found.counts.sum(axis=1), documents().sum(axis=0))
    np.testing.assert_array_equal(found.counts, assigned[0])
    assert found.history.objective[-1] < found.history.objective[0]


@pytest.mark.parametrize("clock", [5, 9], ids=["in an iteration", "in the last one"])
def test_local_counts_when_worker_is_killed_then_match_topics(
    ps, spark, by_value, assigned, tmp_path, monkeypatch, clock
):
    monkeypatch.setattr(DyingLocalProgram, "path", str(tmp_path / "died"))
    monkeypatch.setattr(DyingLocalProgram, "clock", clock)
    monkeypatch.setattr(trainer, "LocalProgram", DyingLocalProgram)
    found = trained(ps, spark, LOCAL, workers=1)
    assert (tmp_path / "died").exists()
    np.testing.assert_array_equal(found.counts, assigned[0])
    assert found.history.steps == LONG.iterations
    assert found.history.objective[-1] < found.history.objective[0]


@pytest.mark.parametrize(
    ("options", "workers", "settings"),
    [
        (LONG, 2, {"replicas": 1}),
        (LONG, 2, {"checkpointEverySteps": 4}),
        (replace(LONG, sync="rotation"), 2, {"checkpointEverySteps": 4}),
        (LOCAL, 1, {"checkpointEverySteps": 4}),
    ],
    ids=["replicas", "checkpoint", "rotation, checkpoint", "local, checkpoint"],
)
def test_counts_when_server_is_killed_then_match_token_topics(
    no_fleet, spark, assigned, tmp_path, options, workers, settings
):
    steps = []

    def kill(report):
        steps.append(report.number)
        if len(steps) == 4:
            processes.kill(processes.servers_of(ps)[0])

    if "replicas" not in settings:
        settings = {**settings, "checkpointDir": str(tmp_path)}
    with PS2Context.getOrCreate(spark, servers=2, **settings) as ps:
        found = trained(ps, spark, options, workers, on_step=kill)
        assert ps.recoveries[-1].rolledBack == ("replicas" not in settings)
    assert steps[:4] == [1, 2, 3, 4]
    assert found.history.steps == LONG.iterations
    np.testing.assert_array_equal(found.counts.sum(axis=1), documents().sum(axis=0))
    np.testing.assert_array_equal(found.counts, assigned[0])


class Stopped(Exception):
    """The driver ends here."""


def test_local_when_driver_is_lost_then_saved_topics_are_used(no_fleet, spark, assigned, tmp_path):
    named, folder = replace(LOCAL, name="topics", save_interval=1), str(tmp_path)

    def stop(report):
        if report.number == 5:
            raise Stopped

    with PS2Context.getOrCreate(spark, servers=2, checkpointDir=folder, checkpointEverySteps=3) as ps:
        with pytest.raises(Stopped):
            trained(ps, spark, named, workers=1, on_step=stop)
        ps.stop()
    with PS2Context.getOrCreate(spark, servers=1, restore=folder) as ps:
        # Another machine may have other cores.
        found = trained(ps, spark, replace(named, threads=3), workers=1)
    np.testing.assert_array_equal(found.counts, assigned[0])
    assert found.history.steps == LOCAL.iterations
    # It did not begin anew.
    assert max(found.history.objective[4:]) < found.history.objective[0]


def test_training_when_driver_is_lost_then_saved_topics_are_used(no_fleet, spark, assigned, tmp_path):
    named, folder = replace(OPTIONS, name="topics", save_interval=1), str(tmp_path)

    def stop(report):
        if report.number == 5:
            raise Stopped

    with PS2Context.getOrCreate(spark, servers=2, checkpointDir=folder, checkpointEverySteps=3) as ps:
        with pytest.raises(Stopped):
            trained(ps, spark, named, on_step=stop)
        ps.stop()
    with PS2Context.getOrCreate(spark, servers=3, restore=folder) as ps:
        with pytest.raises(ConfigError, match="'topics' in the checkpoint is another one: topics was 5, and is 7"):
            trained(ps, spark, replace(named, topics=7))
        # Counts are rebuilt in the second clock after that of the checkpoint.
        steps, more = [], OPTIONS.iterations + 3
        found = trained(ps, spark, replace(named, iterations=more), on_step=steps.append)
    assert [step.number for step in steps] == list(range(5, more + 1))
    assert found.history.steps == len(found.history.metrics["log_likelihood"]) == more
    np.testing.assert_array_equal(found.counts, assigned[0])
    # It did not begin anew.
    assert np.nanmax(found.history.objective[4:]) < found.history.objective[0]
