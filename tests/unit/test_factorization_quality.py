"""What factorization machines are for: interactions that no linear model can learn."""

from __future__ import annotations

import numpy as np
from array_fits import fit_arrays

from ps2.algorithms import FMClassifier, FMRegressor, LogisticRegression

FM = {"factorSize": 4, "initStd": 0.1, "stepSize": 0.05, "maxIter": 150, "seed": 3}
# The label is the product of the first two signs.
X = np.sign(np.random.default_rng(7).standard_normal((600, 8)))
PRODUCT = X[:, 0] * X[:, 1]
TRAIN, TEST = X[::2], X[1::2]
COLUMNS = {"label": (PRODUCT[::2] > 0).astype(float), "product": PRODUCT[::2]}


def margins(machine, x=TEST):
    factors = machine.factors.toArray()
    pairs = ((x @ factors) ** 2 - x**2 @ factors**2).sum(axis=1) / 2
    return machine.intercept + x @ machine.linear.toArray() + pairs


def area(scores):
    """The share of pairs of a positive and a negative row that scores put in order."""
    positive, negative = scores[PRODUCT[1::2] > 0], scores[PRODUCT[1::2] < 0]
    return (np.sign(positive[:, None] - negative).mean() + 1) / 2


def test_fm_classifier_when_label_is_interaction_then_learns_it():
    linear = fit_arrays(LogisticRegression(regParam=0.01), TRAIN, **COLUMNS)
    assert area(TEST @ linear.coefficients.toArray()) < 0.65
    assert area(margins(fit_arrays(FMClassifier(**FM), TRAIN, **COLUMNS))) > 0.95


def test_fm_regressor_when_label_is_interaction_then_explains_it():
    machine = fit_arrays(FMRegressor(labelCol="product", **FM), TRAIN, **COLUMNS)
    expected = PRODUCT[1::2]
    assert ((margins(machine) - expected) ** 2).mean() < 0.05 * expected.var()


def test_fm_default_when_features_are_positive_then_error_is_low():
    # AdamW with pyspark.ml's step size of 1 ends here at an error above that of the mean.
    x = np.abs(np.random.default_rng(8).standard_normal((600, 20)))
    y = x[:, 0] * x[:, 1] + x[:, 2]
    errors = {
        solver: ((margins(fit_arrays(FMRegressor(seed=3, solver=solver), x, label=y), x) - y) ** 2).mean() / y.var()
        for solver in ("auto", "adamW")
    }
    assert errors["auto"] < 0.05 < 1.0 < errors["adamW"]
