"""Servers are killed (-9) at every clock and inside checkpoints: a fit goes on from the newest whole one, each time.

Spark lets a task of these sessions fail four times, which would not do.
"""

from __future__ import annotations

from dataclasses import replace

import boosting
import embedding_training
import factors_training
import numpy as np
import pytest
import topics_training
from boosting import digest
from faults.again import killing_at_each_clock_and_checkpoint
from pyspark import cloudpickle
from topics_training import documents
from training import Rows, make

from ps2 import PS2Context
from ps2.algorithms import FMClassifier, FMRegressor, LinearRegression
from ps2.algorithms.estimators.anew import done_anew
from ps2.algorithms.linear.coordinates.path import PathOptions
from ps2.algorithms.linear.problem import Problem, SolverOptions
from ps2.algorithms.linear.trainer import train
from ps2.algorithms.topics.online import train_online
from ps2.algorithms.topics.options import OnlineOptions
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
# In every third clock and checkpoint is enough for each run of the tests; the others' servers die in every one.
SPARED = {"level": 2}
LINEAR = {
    "l-bfgs": SolverOptions(steps=8, tol=0.0),
    "minibatch": SolverOptions(solver="minibatch", steps=8, step_size=0.1),
    "ma-sgd": SolverOptions(solver="ma-sgd", steps=6, step_size=1.0, local_steps=4),
    "ftsgd": SolverOptions(solver="ftsgd", steps=8, step_size=12.0, local_steps=4),
    "sap": SolverOptions(solver="sap", tol=1e-9, path=PathOptions((9.0, 3.0, 1.0)), set_size=2),
}
ONLINE = OnlineOptions(topics_training.TOPICS, topics_training.WORDS, iterations=8, beta=0.05, offset=2.0, fraction=0.5)
FACTORS = {"factorSize": 3, "maxIter": 8, "solver": "gd", "seed": 3, "numWorkers": 2}
# So that the fit without checkpoints is by servers, too.
TWO = {"numWorkers": 2}
NUMBERS = {
    "normal": lambda: LinearRegression(solver="normal", **TWO),
    "l-bfgs": lambda: LinearRegression(solver="l-bfgs", maxIter=8, tol=0.0, regParam=0.001, **TWO),
    "sap": lambda: LinearRegression(solver="sap", regParam=0.001, elasticNetParam=0.9, tol=1e-9, **TWO),
    "huber": lambda: LinearRegression(loss="huber", maxIter=8, tol=0.0, **TWO),
    "minibatch": lambda: LinearRegression(solver="minibatch", maxIter=8, regParam=0.001, **TWO),
    "factors": lambda: FMRegressor(stepSize=0.2, regParam=0.001, **FACTORS),
}


@pytest.fixture(scope="module", autouse=True)
def helpers_by_value():
    cloudpickle.register_pickle_by_value(embedding_training)
    yield
    cloudpickle.unregister_pickle_by_value(embedding_training)


def whole_and_killed(spark, folder, fit, every=3, anew=done_anew, spared=0):
    """Return what a fit makes that nothing happens to, and one whose servers are killed again and again.

    Args:
        spared: clocks and checkpoints between two in which a server is killed.
        anew: makes a fit begin again where no run can roll back; estimators' do by themselves.
    """
    with PS2Context.getOrCreate(spark, servers=2) as ps:
        whole = fit(ps)
    with PS2Context.getOrCreate(spark, servers=2, checkpointDir=str(folder), checkpointEverySteps=every) as ps:
        with killing_at_each_clock_and_checkpoint(ps, spared + 1) as killed:
            made = anew(lambda: fit(ps))
        assert len(killed.clocks) >= (2 if spared else 4)
        assert len(killed.checkpoints) >= (1 if spared else 2)
        # Of a clock's end and the checkpoint right after it, one recovery may have both; and of the last ones, none.
        assert len(ps.recoveries) >= len(killed.clocks) // 2
    return whole, made


@pytest.mark.parametrize(
    "kind",
    ["level", pytest.param("leaf", marks=pytest.mark.nightly), pytest.param("absolute", marks=pytest.mark.nightly)],
)
def test_trees_when_servers_die_often_then_bit_identical(kind, spark, tmp_path):
    def fit(ps):
        return digest(boosting.trained(ps, spark, **TREES[kind]).forest)

    whole, made = whole_and_killed(spark, tmp_path, fit, spared=SPARED.get(kind, 0))
    assert made == whole


@pytest.mark.nightly
@pytest.mark.parametrize("solver", LINEAR)
def test_linear_when_servers_die_every_clock_then_same_model(solver, spark, tmp_path):
    rows = replace(make(cuts=(20,)), c=np.ones(60))

    def fit(ps):
        table, problem = Table(rows.frame(spark), ColumnNames(), 2), Problem("logistic", 5, l2=0.001)
        problem = replace(problem, l1=0.01) if solver == "sap" else problem
        made = train(ps, table, problem, LINEAR[solver], rows.facts(2))
        weight = made.weight.pull()
        made.weight.free()
        return np.append(weight, made.biases)

    whole, made = whole_and_killed(spark, tmp_path, fit)
    np.testing.assert_allclose(made, whole, rtol=1e-9)


def numbers_of(model):
    """All of a model's numbers."""
    if hasattr(model, "factors"):
        return np.hstack([model.intercept, model.linear.toArray(), model.factors.toArray().reshape(-1)])
    return np.append(model.coefficients.toArray(), model.intercept)


def assert_same_numbers(estimator, frame, spark, folder):
    def fit(ps):
        return numbers_of(estimator.fit(frame))

    whole, made = whole_and_killed(spark, folder, fit, every=2, anew=lambda fit: fit())
    np.testing.assert_allclose(made, whole, rtol=1e-9)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_when_servers_die_at_every_clock_then_same_model(kind, spark, tmp_path):
    rows, rng = make(cuts=(20,)), np.random.default_rng(5)
    y = 3 + rows.x @ np.arange(1, 6) + rows.x[:, 0] * rows.x[:, 1] + rng.normal(size=60)
    assert_same_numbers(NUMBERS[kind](), Rows(rows.x, y, rows.c, rows.cuts).frame(spark), spark, tmp_path)


@pytest.mark.nightly
def test_factors_when_servers_die_at_every_clock_then_same_model(spark, tmp_path):
    assert_same_numbers(FMClassifier(regParam=0.001, **FACTORS), make(cuts=(20,)).frame(spark), spark, tmp_path)


@pytest.mark.nightly
def test_online_when_servers_die_at_every_clock_then_same_topics(spark, tmp_path):
    def fit(ps):
        return train_online(ps, topics_training.dealt(spark, documents(), 2), ONLINE)

    whole, made = whole_and_killed(spark, tmp_path, fit)
    np.testing.assert_allclose(made.counts, whole.counts, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(made.alpha, whole.alpha, rtol=1e-4)
    np.testing.assert_allclose(made.history.objective, whole.history.objective, rtol=1e-4)


@pytest.mark.parametrize(
    "sync",
    ["average", pytest.param("ssp", marks=pytest.mark.nightly), pytest.param("rotation", marks=pytest.mark.nightly)],
)
def test_topics_when_servers_die_at_every_clock_then_all_counted(sync, spark, tmp_path):
    recipe = replace(topics_training.OPTIONS, sync=sync)
    whole, made = whole_and_killed(spark, tmp_path, lambda ps: topics_training.trained(ps, spark, recipe))
    np.testing.assert_array_equal(made.counts.sum(axis=1), documents().sum(axis=0))
    assert made.history.steps == whole.history.steps == recipe.iterations


@pytest.mark.nightly
def test_matrix_when_servers_die_at_times_then_same_vectors(spark, tmp_path):
    # A restart takes three clocks more, and the next save comes five clocks later.
    options = replace(factors_training.OPTIONS, iterations=8, save_interval=1)
    whole, made = whole_and_killed(
        spark, tmp_path, lambda ps: factors_training.trained(ps, spark, options), every=2, spared=11
    )
    np.testing.assert_array_equal(made.user_factors, whole.user_factors)
    np.testing.assert_array_equal(made.item_factors, whole.item_factors)
    assert made.history.objective == whole.history.objective


@pytest.mark.nightly
@pytest.mark.parametrize("via", ["local", "rows", "servers"])
def test_vectors_when_servers_die_at_every_clock_then_learned(via, spark, tmp_path):
    recipe = replace(embedding_training.RECIPE, via=via)
    _, made = whole_and_killed(spark, tmp_path, lambda ps: embedding_training.trained(ps, recipe), every=2)
    assert made.history.steps == recipe.epochs
    assert embedding_training.margin(made) > 0.5
