"""Trees that the only worker grows in its own process: to the bit those that servers find."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from boosting import BY_LEAF, MEDIAN, PROBLEM, RECIPE, SHORT, SOFTMAX, dealt, digest, facts_of, table

from ps2 import PS2Context
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.table import Facts, Table
from ps2.algorithms.trees import local_worker, trainer
from ps2.algorithms.trees.gradients import Objective
from ps2.algorithms.trees.local_trainer import LocalTreeDriver
from ps2.algorithms.trees.problem import TreeProblem
from ps2.algorithms.trees.trainer import begun_via, train
from ps2.errors import ConfigError

SIGNS = (1, -1, *(0,) * (PROBLEM.dim - 2))
# What is grown, and how: problem, recipe, whether rows are sparse, and weighted.
KINDS = {
    "level": (PROBLEM, RECIPE, False, False),
    "level, of sparse rows with weights": (PROBLEM, RECIPE, True, True),
    "leaf": (PROBLEM, BY_LEAF, False, True),
    "softmax": (SOFTMAX, SHORT, False, False),
    "absolute, weighted": (MEDIAN, SHORT, True, True),
    "squared, monotone, rows counted": (
        TreeProblem(Objective("squared"), PROBLEM.dim, (0.3,), "missing", PROBLEM.categories),
        replace(RECIPE, monotone=SIGNS, min_rows=7, reg_alpha=0.1),
        True,
        False,
    ),
    "leaf, of sparse rows, features drawn": (PROBLEM, replace(BY_LEAF, features=6, fraction=1.0), True, False),
}
NAMED = replace(RECIPE, rounds=6, rate=0.7, validate=True, validation_tol=0.001, name="trees", via="local")


def grow(ps, spark, kind, via, workers):
    problem, recipe, sparse, weighted = KINDS[kind]
    x, y = table()
    y = y + (x[:, 4] > 0) if problem.classes == 3 else y
    weights = np.random.default_rng(1).integers(0, 4, len(y)) / 4 if weighted else np.ones(len(y))
    held = np.arange(len(y)) % 5 == 0
    others = {"held": held.tolist(), "w": weights.tolist()}
    frame = dealt(spark, x, y, workers, sparse, others).frame
    facts = facts_of(y[~held])
    mine = weights[~held]
    facts = Facts(facts.rows, mine.sum(), (mine**2).sum(), *(getattr(facts, f) for f in list(vars(facts))[3:]))
    columns = ColumnNames(validation="held", weight="w" if weighted else None)
    recipe = replace(recipe, validate=True, validation_tol=0.0, via=via)
    return train(ps, Table(frame, columns, workers), problem, recipe, facts)


class DyingWorker:
    """A worker that is killed (-9) when it has sent its part of some clocks, before they count; once in each."""

    def __init__(self, worker, folder):
        self._worker, self._folder, self.report = worker, folder, worker.report

    @property
    def messages(self):
        return self._worker.messages

    def clocks(self, n):
        for clock in self._worker.clocks(n):
            yield clock
            path = Path(self._folder, str(clock))
            if self._folder and clock in (1, 3) and not path.exists():
                path.touch()
                os.kill(os.getpid(), signal.SIGKILL)


class OneRoundProgram(local_worker.LocalTreeProgram):
    """It grows one round a clock, and dies in some if there is a folder to note it in."""

    folder = ""

    def __call__(self, worker, reading):
        local_worker.BUDGET_S = 0.0
        super().__call__(DyingWorker(worker, self.folder), reading)


@pytest.fixture
def by_round(by_value, monkeypatch):
    monkeypatch.setattr(trainer, "LocalTreeProgram", OneRoundProgram)


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
    often, take_in = {"checkpointDir": str(tmp_path), "checkpointEverySteps": 1}, LocalTreeDriver._take_in

    def dying(driver, sums, trees):
        if sums["round"] == 2:
            raise DriverDies
        take_in(driver, sums, trees)

    with PS2Context.getOrCreate(spark, servers=2, **often) as ps:
        monkeypatch.setattr(LocalTreeDriver, "_take_in", dying)
        with pytest.raises(DriverDies):
            named(ps, spark)
        monkeypatch.setattr(LocalTreeDriver, "_take_in", take_in)
    with PS2Context.getOrCreate(spark, servers=1, restore=str(tmp_path)) as ps:
        assert begun_via(ps, "trees") == "local"
        with pytest.raises(ConfigError, match="via was 'local', and is 'servers'"):
            named(ps, spark, replace(NAMED, via="servers"))
        made = named(ps, spark)
        whole = named(ps, spark, replace(NAMED, name="", via="servers"))
    assert digest(made.forest) == digest(whole.forest)
    assert made.history.validation == pytest.approx(whole.history.validation, rel=1e-12)
    assert (made.history.steps, made.history.reason) == (whole.history.steps, whole.history.reason)


@pytest.fixture(scope="module")
def ps(spark):
    with PS2Context.getOrCreate(spark, servers=2) as ps:
        yield ps


@pytest.mark.parametrize("kind", KINDS)
def test_local_when_trees_have_grown_then_those_of_servers(spark, ps, kind):
    local, on_servers = (grow(ps, spark, kind, via, workers) for via, workers in (("local", 1), ("servers", 2)))
    assert digest(local.forest) == digest(on_servers.forest)
    assert np.allclose(local.history.objective, on_servers.history.objective, rtol=1e-12)
    assert np.allclose(local.history.validation, on_servers.history.validation, rtol=1e-12)


@pytest.mark.usefixtures("by_round")
def test_local_when_worker_is_killed_then_same_trees(spark, ps, tmp_path, monkeypatch):
    kind = "absolute, weighted"
    expected = digest(grow(ps, spark, kind, "local", 1).forest)
    monkeypatch.setattr(OneRoundProgram, "folder", str(tmp_path))
    assert digest(grow(ps, spark, kind, "local", 1).forest) == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "3"]
