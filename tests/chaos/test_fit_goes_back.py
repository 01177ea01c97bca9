"""Servers are killed (-9) at every clock and inside checkpoints: a fit goes on from the newest whole one, each time.

Spark lets a task of these sessions fail four times, which would not do.
"""

from __future__ import annotations

from dataclasses import replace

import boosting
import embedding_training
import numpy as np
import pytest
import topics_training
from boosting import digest
from faults.again import killing_at_each_clock_and_checkpoint
from pyspark import cloudpickle
from topics_training import documents
from training import make

from ps2 import PS2Context
from ps2.algorithms.estimators.anew import done_anew
from ps2.algorithms.linear.problem import Problem, Recipe
from ps2.algorithms.linear.trainer import train
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.table import Table

pytestmark = [
    pytest.mark.usefixtures("leaves_nothing"),
    pytest.mark.filterwarnings("ignore::ps2.errors.CheckpointWarning"),
]

LITTLE = replace(boosting.RECIPE, rounds=2, depth=2)
TREES = {
    "level": {"recipe": LITTLE},
    "leaf": {"recipe": boosting.BY_LEAF, "sparse": True},
    "absolute": {"recipe": boosting.SHORT, "problem": boosting.MEDIAN},
}
LINEAR = {
    "l-bfgs": Recipe(steps=8, tol=0.0),
    "minibatch": Recipe(solver="minibatch", steps=8, step_size=0.1),
    "ma-sgd": Recipe(solver="ma-sgd", steps=6, step_size=1.0, local_steps=4),
    "ftsgd": Recipe(solver="ftsgd", steps=8, step_size=12.0, local_steps=4),
}


@pytest.fixture(scope="module", autouse=True)
def helpers_by_value():
    cloudpickle.register_pickle_by_value(embedding_training)
    yield
    cloudpickle.unregister_pickle_by_value(embedding_training)


def whole_and_killed(spark, folder, fit, every=3):
    """Return what a fit makes that nothing happens to, and one whose servers are killed again and again."""
    with PS2Context.getOrCreate(spark, servers=2) as ps:
        whole = fit(ps)
    with PS2Context.getOrCreate(spark, servers=2, checkpointDir=str(folder), checkpointEverySteps=every) as ps:
        with killing_at_each_clock_and_checkpoint(ps) as killed:
            made = done_anew(lambda: fit(ps))
        assert len(killed.clocks) >= 4
        assert len(killed.checkpoints) >= 2
        assert len(ps.recoveries) >= killed.count - 1
    return whole, made


@pytest.mark.parametrize(
    "kind",
    ["level", pytest.param("leaf", marks=pytest.mark.chaos), pytest.param("absolute", marks=pytest.mark.chaos)],
)
def test_trees_when_servers_die_at_every_clock_then_the_same_bits(kind, spark, tmp_path):
    def fit(ps):
        return digest(boosting.trained(ps, spark, **TREES[kind]).forest)

    whole, made = whole_and_killed(spark, tmp_path, fit)
    assert made == whole


@pytest.mark.chaos
@pytest.mark.parametrize("solver", LINEAR)
def test_linear_when_servers_die_at_every_clock_then_the_same_model(solver, spark, tmp_path):
    rows = replace(make(cuts=(20,)), c=np.ones(60))

    def fit(ps):
        table, problem = Table(rows.frame(spark), ColumnNames(), 2), Problem("logistic", 5, l2=0.001)
        made = train(ps, table, problem, LINEAR[solver], rows.facts(2))
        weight = made.weight.pull()
        made.weight.free()
        return np.append(weight, made.biases)

    whole, made = whole_and_killed(spark, tmp_path, fit)
    np.testing.assert_allclose(made, whole, rtol=1e-9)


@pytest.mark.parametrize(
    "sync",
    ["average", pytest.param("ssp", marks=pytest.mark.chaos), pytest.param("rotation", marks=pytest.mark.chaos)],
)
def test_topics_when_servers_die_at_every_clock_then_all_counted(sync, spark, tmp_path):
    recipe = replace(topics_training.RECIPE, sync=sync)
    whole, made = whole_and_killed(spark, tmp_path, lambda ps: topics_training.trained(ps, spark, recipe))
    np.testing.assert_array_equal(made.counts.sum(axis=1), documents().sum(axis=0))
    assert made.history.steps == whole.history.steps == recipe.iterations


@pytest.mark.chaos
@pytest.mark.parametrize("via", ["local", "rows", "servers"])
def test_vectors_when_servers_die_at_every_clock_then_learned(via, spark, tmp_path):
    recipe = replace(embedding_training.RECIPE, via=via)
    _, made = whole_and_killed(spark, tmp_path, lambda ps: embedding_training.trained(ps, recipe), every=2)
    assert made.history.steps == recipe.epochs
    assert embedding_training.margin(made) > 0.5
