"""Sufficient factors: gradients of the multinomial model that travel as two thin matrices."""

from __future__ import annotations

import numpy as np
import pytest
from array_fits import fit_arrays
from training import change_plan, fit, make, plan_of

from ps2.algorithms import LogisticRegression
from ps2.algorithms.linear.plan import Problem
from ps2.algorithms.training.faults import ColumnNames
from ps2.errors import ConfigError

# KD = 400 numbers as they are; as factors S (K + D) = 0.1 * 30 * 50 of them on each of two workers.
CLASSES, DIM = 10, 40
PROBLEM = Problem("softmax", DIM, CLASSES, l2=0.01, standardize=False)
FEW, ALL = (plan_of("minibatch", optimizer="sgd", maxIter=5, miniBatchFraction=share, seed=3) for share in (0.1, 1.0))
LBFGS = plan_of(maxIter=5)
FACTORS = "always", "never", "auto"


@pytest.fixture(scope="module")
def rows():
    """Some are sparse, of 40 features in two shards."""
    return make(n=60, dim=DIM, cuts=(30,), classes=CLASSES, zeros=0.3)


def ended(rows, options):
    created = fit(rows, PROBLEM, options, ColumnNames(), stride=1)
    return created.w, created.biases, created.history


@pytest.mark.parametrize("options", [FEW, ALL, LBFGS], ids=["few", "all", "l-bfgs"])
def test_gradients_when_sent_either_way_then_same_weights(rows, options):
    (w, b, factors), (expected, intercepts, values), (_, _, auto) = (
        ended(rows, change_plan(options, factors=asked)) for asked in FACTORS
    )
    np.testing.assert_allclose(w, expected, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(b, intercepts, rtol=1e-6, atol=1e-9)
    assert np.count_nonzero(w)
    assert factors.gradients.factored == factors.gradients.count
    assert values.gradients.factored == 0
    assert auto.bytes == min(factors.bytes, values.bytes)


def test_gradients_when_model_is_large_then_sent_as_factors(rows, monkeypatch):
    """Models of more than 4 million weights are of float32, with all columns if the rows use these."""
    monkeypatch.setattr("ps2.algorithms.linear.parameters.SPARSE_FROM", 100)
    w, _, factored = ended(rows, change_plan(FEW, all_columns=True))
    created = fit(rows, PROBLEM, FEW, ColumnNames(), stride=1)  # used columns alone
    assert created.is_sparse
    assert created.history.gradients is None
    np.testing.assert_allclose(w, created.w, rtol=1e-4, atol=1e-6)
    assert (w.dtype, factored.gradients.factored) == (np.float32, 10)


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"family": "binomial"}, r"^factors: 'always' is for the multinomial model"),
        ({"solver": "ma-sgd"}, r"^factors: solver 'ma-sgd' does not take it, only 'l-bfgs', 'minibatch'"),
    ],
)
def test_fit_when_factors_cannot_be_then_error_says_why(params, said):
    two = make()
    with pytest.raises(ConfigError, match=said):
        fit_arrays(LogisticRegression(factors="always", **params), two.x, label=two.y)
