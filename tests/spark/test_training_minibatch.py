"""Minibatch training on real servers takes the steps that NumPy takes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from training import COLUMNS, Rows, logistic_gradient, make, minimum, objective, trained

from ps2.algorithms.linear.losses.choice import loss_of
from ps2.algorithms.linear.parameters import SPARSE_FROM
from ps2.algorithms.linear.problem import Problem, SolverOptions
from ps2.algorithms.training.faults import ColumnNames
from ps2.ops.all import optimizer_steps

WEIGHTED = ColumnNames(weight="weight")
STEPS = 8
BOTH = {"l1": 0.02, "l2": 0.1}
EPS, LR = 1e-8, 0.3


@pytest.fixture(scope="module")
def rows():
    return make(cuts=(20,))


@pytest.fixture(scope="module")
def frame(spark, rows):
    return rows.frame(spark)


@pytest.fixture(scope="module")
def sparse():
    """Most entries are 0: a minibatch lacks some columns."""
    return make(n=40, dim=30, cuts=(25,), zeros=0.9)


@pytest.fixture(scope="module")
def sparse_frame(spark, sparse):
    return sparse.sparse_frame(spark)


class Plain:
    """One vector, stepped by the formulas."""

    def __init__(self, w, name, l1=0.0, l2=0.0):
        self.w, self.name, self.l1, self.l2 = np.array(w), name, l1, l2
        self.v, self.s, self.t = np.zeros_like(self.w), np.zeros_like(self.w), 0

    def step(self, g):
        self.t += 1
        if self.name == "ftrl":
            return self._ftrl(g)
        if self.name == "adam":
            self.s = 0.999 * self.s + 0.001 * g**2
            self.v = 0.9 * self.v + 0.1 * g
            move, h = self.v / (1 - 0.9**self.t), np.sqrt(self.s / (1 - 0.999**self.t)) + EPS
        elif self.name == "momentum":
            self.v = 0.9 * self.v + g
            move, h = 0.1 * self.v, 0.1
        elif self.name == "sgd":
            move, h = g, 1.0
        elif self.name in ("adagrad", "rmsprop"):
            keep, add = (1.0, 1.0) if self.name == "adagrad" else (0.9, 0.1)
            self.s = keep * self.s + add * g**2
            move, h = g, np.sqrt(self.s) + EPS
        else:
            raise NotImplementedError(f"the formula of optimizer {self.name!r} is missing here")
        w = self.w - LR * move / h
        self.w = np.sign(w) * np.maximum(np.abs(w) - LR * self.l1 / h, 0) / (1 + LR * self.l2 / h)

    def _ftrl(self, g):
        self.v += g - (np.sqrt(self.s + g**2) - np.sqrt(self.s)) / LR * self.w
        self.s += g**2
        excess = np.sign(self.v) * np.maximum(np.abs(self.v) - self.t * self.l1, 0)
        self.w = -excess / ((1 + np.sqrt(self.s)) / LR + self.t * self.l2)


def expected(rows: Rows, problem, name):
    """Weights and intercept after full steps."""
    first = loss_of(problem).first_biases(rows.facts(2))
    w = Plain(np.zeros(problem.dim), name, problem.l1, problem.l2)
    b = Plain(np.zeros(1) if name == "ftrl" else first, name)
    for _ in range(STEPS):
        gradient, of_bias = logistic_gradient(rows, w.w, b.w)
        w.step(gradient)
        b.step(of_bias)
    return w.w, b.w


def options_of(optimizer, lazy=False, steps=STEPS, **more):
    return SolverOptions(solver="minibatch", optimizer=optimizer, lazy=lazy, steps=steps, step_size=LR, **more)


# Other optimizers have an oracle of their own in tests/unit/test_ops.py.
FORMULAS = {"sgd", "momentum", "adagrad", "rmsprop", "adam", "ftrl"}
CASES = [(name, False, BOTH) for name in optimizer_steps() if name in FORMULAS]
CASES += [("ftrl", True, BOTH), ("adagrad", True, {}), ("adam", True, {})]


@pytest.mark.parametrize(("name", "lazy", "penalties"), CASES)
def test_full_steps_when_taken_then_equal_numpys(ps, rows, frame, name, lazy, penalties):
    problem = Problem("logistic", 5, standardize=False, **penalties)
    made = trained(ps, frame, rows, problem, options_of(name, lazy), WEIGHTED)
    w, b = expected(rows, problem, name)
    # The first gradient of the intercept is rounding, and Adam's step as long as for any other.
    tolerance = 1e-7 if name == "adam" else 1e-9
    np.testing.assert_allclose(made.weight.pull(), w, rtol=tolerance, atol=1e-12)
    np.testing.assert_allclose(made.biases, b, rtol=tolerance, atol=1e-12)
    made.weight.free()


@pytest.mark.parametrize(("name", "penalties"), [("adagrad", {}), ("ftrl", BOTH)])
def test_lazy_minibatches_when_columns_are_missing_then_as_plain(ps, sparse, sparse_frame, name, penalties):
    problem = Problem("logistic", 30, standardize=False, **penalties)
    plain, lazy = (
        trained(ps, sparse_frame, sparse, problem, options_of(name, lazy, 20, fraction=0.2, seed=4), WEIGHTED)
        for lazy in (False, True)
    )
    np.testing.assert_allclose(lazy.weight.pull(), plain.weight.pull(), rtol=1e-9, atol=1e-12)
    assert np.count_nonzero(lazy.weight.pull()) > 3
    for made in (plain, lazy):
        made.weight.free()


@pytest.mark.parametrize(("name", "lazy"), [("adagrad", False), ("ftrl", True)])
def test_full_steps_when_millions_of_features_then_little_memory(spark, ps, sparse, name, lazy):
    stride = SPARSE_FROM // 20
    problem = Problem("logistic", 29 * stride + 1, **BOTH)
    frame, keys = sparse.sparse_frame(spark, stride), np.arange(30) * stride
    made = trained(ps, frame, sparse, problem, options_of(name, lazy))
    plain = Rows(sparse.x, sparse.y, np.ones(40), sparse.cuts)
    std = np.sqrt(((plain.x - plain.x.mean(axis=0)) ** 2).sum(axis=0) / 39)
    std[std == 0] = np.inf
    w, b = expected(Rows(plain.x / std, plain.y, plain.c, plain.cuts), Problem("logistic", 30, **BOTH), name)
    assert made.weight.isSparse
    assert made.weight.dtype == np.float32
    np.testing.assert_allclose(made.weight.pull(keys), w / std, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(made.biases, b, rtol=1e-4)
    made.weight.free()


def test_minibatches_when_worker_samples_no_row_then_goes_on(ps, rows, frame):
    made = trained(ps, frame, rows, Problem("logistic", 5), options_of("adam", True, 10, fraction=0.03), COLUMNS)
    assert made.history.steps == 10
    assert 0 < made.history.rows < 60
    assert np.isfinite(made.weight.pull()).all()
    made.weight.free()


@pytest.mark.parametrize("staleness", [0, 1, 3, None])
def test_minibatches_when_workers_run_ahead_then_loss_falls(ps, rows, frame, staleness):
    problem, recipe = Problem("logistic", 5), options_of("adagrad", False, 20, fraction=0.5, staleness=staleness)
    made = trained(ps, frame, rows, problem, recipe)
    assert np.mean(made.history.objective[-10:]) < 0.8 * np.log(2)
    assert made.history.steps == 20
    made.weight.free()


@pytest.fixture(scope="module")
def shard():
    return make(cuts=())


@pytest.fixture(scope="module")
def shard_frame(spark, shard):
    return shard.frame(spark)


@pytest.mark.parametrize(
    ("name", "lazy", "penalties", "staleness"),
    [(*case, staleness) for case, staleness in zip(CASES, itertools.cycle([3, None]), strict=False)],
)
def test_worker_when_ahead_of_driver_then_sees_own_steps(ps, shard, shard_frame, name, lazy, penalties, staleness):
    """A worker that waits for nobody takes NumPy's steps, one after the other, whatever the driver has got to."""
    problem = Problem("logistic", 5, standardize=False, **penalties)
    made = trained(ps, shard_frame, shard, problem, options_of(name, lazy, staleness=staleness), WEIGHTED)
    w, b = expected(shard, problem, name)
    tolerance = 1e-7 if name == "adam" else 1e-9
    np.testing.assert_allclose(made.weight.pull(), w, rtol=tolerance, atol=1e-12)
    np.testing.assert_allclose(made.biases, b, rtol=tolerance, atol=1e-12)
    made.weight.free()


@pytest.mark.parametrize(("name", "penalties"), [("sgd", BOTH), ("adagrad", BOTH), ("adam", {}), ("ftrl", BOTH)])
def test_own_steps_when_of_two_workers_then_near_one_of_both(ps, rows, frame, name, penalties):
    problem = Problem("logistic", 5, standardize=False, **penalties)
    worth = []
    for staleness in (0, 1):
        recipe = options_of(name, steps=40, staleness=staleness)
        made = trained(ps, frame, rows, problem, recipe, WEIGHTED)
        worth.append(objective(problem, rows, made.weight.pull()[:, None], made.biases))
        made.weight.free()
    assert worth[1] - minimum(problem, rows) < max(2 * (worth[0] - minimum(problem, rows)), 0.01)


def test_minibatches_when_seeds_are_equal_then_bit_identical(ps, rows, frame):
    recipe = options_of("adam", False, 10, fraction=0.5, seed=9)
    first, again = (trained(ps, frame, rows, Problem("logistic", 5), recipe) for _ in range(2))
    np.testing.assert_array_equal(first.weight.pull(), again.weight.pull())
    np.testing.assert_array_equal(first.biases, again.biases)
    assert first.history.objective == again.history.objective
    for made in (first, again):
        made.weight.free()


def test_history_when_rows_are_few_then_counts_rows_and_bytes(ps, rows, frame):
    made = trained(ps, frame, rows, Problem("logistic", 5), options_of("sgd"))
    history = made.history
    assert (history.steps, history.rows, len(history.seconds)) == (STEPS, STEPS * 60, STEPS)
    assert history.objective[0] == pytest.approx(0.69, abs=0.01)
    # Two workers pull and push five weights and a bias, beside what they are told and tell.
    assert 2 * STEPS * 2 * 6 * 8 <= history.bytes <= 2 * STEPS * 400
    assert history.reason == "all steps were taken"
    made.weight.free()
