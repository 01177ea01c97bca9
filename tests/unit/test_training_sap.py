"""Coordinate descent by schedule: the minimum by its conditions, whoever holds which rows."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from array_fits import fit_arrays
from lasso import correlated, largest_strength, violation
from training import Rows, change_plan, fit, minimum, objective, plan_of

from ps2.algorithms import LinearRegression, LinearSVC, LogisticRegression
from ps2.algorithms.linear.parameters import SPARSE_FROM
from ps2.algorithms.linear.plan import SCHEDULES, Problem
from ps2.algorithms.linear.settings import PathSettings
from ps2.algorithms.linear.solvers import sap
from ps2.errors import ConfigError, InputError

EXACT = plan_of("sap", tol=1e-9)
SQUARED, LOGISTIC = Problem("squared", 12, l1=0.05), Problem("logistic", 12, l1=0.02)


@pytest.fixture(scope="module")
def rows():
    return correlated()


@pytest.fixture(scope="module")
def two():
    return correlated(classes=True)


def found(rows, problem, options=EXACT):
    """Weights of features as they are given, the intercept, and the fit."""
    created = fit(rows, problem, options)
    assert created.history.reason != "no step lowers the objective beyond rounding"
    return created.w[:, 0], created.biases[0], created


# Each pair of values of any two: L2 penalty, intercept, standardize.
FORMS = [(0.0, True, True), (0.0, False, False), (0.03, True, False), (0.03, False, True)]


@pytest.mark.parametrize(("l2", "intercept", "standardize"), FORMS)
@pytest.mark.parametrize("problem", [SQUARED, LOGISTIC], ids=lambda p: p.loss)
def test_sap_when_converged_then_conditions_of_minimum_hold(rows, two, problem, l2, intercept, standardize):
    problem = replace(problem, l2=l2, fit_intercept=intercept, standardize=standardize)
    inputs = rows if problem.loss == "squared" else two
    w, b, created = found(inputs, problem)
    assert violation(problem, inputs, w, b) < 1e-6
    assert 0 < np.count_nonzero(w) < 12
    reached = objective(problem, inputs, w[:, None], created.biases)
    assert created.history.objective[-1] == pytest.approx(reached, rel=1e-9)
    assert created.history.objective[0] > reached
    assert created.history.reason == "the duality gap is within the tolerance"
    assert reached == pytest.approx(minimum(problem, inputs), rel=1e-5)


@pytest.mark.parametrize("problem", [SQUARED, LOGISTIC], ids=lambda p: p.loss)
def test_sap_when_lbfgs_trains_too_then_objectives_agree(rows, two, problem):
    inputs = rows if problem.loss == "squared" else two
    _, _, ours = found(inputs, problem)
    _, _, theirs = found(inputs, problem, plan_of(maxIter=300, tol=1e-12))
    assert ours.history.objective[-1] <= theirs.history.objective[-1] * (1 + 1e-9)
    assert ours.history.objective[-1] == pytest.approx(theirs.history.objective[-1], rel=1e-5)


@pytest.mark.parametrize("cuts", [(), (10,)], ids=["1", "2"])
@pytest.mark.parametrize("problem", [SQUARED, LOGISTIC], ids=lambda p: p.loss)
def test_sap_when_rows_are_with_other_workers_then_same(problem, cuts):
    inputs = correlated(cuts=cuts, classes=problem.loss == "logistic")
    w, b, _ = found(inputs, problem)
    assert violation(problem, inputs, w, b) < 1e-6


@pytest.mark.parametrize("problem", [SQUARED, LOGISTIC], ids=lambda p: p.loss)
def test_sap_when_trained_again_then_bits_are_the_same(rows, two, problem):
    inputs = rows if problem.loss == "squared" else two
    first, again = (found(inputs, problem, change_plan(EXACT, set_size=3, seed=4)) for _ in range(2))
    assert (first[0].tobytes(), first[1]) == (again[0].tobytes(), again[1])
    assert first[2].history.objective == again[2].history.objective


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("problem", [SQUARED, LOGISTIC], ids=lambda p: p.loss)
def test_sap_when_sets_are_small_then_every_schedule_converges(rows, two, problem, schedule, monkeypatch):
    for limit in ("MAX_NEW", "MAX_CACHED", "MAX_NEW_LOGISTIC"):
        monkeypatch.setattr(sap, limit, 4)
    inputs = rows if problem.loss == "squared" else two
    options = change_plan(EXACT, tol=1e-5, maxIter=2000, set_size=4, schedule=schedule)
    w, b, created = found(inputs, problem, options)
    assert violation(problem, inputs, w, b) < 1e-2 * problem.l1
    assert created.history.reason == "the duality gap is within the tolerance"
    assert (np.diff(created.history.objective) <= 1e-12).all()


@pytest.mark.parametrize(("problem", "times"), [(SQUARED, 1.0), (LOGISTIC, 1.0), (LOGISTIC, 1.5)])
def test_strength_when_above_the_largest_then_no_step(rows, two, problem, times):
    inputs = rows if problem.loss == "squared" else two
    largest = largest_strength(problem, inputs)
    w, _, created = found(inputs, replace(problem, l1=largest * times * (1 + 1e-12)))
    assert (np.count_nonzero(w), created.history.steps) == (0, 0)
    w, _, created = found(inputs, replace(problem, l1=largest * 0.999))
    assert np.count_nonzero(w) == 1


@pytest.mark.parametrize("l1", [0.05, 1e3])
def test_sap_when_tolerance_is_0_then_stops_at_rounding(rows, l1):
    problem = replace(SQUARED, l1=l1)
    created = fit(rows, problem, change_plan(EXACT, tol=0.0))
    assert violation(problem, rows, created.w[:, 0], created.biases[0]) < 1e-9
    assert created.history.steps < 20


@pytest.mark.parametrize("problem", [replace(SQUARED, l2=0.02), LOGISTIC], ids=lambda p: p.loss)
def test_path_when_trained_then_each_model_is_a_minimum(rows, two, problem):
    inputs = rows if problem.loss == "squared" else two
    path = PathSettings(lambdaPath=[3.0, 1.0, 0.5, 0.1])
    _, _, created = found(inputs, problem, change_plan(EXACT, path=path))
    assert [point.strength for point in created.path] == [3.0, 1.0, 0.5, 0.1]
    for point in created.path:
        w = np.zeros(12)
        w[point.columns] = point.w
        one = replace(problem, l1=problem.l1 * point.strength, l2=problem.l2 * point.strength)
        assert violation(one, inputs, w, point.bias) < 1e-6
        assert point.history.objective[-1] == pytest.approx(
            objective(one, inputs, w[:, None], np.array([point.bias])), rel=1e-9
        )
        assert len(point.history.objective) == point.history.steps + 1


def test_path_when_only_counted_then_begins_at_the_largest(rows):
    _, _, created = found(
        rows, replace(SQUARED, l1=1.0), change_plan(EXACT, path=PathSettings(lambdaCount=5, lambdaRatio=0.01))
    )
    strengths = np.array([point.strength for point in created.path])
    assert strengths[0] == pytest.approx(largest_strength(SQUARED, rows))
    np.testing.assert_allclose(strengths[1:] / strengths[:-1], 0.01**0.25)
    assert len(created.path[0].columns) == 0
    assert len(created.path[-1].columns) > 3


def odd(rows, kind):
    """Rows with columns that are hard for coordinate descent."""
    x = rows.x.copy()
    if kind == "zeros":
        x[:, 3] = 0.0
    elif kind == "constant":
        x[:, 3] = 0.1
    elif kind == "equal":
        x[:, 3] = x[:, 0]
    elif kind == "far":
        x[:, 0] += 1e7
    elif kind == "absent":
        x[: rows.cuts[0], 0] = 0.0
        x[rows.cuts[0] :, 0] += 5.0
    return replace(rows, x=x)


@pytest.mark.parametrize(
    ("kind", "standardize"),
    [(kind, True) for kind in ("zeros", "constant", "equal", "far", "absent")] + [("constant", False), ("far", False)],
)
def test_columns_when_odd_then_conditions_of_minimum_hold(rows, kind, standardize):
    inputs, problem = odd(rows, kind), replace(SQUARED, standardize=standardize)
    w, b, _ = found(inputs, problem)
    shift = 1e7 * (kind == "far")
    near = replace(inputs, x=inputs.x - [shift] + np.append(0, np.full(11, shift)))
    assert violation(problem, near, w, b + shift * w[0]) < 1e-6
    assert w[3] == 0 or kind not in ("zeros", "constant")


def test_features_when_one_then_weight_is_known():
    inputs = Rows(np.arange(8.0)[:, None], 3 * np.arange(8.0) + 1, np.ones(8), (4,))
    w, b, _ = found(inputs, Problem("squared", 1, l1=0.5, standardize=False))
    variance = np.arange(8.0).var()
    assert w[0] == pytest.approx(3 - 0.5 / variance)
    assert b == pytest.approx(inputs.y.mean() - 3.5 * w[0])


def test_features_when_more_than_rows_then_minimum_is_found():
    inputs = correlated(n=20, dim=60, cuts=(7,))
    problem = Problem("squared", 60, l1=0.02)
    w, b, _ = found(inputs, problem)
    assert violation(problem, inputs, w, b) < 1e-6
    assert 0 < np.count_nonzero(w) <= 20


def test_labels_when_all_equal_then_no_weight(rows):
    inputs = replace(rows, y=np.full(80, 3.0))
    w, b, created = found(inputs, SQUARED)
    assert (np.count_nonzero(w), b, created.history.steps) == (0, pytest.approx(3.0), 0)


@pytest.mark.parametrize("steps", [0, 1])
def test_sap_when_steps_are_few_then_takes_no_more(two, steps):
    _, _, created = found(two, LOGISTIC, change_plan(EXACT, maxIter=steps))
    assert created.history.steps == steps
    assert re.fullmatch(
        r"all iterations were made; the duality gap is \d\.\de.\d\d of the objective", created.history.reason
    )


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (Problem("softmax", 12, 3, l1=0.1), "solver: 'sap' is for .*, got the multinomial model; 'l-bfgs' takes it"),
        (Problem("huber", 12, l1=0.1), "got loss 'huber'"),
        (Problem("squared", 12, l2=0.1), "solver: 'sap' is for L1 penalties, got l1=0"),
        (Problem("squared", SPARSE_FROM, l1=0.1), "solver: 'sap' takes fewer than 4,194,304 features, got 4,194,304"),
    ],
)
def test_problem_when_not_for_sap_then_error_says_which(rows, problem, message):
    with pytest.raises(ConfigError, match=message):
        fit(rows, problem, EXACT)


def test_features_when_too_large_then_error_says_so(rows):
    inputs = replace(rows, x=rows.x * 1e200)
    with pytest.raises(InputError, match="the square of feature 0 overflows"), np.errstate(all="ignore"):
        found(inputs, replace(SQUARED, standardize=False))


def test_labels_when_too_large_then_error_says_so(rows):
    inputs = replace(rows, y=rows.y * 1e200)
    with (
        pytest.raises(InputError, match=r"the objective is (inf|nan) before the first step"),
        np.errstate(all="ignore"),
    ):
        found(inputs, SQUARED)


LASSO = {"elasticNetParam": 1.0, "solver": "sap", "weightCol": "weight", "tol": 1e-9}


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (LinearRegression(solver="sap"), "solver: 'sap' is for L1 penalties: .* got 0 and 0; 'l-bfgs' takes"),
        (LogisticRegression(solver="sap", regParam=0.1), "solver: 'sap' is for L1 penalties: .* got 0.1 and 0"),
        (LinearRegression(**LASSO), "regParam and elasticNetParam above 0, got 0 and 1"),
        (LinearRegression(**LASSO, regParam=0.1, loss="huber"), "elasticNetParam: loss 'huber' takes L2"),
        (
            LinearRegression(**LASSO, regParam=0.1, validationIndicatorCol="held"),
            "validationIndicatorCol: solver 'sap' does not support early stopping",
        ),
        (LinearRegression(**LASSO, regParam=0.1, stepSize=0.3), "stepSize: solver 'sap' does not take it"),
        (LinearSVC(solver="sap"), "solver: expected one of auto, l-bfgs, minibatch, ma-sgd, ftsgd, got 'sap'"),
        (LogisticRegression(**LASSO, regParam=0.1, family="multinomial"), "'sap' is for .* got the multinomial"),
        (LinearRegression(**LASSO, regParam=0.1, lambdaPath=[0.1]), "lambdaPath: fit trains one model"),
        (LinearRegression(elasticNetParam=1.0, lambdaCount=3), "lambdaCount: fit trains one model"),
    ],
)
def test_fit_when_sap_cannot_then_error_says_why(two, estimator, message):
    with pytest.raises(ConfigError, match=message):
        fit_arrays(estimator, two.x, label=two.y, weight=two.c)
