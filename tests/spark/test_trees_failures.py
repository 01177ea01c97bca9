"""Trees that grow while workers and servers die: they end as they would have, to the bit."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from boosting import BY_LEAF, MEDIAN, PROBLEM, RECIPE, SHORT, SOFTMAX, digest, trained
from faults import processes

from ps2 import DCV, PS2Context
from ps2.algorithms.trees import trainer, worker
from ps2.algorithms.trees.quantiles import TURNS, Quantiles

# What is grown of which rows, and how.
KINDS = {
    "level": {"recipe": RECIPE},
    "leaf, of sparse rows": {"recipe": BY_LEAF, "sparse": True},
    "softmax": {"recipe": SHORT, "problem": SOFTMAX},
    "absolute": {"recipe": SHORT, "problem": MEDIAN},
}


def grow(ps, spark, kind):
    return trained(ps, spark, **{"problem": PROBLEM, **KINDS[kind]})


@pytest.fixture(scope="module")
def whole(spark):
    """The digests of trees that nothing happens to, by kind."""
    with PS2Context.getOrCreate(spark, servers=2) as ps:
        return {kind: digest(grow(ps, spark, kind).forest) for kind in KINDS}


# -- workers -----------------------------------------------------------------------------------------------------------


class DyingWorker:
    """A worker that is killed (-9) when it has sent its part of some clocks, before they count; once in each."""

    def __init__(self, worker, folder, clocks):
        self._worker, self._folder, self._clocks = worker, folder, clocks
        self.rank, self.workers, self.report = worker.rank, worker.workers, worker.report

    @property
    def messages(self):
        return self._worker.messages

    def clocks(self, n):
        for clock in self._worker.clocks(n):
            yield clock
            path = Path(self._folder, str(clock))
            if self.rank == 1 and clock in self._clocks and not path.exists():
                path.touch()
                os.kill(os.getpid(), signal.SIGKILL)


class DyingProgram(worker.TreeProgram):
    folder, deaths = "", ()

    def __call__(self, worker, reading):
        super().__call__(DyingWorker(worker, self.folder, self.deaths), reading)


# By kind, the clocks of deaths.
DEATHS = {
    "level": (2, 9, 17),  # halves of values; cells; in the second tree: Spark starts a task four times
    "leaf, of sparse rows": (5, 17),
    "softmax": (14,),
    "absolute": (13, 14),  # coarse and fine cells of residuals
}


@pytest.mark.usefixtures("by_value")
def test_trees_when_workers_are_killed_then_bit_identical(spark, whole, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "TreeProgram", DyingProgram)
    with PS2Context.getOrCreate(spark, servers=2) as ps:
        for kind, clocks in DEATHS.items():
            folder = tmp_path / kind
            folder.mkdir()
            monkeypatch.setattr(DyingProgram, "folder", str(folder))
            monkeypatch.setattr(DyingProgram, "deaths", clocks)
            made = grow(ps, spark, kind)
            assert sorted(int(path.name) for path in folder.iterdir()) == list(clocks), kind
            assert digest(made.forest) == whole[kind], kind


# -- servers -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def dying(monkeypatch):
    """``dying(server)``: call ``server()`` before the 7th time that splits are sought; return how often they were."""
    searches, search = [], trainer.TreeMatrices.best_splits

    def let(server):
        def seek(fleet, growth, recipe):
            searches.append(1)
            if len(searches) == 7:  # by level, of the second tree
                server()
            return search(fleet, growth, recipe)

        searches.clear()
        monkeypatch.setattr(trainer.TreeMatrices, "best_splits", seek)
        return searches

    return let


@pytest.mark.parametrize(
    ("settings", "kinds"),
    [({"replicas": 1}, ["level"]), ({"checkpointEverySteps": 3}, ["level", "leaf, of sparse rows"])],
    ids=["replicas", "checkpoint"],
)
def test_trees_when_server_dies_in_mid_tree_then_bit_identical(spark, whole, tmp_path, dying, settings, kinds):
    rolls_back = "replicas" not in settings
    if rolls_back:
        settings = {**settings, "checkpointDir": str(tmp_path)}
    with PS2Context.getOrCreate(spark, servers=2, **settings) as ps:
        for kind in kinds:
            searches = dying(lambda: processes.kill(processes.servers_of(ps)[0]))
            recoveries = len(ps.recoveries)
            made = grow(ps, spark, kind)
            assert [each.rolledBack for each in ps.recoveries[recoveries:]] == [rolls_back]
            assert len(searches) >= 7
            assert digest(made.forest) == whole[kind]
            assert len(made.history.objective) == 1 + RECIPE.rounds


def test_trees_when_servers_die_in_cut_points_then_bit_identical(spark, whole, tmp_path, monkeypatch):
    """Each time all roll back to the clock before, which is done again, with what the driver does after it."""
    taken = []

    def dying(step):
        take = getattr(Quantiles, step)

        def taking(quantiles, *given):
            taken.append(step)
            made = take(quantiles, *given)
            if taken.count(step) == 1:
                processes.kill(processes.servers_of(ps)[0])
                ps.vector("kept").pull()  # waits until all have rolled back
            return made

        return taking

    steps = {"_find_many": 2, "_find_heavy": TURNS - 1, "cut": 1}
    for step in steps:
        monkeypatch.setattr(Quantiles, step, dying(step))
    with PS2Context.getOrCreate(spark, servers=2, checkpointDir=str(tmp_path), checkpointEverySteps=1) as ps:
        DCV.dense(2, name="kept")
        made = grow(ps, spark, "level")
        assert [each.rolledBack for each in ps.recoveries] == [True] * 3
    assert taken == [step for step, times in steps.items() for _ in range(times + 1)]
    assert digest(made.forest) == whole["level"]
