"""The program of the paper's Figure 3, and the same maths in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from ps2 import DCV

DIM = 40
STEPS = 8
FRACTION = 0.6
LR, BETA1, BETA2, EPS = 0.1, 0.9, 0.999, 1e-8  # BETA1 of the gradients, BETA2 of their squares


def make_rows():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(200, DIM))
    return [(float(x[i] @ np.linspace(-1, 1, DIM) > 0), x[i]) for i in range(len(x))]


@pytest.fixture(scope="module")
def data(sc):
    return sc.parallelize(make_rows(), 2).cache()


@pytest.fixture(scope="module")
def samples(data):
    """The rows that each step samples, by partition."""
    return [data.sample(False, FRACTION, seed=step).glom().collect() for step in range(1, STEPS + 1)]


@pytest.fixture(scope="module")
def trained(ps, data):
    """The weights of Figure 3, and how many rows each step had."""
    # NumPy is pickled by reference; our own functions here are not importable in a worker.
    beta1, beta2, lr, eps = BETA1, BETA2, LR, EPS
    weight = DCV.dense(DIM, 4, "float64")
    velocity = DCV.derive(weight).fill(0.0)
    square = DCV.derive(weight).fill(0.0)
    gradient = DCV.derive(weight)
    counts = []
    for step in range(1, STEPS + 1):
        gradient.zero()

        def compute(rows):
            local_weight = weight.pull()
            local_gradient, count = np.zeros(len(local_weight)), 0
            for label, x in rows:
                local_gradient += (1 / (1 + np.exp(-(x @ local_weight))) - label) * x
                count += 1
            gradient.add(local_gradient)
            yield count

        counts.append(data.sample(False, FRACTION, seed=step).mapPartitions(compute).sum())

        def update(w, v, s, g, step=step):
            v[:] = beta1 * v + (1 - beta1) * g
            s[:] = beta2 * s + (1 - beta2) * g**2
            w -= lr / (np.sqrt(s / (1 - beta2**step)) + eps) * v / (1 - beta1**step)

        weight.zip(velocity, square, gradient.div(counts[-1])).mapPartitions(update)
    return weight.pull(), counts


def model(samples):
    """The same in NumPy: the sum of the partitions' gradients, then Equation 1."""
    w, v, s = np.zeros(DIM), np.zeros(DIM), np.zeros(DIM)
    for step, partitions in enumerate(samples, 1):
        g = np.zeros(DIM)
        for rows in partitions:
            for label, x in rows:
                g += (1 / (1 + np.exp(-(x @ w))) - label) * x
        g /= sum(map(len, partitions))
        v = BETA1 * v + (1 - BETA1) * g
        s = BETA2 * s + (1 - BETA2) * g**2
        w = w - LR / (np.sqrt(s / (1 - BETA2**step)) + EPS) * v / (1 - BETA1**step)
    return w


def test_figure_3_when_run_then_its_weights_are_those_of_numpy(trained, samples):
    np.testing.assert_allclose(trained[0], model(samples), rtol=1e-9)


def test_figure_3_when_run_then_every_sampled_row_was_seen(trained, samples):
    assert trained[1] == [sum(map(len, partitions)) for partitions in samples]


def test_figure_3_when_run_then_it_learns(trained):
    right = [(x @ trained[0] > 0) == (label > 0) for label, x in make_rows()]
    assert np.mean(right) > 0.9
