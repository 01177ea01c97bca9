"""Estimators reach the minima of pyspark.ml's own, which ``tests/pyspark_fits.py`` has recorded, or SciPy's."""

from __future__ import annotations

import itertools

import numpy as np
import pyspark_fits as theirs
import pytest
import scipy.sparse as sp
from array_fits import fit_arrays, numbers
from pyspark.ml.linalg import Vectors
from scipy.optimize import minimize
from scipy.special import logsumexp

from ps2 import algorithms
from ps2.algorithms import LinearRegression, LogisticRegression
from ps2.algorithms.linear.models import as_matrix
from ps2.errors import InputError

RECORDED = theirs.recorded()
SCALED = theirs.scaled()
X = SCALED.pop("features")
BOTH = SCALED.pop("both")
SPARSE = sp.csr_array(X)


def fit(estimator):
    return fit_arrays(estimator, SPARSE, **SCALED)


@pytest.mark.parametrize("name", theirs.LOGISTIC)
def test_logistic_when_pyspark_fits_the_same_then_agree(name):
    model = fit(LogisticRegression(**theirs.LOGISTIC[name], **theirs.EXACT))
    np.testing.assert_allclose(numbers(model), RECORDED["logistic"][name]["numbers"], atol=1e-3)


@pytest.mark.parametrize("name", theirs.LINEAR)
def test_linear_when_pyspark_fits_the_same_then_agree(name):
    model = fit(LinearRegression(labelCol="value", solver="l-bfgs", **theirs.LINEAR[name], **theirs.EXACT))
    np.testing.assert_allclose(numbers(model), RECORDED["linear"][name]["numbers"], atol=1e-3)


@pytest.mark.parametrize("name", theirs.NORMAL)
def test_normal_equations_when_solved_by_pyspark_then_agree(name):
    params, expected = theirs.NORMAL[name], RECORDED["normal"][name]
    model = fit(LinearRegression(labelCol="value", **theirs.EXACT, **params))
    np.testing.assert_allclose(numbers(model), expected["numbers"], rtol=1e-5, atol=1e-6)
    assert model.summary.reason == "the normal equations were solved"
    if "elasticNetParam" not in params:
        np.testing.assert_allclose(standard_errors(model, params), expected["errors"], rtol=1e-5)


def standard_errors(model, params):
    weight = SCALED["weight"] if "weightCol" in params else np.ones(len(X))
    residual = SCALED["value"] - X @ model.coefficients.toArray() - model.intercept
    inverse = np.array(model.summary.history.metrics["inverse_diagonal"])
    return np.sqrt(inverse * (weight @ residual**2) / (len(X) - len(inverse)))


def test_normal_equations_when_column_is_duplicated_then_agree():
    model = fit_arrays(LinearRegression(labelCol="value", **theirs.EXACT), BOTH, **SCALED)
    np.testing.assert_allclose(numbers(model), RECORDED["twice"]["numbers"], atol=1e-4)


def times():
    """Times in milliseconds, as two columns that nearly agree, among rare features; 2 later - late is the value."""
    number = np.arange(400.0)
    late = 1.7e12 + 25 * number
    later = late + number * 7919 % 13
    many = sp.csr_array((np.ones(400), (np.arange(400), np.arange(400) % 197)), (400, 200))
    x = sp.hstack([late[:, None], later[:, None], many], format="csr")
    return x, {"value": 2 * later - late, "weight": number % 9 + 1}


@pytest.mark.parametrize("params", [{}, {"solver": "normal", "weightCol": "weight"}])
def test_normal_equations_when_sparse_times_then_no_cancellation(params):
    x, columns = times()
    coefficients = fit_arrays(LinearRegression(labelCol="value", **params), x, **columns).coefficients.toArray()
    np.testing.assert_allclose(coefficients, [-1.0, 2.0] + [0.0] * 200, atol=1e-3)


def test_normal_equations_when_float64_is_too_coarse_then_warn(caplog):
    """Without an intercept both times are the same number but for their last digits."""
    x, columns = times()
    model = fit_arrays(LinearRegression(labelCol="value", fitIntercept=False), x, **columns)
    assert "feature 1 is a linear combination of other features, to the precision of float64" in caplog.text
    assert model.summary.reason == "the normal equations were solved, for the shortest weights"


WITH_WEIGHTS = [
    (algorithms.LogisticRegression, {"labelCol": "two", "regParam": 0.1}),
    (algorithms.LinearSVC, {"labelCol": "two", "regParam": 0.1}),
    (algorithms.LinearRegression, {"labelCol": "value", "regParam": 0.3}),
    (algorithms.LinearRegression, {"labelCol": "value", "loss": "huber"}),
    (algorithms.FMRegressor, {"labelCol": "value", "stepSize": 0.01, "maxIter": 3}),
]
SIZED = [(*given, size) for given, size in zip(WITH_WEIGHTS, itertools.cycle([1e-300, 1e307]), strict=False)]


@pytest.mark.parametrize(("kind", "params", "size"), [*SIZED, (*WITH_WEIGHTS[0], 1e307)])
def test_fit_when_weights_are_tiny_or_huge_then_ratios_count(kind, params, size):
    estimator = kind(weightCol="weight", **params)
    sized = fit_arrays(estimator, SPARSE, **{**SCALED, "weight": SCALED["weight"] * size})
    np.testing.assert_allclose(numbers(sized), numbers(fit(estimator)), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("solver", ["normal", "l-bfgs"])
def test_fit_when_unscaled_feature_is_tiny_then_weight_is_huge(solver):
    number = np.arange(50)
    a, b = number % 7, number % 5
    estimator = LinearRegression(standardization=False, solver=solver, tol=1e-12)
    model = fit_arrays(estimator, np.column_stack([a * 1e-160, b]), label=2.0 * a - b + 3.5)
    np.testing.assert_allclose([*model.coefficients, model.intercept], [2e160, -1.0, 3.5], rtol=1e-6)


@pytest.mark.parametrize("name", theirs.BOUNDED)
def test_fit_when_bounds_equal_pyspark_then_coefficients_agree(name):
    params, expected = theirs.BOUNDED[name], RECORDED["bounded"][name]
    model = fit(LogisticRegression(regParam=0.02, **theirs.EXACT, **params))
    intercepts = model.interceptVector.toArray()
    coefficients, its = np.split(np.array(expected["numbers"]), [-len(intercepts)])
    # pyspark's L-BFGS-B ends a little before the minimum.
    scaled = model.coefficientMatrix.toArray() * theirs.SCALES
    np.testing.assert_allclose(scaled, coefficients.reshape(-1, 4) * theirs.SCALES, rtol=2e-4, atol=1e-4)
    assert model.summary.objectiveHistory[-1] <= expected["objective"] + 1e-9
    if len(its) > 1 and not any("Intercepts" in name for name in params):
        # Adding the same to all of them changes nothing.
        intercepts, its = intercepts - intercepts.mean(), its - its.mean()
    np.testing.assert_allclose(intercepts, its, atol=1e-4)
    assert "tolerance" in model.summary.reason


@pytest.mark.parametrize("name", theirs.RARE)
def test_multinomial_when_column_barely_varies_then_minimum(name):
    (params, _), expected, table = theirs.RARE[name], RECORDED["rare"][name], theirs.rare()
    model = fit_arrays(LogisticRegression(weightCol="weight", **params), table.pop("features"), **table)
    assert model.summary.objectiveHistory[-1] <= expected["objective"] + (1e-6 if name == "bounds" else 2e-7)
    its = np.array(expected["numbers"][-3:])
    np.testing.assert_allclose(model.interceptVector.toArray(), its, rtol=0.02, atol=0.02 * np.abs(its).max())


def minimum(x, y, weight, regParam=0.0, elasticNetParam=0.0, standardization=True, fitIntercept=True):
    """Return the least objective: weights are differences of two parts, so that an L1 penalty is smooth."""
    y, weight = y.astype(int), weight / weight.sum()
    mean = weight @ x
    scale = np.sqrt(weight @ (x - mean) ** 2 / (1.0 - weight @ weight))
    penalised = np.ones(x.shape[1]) if standardization else 1.0 / scale
    x = (x - mean * fitIntercept) / scale
    classes, width = y.max() + 1, x.shape[1]

    def objective(point):
        plus, minus, intercepts = np.split(point, [classes * width, 2 * classes * width])
        w = (plus - minus).reshape(classes, width)
        margins = x @ w.T + intercepts
        log_sums = logsumexp(margins, axis=1)
        slopes = weight[:, None] * (np.exp(margins - log_sums[:, None]) - np.eye(classes)[y])
        l1, l2 = regParam * elasticNetParam * penalised, regParam * (1.0 - elasticNetParam) * penalised**2
        value = weight @ (log_sums - margins[np.arange(len(y)), y]) + 0.5 * (l2 * w**2).sum()
        dw = (slopes.T @ x + l2 * w).reshape(-1)
        sizes = np.tile(l1, classes)
        of_intercepts = slopes.sum(axis=0) * fitIntercept
        return value + sizes @ (plus + minus), np.concatenate([dw + sizes, sizes - dw, of_intercepts])

    signed = 2 * classes * width
    limits = [(0.0, None)] * signed + [(None, None)] * classes
    if classes == 2:  # of two classes only one has weights
        limits = ([(0.0, 0.0)] * width + [(0.0, None)] * width) * 2 + [(0.0, 0.0), (None, None)]
    return minimize(
        objective,
        np.zeros(signed + classes),
        jac=True,
        method="L-BFGS-B",
        bounds=limits,
        options={"maxiter": 10**4, "maxfun": 10**5, "ftol": 1e-15, "gtol": 1e-10, "maxcor": 50},
    ).fun


NONE, RIDGE, LASSO = {}, {"regParam": 0.1}, {"regParam": 0.05, "elasticNetParam": 1.0}
ELASTIC = {"regParam": 0.1, "elasticNetParam": 0.5}
AS_GIVEN, THROUGH_0 = {"standardization": False}, {"fitIntercept": False}


@pytest.mark.parametrize(
    ("classes", "form", "penalty"),
    [
        (2, AS_GIVEN, NONE),
        (3, THROUGH_0, NONE),
        (2, THROUGH_0, RIDGE),
        (3, AS_GIVEN, RIDGE),
        (2, AS_GIVEN, LASSO),
        (3, THROUGH_0, LASSO),
        (2, THROUGH_0, ELASTIC),
        (3, AS_GIVEN, ELASTIC),
    ],
)
def test_fit_when_penalties_differ_then_the_minimum_is_found(classes, form, penalty):
    """The last feature varies as others do, and classes are about as frequent."""
    table = theirs.classes(500, [*theirs.MEANS[:3], 1.199], [*theirs.VARIANCES[:3], 0.581])
    x, y, weight = (values[table["label"] < classes] for values in table.values())
    model = fit_arrays(LogisticRegression(weightCol="weight", **form, **penalty), x, label=y, weight=weight)
    least = minimum(x, y, weight, **form, **penalty)
    assert model.summary.objectiveHistory[-1] == pytest.approx(least, rel=1e-6)


@pytest.mark.parametrize(("rows", "width"), theirs.SHAPES)
def test_matrix_when_entries_are_0_then_has_the_form_of_pysparks(rows, width):
    matrices = [theirs.entries(rows, width, count) for count in range(rows * width + 1)]
    models = [as_matrix(entries) for entries in matrices]
    assert [theirs.form(model) for model in models] == RECORDED["forms"][f"{rows} x {width}"]
    for model, entries in zip(models, matrices, strict=True):
        np.testing.assert_array_equal(model.toArray(), entries)


@pytest.mark.parametrize("name", theirs.ONE_CLASS)
def test_rows_when_all_of_one_class_then_match_pyspark(name, caplog):
    label, classes, params = theirs.ONE_CLASS[name]
    estimator, metadata = LogisticRegression(**params), theirs.described(classes)
    model = fit_arrays(estimator, theirs.ONE_X, metadata=metadata, label=np.full(3, label))
    heads = [theirs.head(model, Vectors.dense(x)) for x in theirs.ONE_X]
    intercepts = list(model.interceptVector)
    expected = {"form": theirs.form(model.coefficientMatrix), "intercepts": intercepts, "heads": heads}
    assert expected == RECORDED["one class"][name]
    assert model.summary.totalIterations == 0
    assert "all rows are of class" in caplog.text


def test_fit_when_labels_exceed_family_then_error():
    with pytest.raises(InputError, match="expected 2 classes"):
        fit(LogisticRegression(labelCol="three", family="binomial"))


def test_summary_when_a_model_was_fitted_then_it_tells_how():
    summary = fit(LogisticRegression(labelCol="two", maxIter=2, regParam=0.1)).summary
    assert summary.totalIterations == len(summary.stepSeconds) == 2
    assert summary.objectiveHistory[-1] < summary.objectiveHistory[0]
    assert summary.bytes > 0
    assert summary.rows >= 2 * len(X)


class Machine:
    """pyspark.ml's steps of a factorization machine, in plain NumPy, from weights to begin with."""

    def __init__(self, begun, label):
        self.y, self.is_class = SCALED[label], label == "two"
        self.numbers = begun
        self.m, self.s = np.zeros((2, len(self.numbers)))

    def gradient(self):
        dim = X.shape[1]
        intercept, linear, factors = self.numbers[0], self.numbers[1 : dim + 1], self.numbers[dim + 1 :]
        factors = factors.reshape(dim, -1)
        sums = X @ factors
        margins = intercept + X @ linear + 0.5 * (sums**2 - X**2 @ factors**2).sum(axis=1)
        slopes = 1 / (1 + np.exp(-margins)) - self.y if self.is_class else 2 * (margins - self.y)
        of_factors = X.T @ (slopes[:, None] * sums) - factors * (slopes @ X**2)[:, None]
        return np.array([slopes.sum(), *(slopes @ X), *of_factors.reshape(-1)]) / len(self.y)

    def step(self, t, solver, lr, decay):
        g = self.gradient()
        if solver == "gd":
            lr = lr / np.sqrt(t)
            self.numbers = (1 - lr * decay) * self.numbers - lr * g
            return
        self.m, self.s = 0.9 * self.m + 0.1 * g, 0.999 * self.s + 0.001 * g**2
        step = self.m / (1 - 0.9**t) / (np.sqrt(self.s / (1 - 0.999**t)) + 1e-8)
        self.numbers = (1 - decay) * self.numbers - lr * step


@pytest.mark.parametrize("name", theirs.MACHINES)
def test_fm_when_pyspark_takes_same_steps_then_models_agree(name):
    """Factors begin elsewhere, as random numbers do: each side is followed from its own beginning."""
    kind, params = theirs.MACHINES[name]
    ours = [numbers(fit(getattr(algorithms, kind)(**params, **how))) for how in ({"maxIter": 0}, theirs.STEPS)]
    for begun, ended in (ours, RECORDED["machines"][name]):
        machine = Machine(np.array(begun), params["labelCol"])
        assert machine.numbers[0] == 0
        for t in range(1, 7):
            machine.step(t, params["solver"], theirs.STEPS["stepSize"], theirs.STEPS["regParam"])
        np.testing.assert_allclose(ended, machine.numbers, rtol=1e-6, atol=1e-9)
