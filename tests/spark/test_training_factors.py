"""Sufficient factors: gradients of the multinomial model that travel as two thin matrices."""

from __future__ import annotations

import numpy as np
import pytest
from training import make, trained

from ps2.algorithms.linear.problem import Problem, SolverOptions
from ps2.algorithms.linear.solvers import minibatch

# KD = 400 numbers as they are; as factors S (K + D) = 0.1 * 30 * 50 of them on each of two workers.
CLASSES, DIM = 10, 40
PROBLEM = Problem("softmax", DIM, CLASSES, l2=0.01, standardize=False)


@pytest.fixture(scope="module")
def rows():
    return make(n=60, dim=DIM, cuts=(30,), classes=CLASSES)


@pytest.fixture(scope="module")
def frame(spark, rows):
    return rows.frame(spark)


def ended(ps, frame, rows, fraction):
    recipe = SolverOptions(solver="minibatch", optimizer="sgd", steps=5, fraction=fraction, seed=3)
    made = trained(ps, frame, rows, PROBLEM, recipe)
    w = made.weight.pull()
    made.weight.free()
    return w, made.biases, made.history


class Values(minibatch.MinibatchWorker):
    """Sends gradients as they are."""

    def _gradient(self, rows, w, b, columns):
        found = self.loss.gradient(rows, w, b)
        return found, minibatch.SentValues(found.dw * self.scale, columns)


@pytest.mark.parametrize(("fraction", "smaller"), [(0.1, True), (1.0, False)])
def test_gradients_when_rows_are_few_then_sent_as_factors(ps, by_value, rows, frame, monkeypatch, fraction, smaller):
    w, b, history = ended(ps, frame, rows, fraction)
    monkeypatch.setattr(minibatch, "MinibatchWorker", Values)
    expected, intercepts, plain = ended(ps, frame, rows, fraction)
    np.testing.assert_allclose(w, expected, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(b, intercepts, rtol=1e-6)
    assert np.count_nonzero(w)
    if smaller:
        assert history.bytes < 0.9 * plain.bytes
    else:
        assert history.bytes == plain.bytes
