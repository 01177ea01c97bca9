"""Linear models that one worker trains in its own process are those of servers, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from array_fits import fit_arrays

from ps2.algorithms import FMClassifier, LinearRegression, LinearSVC, LogisticRegression

ESTIMATORS = {
    "l-bfgs": LogisticRegression(maxIter=20, regParam=0.01),
    "orthant": LogisticRegression(maxIter=20, regParam=0.01, elasticNetParam=1.0),
    "sap": LogisticRegression(maxIter=5, regParam=0.01, elasticNetParam=1.0, solver="sap"),
    "normal": LinearRegression(regParam=0.1),
    "weighted": LinearRegression(regParam=0.1, labelCol="number", weightCol="weight"),
    "huge weights": LinearRegression(regParam=0.1, labelCol="number", weightCol="huge"),
    "held out": LinearRegression(maxIter=5, solver="l-bfgs", labelCol="number", validationIndicatorCol="held"),
    "minibatch": LogisticRegression(maxIter=10, optimizer="adam", miniBatchFraction=0.3),
    "hinge": LinearSVC(maxIter=10, solver="ma-sgd"),
    "factors": FMClassifier(maxIter=5, factorSize=2),
}
RNG = np.random.default_rng(5)
X = RNG.normal(size=(200, 12))
WEIGHT = RNG.exponential(size=200)
COLUMNS = {
    "label": (X @ RNG.normal(size=12) + RNG.normal(size=200) > 0).astype(float),
    "number": 3.0 + RNG.normal(size=200),
    "weight": WEIGHT,
    "huge": WEIGHT * 1e300,
    "held": RNG.random(200) < 0.2,
}


def fit(estimator, via):
    return fit_arrays(estimator.copy().setVia(via), X, workers=1, **COLUMNS)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_fit_when_local_then_model_is_that_of_servers(name):
    local, servers = (fit(ESTIMATORS[name], via) for via in ("local", "servers"))
    weights = "linear" if name == "factors" else "coefficients"
    assert getattr(local, weights).toArray().tolist() == getattr(servers, weights).toArray().tolist()
    assert local.summary.objectiveHistory == servers.summary.objectiveHistory
