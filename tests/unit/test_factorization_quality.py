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


def margins(machine):
    factors = machine.factors.toArray()
    pairs = ((TEST @ factors) ** 2 - TEST**2 @ factors**2).sum(axis=1) / 2
    return machine.intercept + TEST @ machine.linear.toArray() + pairs


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
