"""Trees that grow while workers and servers die: they end as they would have, to the bit."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from boosting import BY_LEAF, MEDIAN, RECIPE, SHORT, SOFTMAX, digest, trained
from faults import processes

from ps2 import DCV, PS2Context
from ps2.algorithms.trees import trainer, worker
from ps2.algorithms.trees.quantiles import Quantiles


@pytest.fixture(scope="module")
def expected(spark):
    """The digests of trees that nothing happened to, by growth."""
    with PS2Context.getOrCreate(spark, servers=2) as ps:
        return {recipe.growth: digest(trained(ps, spark, recipe=recipe).forest) for recipe in (RECIPE, BY_LEAF)}


class DyingWorker:
    """A worker that is killed (-9) when it has sent its part of a clock, before that clock counts; once."""

    def __init__(self, worker, clock, path):
        self._worker, self._clock, self._path = worker, clock, path
        self.rank, self.workers = worker.rank, worker.workers

    def clocks(self, n):
        for clock in self._worker.clocks(n):
            yield clock
            if self.rank == 1 and clock == self._clock and not os.path.exists(self._path):
                Path(self._path).touch()
                os.kill(os.getpid(), signal.SIGKILL)


class DyingHalf(worker.Half):
    path, clock = "", 0

    def __call__(self, worker, reading):
        super().__call__(DyingWorker(worker, self.clock, self.path), reading)


@pytest.mark.parametrize(
    ("clock", "recipe"),
    [(2, RECIPE), (4, RECIPE), (12, RECIPE), (12, BY_LEAF)],
    ids=["quantiles", "gradients", "in the second tree", "by leaf"],
)
def test_trees_when_a_worker_is_killed_then_are_the_same_to_the_bit(
    spark, by_value, expected, tmp_path, monkeypatch, clock, recipe
):
    monkeypatch.setattr(DyingHalf, "path", str(tmp_path / "died"))
    monkeypatch.setattr(DyingHalf, "clock", clock)
    monkeypatch.setattr(trainer, "Half", DyingHalf)
    with PS2Context.getOrCreate(spark, servers=2) as ps:
        made = trained(ps, spark, recipe=recipe)
    assert (tmp_path / "died").exists()
    assert digest(made.forest) == expected[recipe.growth]


@pytest.mark.parametrize(
    ("problem", "clock"), [(SOFTMAX, 9), (MEDIAN, 8), (MEDIAN, 9)], ids=["softmax", "coarse", "fine"]
)
def test_losses_when_a_worker_is_killed_in_mid_round_then_trees_are_the_same_to_the_bit(
    spark, by_value, tmp_path, monkeypatch, problem, clock
):
    with PS2Context.getOrCreate(spark, servers=2) as ps:
        whole = trained(ps, spark, recipe=SHORT, problem=problem)
        monkeypatch.setattr(DyingHalf, "path", str(tmp_path / "died"))
        monkeypatch.setattr(DyingHalf, "clock", clock)
        monkeypatch.setattr(trainer, "Half", DyingHalf)
        made = trained(ps, spark, recipe=SHORT, problem=problem)
    assert (tmp_path / "died").exists()
    assert digest(made.forest) == digest(whole.forest)


@pytest.mark.parametrize(
    ("settings", "recipe"),
    [({"replicas": 1}, RECIPE), ({"checkpointEverySteps": 3}, RECIPE), ({"checkpointEverySteps": 3}, BY_LEAF)],
    ids=["replicas", "checkpoint", "checkpoint, by leaf"],
)
def test_trees_when_a_server_is_killed_in_mid_tree_then_are_the_same_to_the_bit(
    spark, expected, tmp_path, monkeypatch, settings, recipe
):
    searches, search = [], trainer.OnFleet.best_splits

    def dying(fleet, growth, recipe):
        searches.append(1)
        if len(searches) == 7:  # by level, of the second tree
            processes.kill(processes.servers_of(ps)[0])
        return search(fleet, growth, recipe)

    if "replicas" not in settings:
        settings = {**settings, "checkpointDir": str(tmp_path)}
    monkeypatch.setattr(trainer.OnFleet, "best_splits", dying)
    with PS2Context.getOrCreate(spark, servers=2, **settings) as ps:
        made = trained(ps, spark, recipe=recipe)
        assert ps.recoveries[-1].rolledBack == ("replicas" not in settings)
    assert len(searches) >= 7
    assert digest(made.forest) == expected[recipe.growth]
    assert len(made.history.objective) == 1 + RECIPE.rounds


@pytest.mark.parametrize("step", ["find_many", "add_zeros", "cut"])
def test_trees_when_a_server_is_killed_while_cut_points_are_found_then_are_the_same_to_the_bit(
    spark, expected, tmp_path, monkeypatch, step
):
    """All go back to the clock before, which is done again, with what the driver does after it."""
    taken, take = [], getattr(Quantiles, step)

    def dying(quantiles):
        taken.append(1)
        made = take(quantiles)
        if len(taken) == 1:
            processes.kill(processes.servers_of(ps)[0])
            ps.vector("kept").pull()  # waits until all have gone back
        return made

    monkeypatch.setattr(Quantiles, step, dying)
    with PS2Context.getOrCreate(spark, servers=2, checkpointDir=str(tmp_path), checkpointEverySteps=1) as ps:
        DCV.dense(2, name="kept")
        made = trained(ps, spark)
        assert ps.recoveries[-1].rolledBack
    assert len(taken) == 2
    assert digest(made.forest) == expected["level"]
