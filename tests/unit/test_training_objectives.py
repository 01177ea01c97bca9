"""The history of a training has the objective of each step's model, and one that diverges is an error."""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from training import change_plan, fit, make, objective, plan_of

from ps2.algorithms.linear.plan import Problem
from ps2.algorithms.training.faults import ColumnNames
from ps2.errors import DivergedError, InputError

STEPS = 2
PROBLEM = Problem("logistic", 5, l2=0.3)
WITH_L1 = replace(PROBLEM, l1=0.05)
MACHINE = Problem("fmLogistic", 5, width=3, l2=0.3, standardize=False)
MINIBATCH = plan_of("minibatch", stepSize=0.2)
TRAININGS = {
    **{
        name: (WITH_L1, change_plan(MINIBATCH, optimizer=name))
        for name in ("sgd", "momentum", "adagrad", "rmsprop", "adam")
    },
    "ftrl": (WITH_L1, change_plan(MINIBATCH, optimizer="ftrl")),
    "lazy ftrl": (WITH_L1, change_plan(MINIBATCH, optimizer="ftrl", lazy=True)),
    "ma-sgd": (PROBLEM, plan_of("ma-sgd", stepSize=0.2, localBatchSize=8, seed=3)),
    "ftsgd": (PROBLEM, plan_of("ftsgd", stepSize=0.2)),
    "hinge": (replace(PROBLEM, loss="squaredHinge"), plan_of("ma-sgd", stepSize=0.1)),
    "machine, adam": (MACHINE, MINIBATCH),
    "machine, adamW": (MACHINE, change_plan(MINIBATCH, optimizer="adamW")),
    "machine, gd": (MACHINE, change_plan(MINIBATCH, optimizer="gd")),
}


@pytest.fixture(scope="module")
def rows():
    return make(cuts=(20,))


def fitted(rows, problem, options):
    created = fit(rows, problem, options)
    return created.w, created.biases, created.history


def worth(problem, options, rows, w, b):
    """The objective of a model; solvers of pyspark.ml's machines let the intercept decay, too."""
    if problem.loss != "fmLogistic":
        return objective(problem, rows, w, b)
    pairs = ((rows.x @ w[:, 1:]) ** 2 - rows.x**2 @ w[:, 1:] ** 2).sum(axis=1) / 2
    losses = np.logaddexp(0, (1 - 2 * rows.y) * (b[0] + rows.x @ w[:, 0] + pairs))
    decayed = b[0] ** 2 if options.optimizer in ("gd", "adamW") else 0.0
    return rows.c @ losses / rows.c.sum() + problem.l2 / 2 * ((w**2).sum() + decayed)


@pytest.mark.parametrize("name", TRAININGS)
def test_history_when_steps_run_then_has_their_model_objectives(rows, name):
    problem, options = TRAININGS[name]
    # FTSGD looks at what its first step has made.
    known = range(STEPS + 1) if name != "ftsgd" else [STEPS]
    models = [fitted(rows, problem, change_plan(options, maxIter=steps)) for steps in known]
    expected = [worth(problem, options, rows, w, b) for w, b, _ in models]
    history = models[-1][2]
    assert history.objective[-len(known) :] == pytest.approx(expected, rel=1e-6)
    assert (len(history.objective), history.steps, len(history.seconds)) == (STEPS + 1, STEPS, STEPS)


@pytest.mark.parametrize("staleness", [0, 2, -1])
def test_history_when_minibatches_then_last_value_is_of_all_rows(rows, staleness):
    options = change_plan(MINIBATCH, optimizer="adagrad", miniBatchFraction=0.3, maxIter=20, staleness=staleness)
    w, b, history = fitted(rows, WITH_L1, options)
    # With staleness the last look may miss the last steps.
    assert history.objective[-1] == pytest.approx(objective(WITH_L1, rows, w, b), rel=1e-6 if staleness == 0 else 0.05)


DIVERGING = {
    "gd": (replace(MACHINE, loss="fmSquared", l2=0.0), change_plan(MINIBATCH, optimizer="gd", stepSize=100.0)),
    "ma-sgd": (replace(PROBLEM, loss="squared", l2=0.0), plan_of("ma-sgd", stepSize=20.0)),
    "ftsgd": (replace(PROBLEM, loss="squared"), plan_of("ftsgd", stepSize=1e30, localSteps=1)),
    "sgd": (replace(PROBLEM, loss="squared", l2=0.0), change_plan(MINIBATCH, optimizer="sgd", stepSize=1e3)),
    "adam": (replace(PROBLEM, l2=0.0), change_plan(MINIBATCH, optimizer="adam", stepSize=1e9)),
    "hinge": (replace(PROBLEM, loss="hinge"), change_plan(MINIBATCH, optimizer="momentum", stepSize=1e38)),
}


# In the middle of a training with each of them, and at its end with each solver.
@pytest.mark.parametrize(
    ("name", "steps"), [*((name, 60) for name in DIVERGING), *product(["sgd", "ma-sgd", "ftsgd"], [1])]
)
def test_training_when_step_is_far_too_large_then_error(rows, name, steps):
    problem, options = DIVERGING[name]
    with pytest.raises(
        DivergedError,
        match=rf"has diverged: .*; stepSize {options.settings.stepSize:g} is too large".replace("+", r"\+"),
    ):
        fitted(rows, problem, change_plan(options, maxIter=steps))


def test_training_when_it_ends_worse_than_it_began_then_warns(rows, caplog):
    with caplog.at_level(logging.WARNING):
        fitted(rows, replace(PROBLEM, l2=0.0), change_plan(MINIBATCH, stepSize=9.0, maxIter=1))
    assert "the objective has grown from" in caplog.text
    assert "stepSize 9 is too large" in caplog.text


def test_training_when_validation_ends_it_worse_then_warns(caplog):
    held = replace(make(cuts=(20,)), held=np.arange(60) % 3 == 0)
    options = change_plan(MINIBATCH, stepSize=9.0, maxIter=20, validationIndicatorCol="held")
    with caplog.at_level(logging.WARNING):
        created = fit(held, replace(PROBLEM, l2=0.0), options, ColumnNames(validation="held"))
    assert created.history.steps < 20
    assert "the objective has grown from" in caplog.text


def test_training_when_first_model_overflows_then_names_data():
    rows = make(cuts=(20,))
    rows.x[3] = 1e300
    with pytest.raises(InputError, match="before the first step: labels, weights or features are too large"):
        fitted(rows, MACHINE, change_plan(MINIBATCH, maxIter=2))
