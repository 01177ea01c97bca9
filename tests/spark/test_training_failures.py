"""Training when rows are wrong or held out, and what is left on the servers afterwards."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from training import change_plan, make, minimum, objective, plan_of, trained

from ps2.algorithms.linear.plan import Problem
from ps2.algorithms.linear.trainer import train
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.table import Table
from ps2.errors import ConfigError, InputError

HELD = ColumnNames(validation="held")
PROBLEM = Problem("logistic", 5, l2=0.01)
SOLVERS = {
    "l-bfgs": plan_of(maxIter=20, tol=0.0),
    "lazy minibatch": plan_of("minibatch", optimizer="ftrl", lazy=True, maxIter=20, stepSize=0.5),
    "ma-sgd": plan_of("ma-sgd", maxIter=10, stepSize=0.5, localBatchSize=8),
    "ftsgd": plan_of("ftsgd", maxIter=10, stepSize=0.5),
}
HOLDING_OUT = {solver: change_plan(plan, validationIndicatorCol="held") for solver, plan in SOLVERS.items()}


@pytest.fixture(scope="module")
def rows():
    return make(cuts=(20,))


@pytest.fixture(scope="module")
def frame(spark, rows):
    return rows.frame(spark)


# -- rows held out -----------------------------------------------------------------------------------------------------


def held_loss(rows, problem, made):
    """The loss of rows held out, of a model whose penalties are left out."""
    alone = replace(rows, x=rows.x[rows.held], y=rows.y[rows.held], c=np.ones(rows.held.sum()))
    plain = replace(problem, l1=0.0, l2=0.0, standardize=False)
    return objective(plain, alone, made.weight.pull()[:, None], made.biases)


@pytest.mark.parametrize("solver", SOLVERS)
def test_training_when_validation_worsens_then_keeps_best_model(ps, spark, rows, solver):
    """Rows held out have random labels: after some steps, what is learnt is of no use for them."""
    held = np.arange(60) % 3 == 0
    rng = np.random.default_rng(3)
    noisy = replace(rows, y=np.where(held & (rng.random(60) < 0.4), 1 - rows.y, rows.y), held=held)
    problem, recipe = (
        replace(PROBLEM, l1=0.001),
        change_plan(HOLDING_OUT[solver], maxIter=60),
    )
    if solver in ("ma-sgd", "ftsgd"):
        problem = replace(problem, l1=0.0)
    created = trained(ps, noisy.frame(spark), noisy, problem, recipe, HELD)
    history = created.history
    assert "held out" in history.reason
    assert history.steps < 60
    assert history.validation.index(min(history.validation)) < len(history.validation)
    assert held_loss(noisy, problem, created) == pytest.approx(min(history.validation), rel=1e-9)
    created.weight.free()


@pytest.mark.parametrize("solver", SOLVERS)
def test_training_when_worker_has_only_held_out_rows_then_learns(ps, spark, rows, solver):
    alone = replace(rows, held=np.arange(60) >= 20)
    recipe = change_plan(HOLDING_OUT[solver], validation_tol=-1e9)
    created = trained(ps, alone.frame(spark), alone, PROBLEM, recipe, HELD)
    history = created.history
    assert history.objective[-1] < 0.6
    assert held_loss(alone, PROBLEM, created) == pytest.approx(min(history.validation), rel=1e-9)
    created.weight.free()


def test_training_when_no_row_is_held_out_then_takes_all_steps(ps, spark, rows):
    none = replace(rows, held=np.full(60, False))
    created = trained(
        ps,
        none.frame(spark),
        none,
        PROBLEM,
        change_plan(HOLDING_OUT["l-bfgs"], tol=1e-9),
        HELD,
    )
    plain = replace(rows, c=np.ones(60))
    reached = objective(PROBLEM, plain, created.weight.pull()[:, None], created.biases)
    assert reached == pytest.approx(minimum(PROBLEM, plain), abs=1e-6)
    assert created.history.validation == []
    created.weight.free()


@pytest.mark.parametrize("more", [{"solver": "l-bfgs"}, {"solver": "minibatch", "validationIndicatorCol": "held"}])
def test_recipe_when_staleness_is_unsupported_then_config_error(more):
    with pytest.raises(ConfigError, match=r"staleness: .* got 2"):
        plan_of(staleness=2, **more)


# -- what is left ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS)
def test_training_when_model_is_freed_then_servers_are_empty(ps, rows, frame, matrices, solver):
    before = matrices()
    created = trained(ps, frame, rows, PROBLEM, change_plan(SOLVERS[solver], maxIter=2))
    assert matrices() - before
    created.weight.free()
    assert matrices() <= before


def test_training_when_rows_are_wrong_then_counts_and_cleans_up(ps, spark, rows, matrices):
    x = rows.x.copy()
    x[[3, 25, 26], 1] = np.nan
    wrong = replace(rows, x=x)
    before, steps = matrices(), []
    table = Table(wrong.frame(spark), ColumnNames(), 2)
    with pytest.raises(InputError, match=r"features: 3 of 60 rows hold NaN or infinite values, such as row 3 of"):
        train(ps, table, PROBLEM, SOLVERS["l-bfgs"], rows.facts(2), steps.append)
    assert steps == []
    assert matrices() <= before


def test_training_when_callback_fails_then_raises_and_cleans_up(ps, rows, frame, matrices):
    def fail(report):
        raise ZeroDivisionError(report.number)

    before = matrices()
    with pytest.raises(ZeroDivisionError, match="1"):
        train(ps, Table(frame, ColumnNames(), 2), PROBLEM, SOLVERS["ma-sgd"], rows.facts(2), fail)
    assert matrices() <= before


def test_training_when_objective_overflows_then_fails_early(ps, spark, matrices):
    rows = make(n=20, dim=1, cuts=(10,))
    large = replace(rows, y=rows.y * 1e200)
    problem, before = Problem("squared", 1, fit_intercept=False), matrices()
    with pytest.raises(InputError, match="the objective is inf before the first step"):
        train(ps, Table(large.frame(spark), ColumnNames(), 2), problem, plan_of(), rows.facts(None))
    assert matrices() <= before
