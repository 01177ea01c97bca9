"""Trees that the only worker grows in its own process, while the driver or the worker dies."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from boosting import MEDIAN, PROBLEM, RECIPE, SHORT, dealt, digest, facts_of, table, trained

from ps2 import PS2Context
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.table import Table
from ps2.algorithms.trees import local_worker, program
from ps2.algorithms.trees.boosting_record import BoostingRecord
from ps2.algorithms.trees.program import train, via_of_resumed
from ps2.errors import ConfigError
from tests import plans

NAMED = plans.changed(
    RECIPE, maxIter=6, stepSize=0.7, validationIndicatorCol="held", validationTol=0.001, name="trees", via="local"
)


class DyingWorker:
    """A worker that is killed (-9) when it has sent its part of some clocks, before they count; once in each."""

    def __init__(self, do, folder):
        self._do, self._folder, self.catch_up = do, folder, do.catch_up

    def __call__(self, worker, task):
        self._do(worker, task)
        path = Path(self._folder, str(worker.clock))
        if self._folder and worker.clock in (1, 3) and not path.exists():
            path.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def one_round_worker(folder, *given):
    """Return a worker that grows one round a clock, and dies in some if there is a folder to note it in."""
    local_worker.CLOCK_TIME_S = 0.0
    return DyingWorker(local_worker.LocalTreeWorker(*given), folder)


@pytest.fixture
def by_round(by_value, monkeypatch):
    """Let workers grow one round a clock; call the value with a folder for workers that die."""

    def workers_in(folder):
        monkeypatch.setattr(program, "LocalTreeWorker", partial(one_round_worker, folder))

    workers_in("")
    return workers_in


# Before the module's context begins.


class DriverDies(Exception):
    """The driver is lost between two clocks."""


def named(ps, spark, recipe=NAMED):
    x, y = table()
    held = np.arange(len(y)) % 3 == 0
    frame = dealt(spark, x, y, 1, others={"held": held.tolist()}).frame
    return train(ps, Table(frame, ColumnNames(validation="held"), 1), PROBLEM, recipe, facts_of(y[~held]))


@pytest.mark.usefixtures("by_round")
def test_local_when_driver_is_lost_then_next_one_goes_on(spark, tmp_path, monkeypatch):
    often, end_round = {"checkpointDir": str(tmp_path), "checkpointEverySteps": 1}, BoostingRecord.end_round

    def dying(boosting, ask, losses, seconds):
        if losses.round == 2:
            raise DriverDies
        return end_round(boosting, ask, losses, seconds)

    with PS2Context.getOrCreate(spark, servers=2, **often) as ps:
        monkeypatch.setattr(BoostingRecord, "end_round", dying)
        with pytest.raises(DriverDies):
            named(ps, spark)
        monkeypatch.setattr(BoostingRecord, "end_round", end_round)
    with PS2Context.getOrCreate(spark, servers=1, restore=str(tmp_path)) as ps:
        assert via_of_resumed(ps, "trees") == "local"
        with pytest.raises(ConfigError, match="via was 'local', and is 'servers'"):
            named(ps, spark, plans.changed(NAMED, via="servers"))
        created = named(ps, spark)
        whole = named(ps, spark, plans.changed(NAMED, name="", via="servers"))
    assert digest(created.model) == digest(whole.model)
    assert created.history.validation == pytest.approx(whole.history.validation, rel=1e-12)
    assert (created.history.steps, created.history.reason) == (whole.history.steps, whole.history.reason)


@pytest.fixture(scope="module")
def ps(spark):
    with PS2Context.getOrCreate(spark, servers=2) as ps:
        yield ps


def test_local_when_worker_is_killed_then_same_trees(spark, ps, tmp_path, by_round):
    local = plans.changed(SHORT, via="local")
    expected = digest(trained(ps, spark, 1, recipe=local, problem=MEDIAN).model)
    by_round(str(tmp_path))
    assert digest(trained(ps, spark, 1, recipe=local, problem=MEDIAN).model) == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "3"]
