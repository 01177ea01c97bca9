"""Averaged models of workers equal those that NumPy averages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit
from training import Rows, fit, logistic_gradient, make, objective, plan_of

from ps2.algorithms.linear.losses import loss_of
from ps2.algorithms.linear.plan import Problem
from ps2.algorithms.linear.preparation import FIRST_SOLVER_CLOCK
from ps2.algorithms.linear.solvers.averaging import MIN_FALL
from ps2.errors import ConfigError

L2 = 0.2
PROBLEM = Problem("logistic", 5, standardize=False, l2=L2)


@pytest.fixture(scope="module")
def uneven():
    return make(cuts=(10,))


@pytest.fixture(scope="module")
def opposite():
    """What is right for one shard is wrong for the other."""
    x = np.abs(np.random.default_rng(0).normal(size=(40, 2))) + 0.5
    return Rows(x, np.repeat([0.0, 1.0], 20), np.ones(40), (20,))


def ended(rows, problem, options, stride=None):
    created = fit(rows, problem, options, stride=stride)
    return created.w[:, 0], created.biases, created.history


def beginning(rows, problem=PROBLEM):
    return loss_of(problem).initial_biases(rows.facts(2))


# -- ma-sgd ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [30, 10], ids=["equal shards", "unequal shards"])
def test_average_when_steps_use_all_rows_then_gradient_descent(first):
    rows = make(cuts=(first,))
    options = plan_of("ma-sgd", maxIter=3, stepSize=0.5, localBatchSize=0)
    w, b, history = ended(rows, PROBLEM, options)
    expected, intercept = np.zeros(5), beginning(rows)
    for step in range(3):
        eta = 0.5 / (1 + 0.5 * L2 * step)
        gradient, of_bias = logistic_gradient(rows, expected, intercept)
        expected, intercept = (1 - eta * L2) * expected - eta * gradient, intercept - eta * of_bias
    np.testing.assert_allclose(w, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(b, intercept, rtol=1e-12, atol=1e-12)
    assert (history.steps, history.rows) == (3, 180)


def test_average_when_local_steps_use_few_rows_then_mean_of_both(uneven):
    options = plan_of("ma-sgd", maxIter=2, stepSize=0.3, localBatchSize=4, localPasses=2, seed=5)
    w, b, history = ended(uneven, PROBLEM, options)
    expected, intercept = np.zeros(5), beginning(uneven)
    for clock in range(2):
        models = [passed(shard, expected, intercept, rank, clock) for rank, shard in enumerate(uneven.shards)]
        shares = [shard.c.sum() / uneven.c.sum() for shard in uneven.shards]
        expected = sum(share * model for share, (model, _) in zip(shares, models, strict=True))
        intercept = sum(share * bias for share, (_, bias) in zip(shares, models, strict=True))
    np.testing.assert_allclose(w, expected, rtol=1e-10)
    np.testing.assert_allclose(b, intercept, rtol=1e-10)
    assert history.rows == 2 * 2 * 60


def passed(shard, w, b, rank, clock):
    """Two passes over a shard in steps of four rows; the solver's clock 0 is the run's first after the preparation."""
    seeds = np.random.SeedSequence(5, spawn_key=(rank, FIRST_SOLVER_CLOCK + clock))
    rng = np.random.Generator(np.random.Philox(seeds))
    order = np.concatenate([rng.permutation(len(shard.y)) for _ in range(2)])
    steps = -(-len(order) // 4)
    for step in range(steps):
        eta = 0.3 / (1 + 0.3 * L2 * (clock * steps + step))
        part = order[4 * step : 4 * step + 4]
        gradient, of_bias = logistic_gradient(Rows(shard.x[part], shard.y[part], shard.c[part], ()), w, b)
        w, b = (1 - eta * L2) * w - eta * gradient, b - eta * of_bias
    return w, b


@pytest.mark.parametrize("l1", [0.0, 0.03], ids=["L2", "L1 too"])
def test_penalty_when_worker_lacks_feature_then_shrinks_it_too(l1):
    rows = make(n=40, dim=6, cuts=(15,))
    rows.x[:15, :2] = 0
    rows.x[15:, 4:] = 0
    options = plan_of("ma-sgd", maxIter=4, stepSize=0.5, localBatchSize=0, localPasses=2)
    problem = replace(PROBLEM, dim=6, l1=l1)
    w, b, _ = ended(rows, problem, options, stride=1)
    expected, intercept = np.zeros(6), beginning(rows, problem)
    for step in range(4):
        models = []
        for shard in rows.shards:
            u, c = expected, intercept
            for local in range(2):
                eta = 0.5 / (1 + 0.5 * L2 * (2 * step + local))
                gradient, of_bias = logistic_gradient(shard, u, c)
                u, c = (1 - eta * L2) * u - eta * gradient, c - eta * of_bias
                u = np.sign(u) * np.maximum(np.abs(u) - eta * l1, 0.0)
            models.append((shard.c.sum() / rows.c.sum(), u, c))
        expected = sum(share * u for share, u, _ in models)
        intercept = sum(share * c for share, _, c in models)
    np.testing.assert_allclose(w, expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(b, intercept, rtol=1e-12)


def test_average_when_workers_take_unlike_steps_then_exact_l1():
    """A feature that only the smaller shard has: the larger one's many steps bring its weight nearer to 0."""
    rows = make(n=40, dim=4, cuts=(10,))
    rows.x[10:, 3] = 0
    problem = replace(PROBLEM, dim=4, l1=0.02, l2=0.0, fit_intercept=False)
    options = plan_of("ma-sgd", maxIter=3, stepSize=0.2, localBatchSize=10)
    w, _, _ = ended(rows, problem, options, stride=1)
    assert w[3] == pytest.approx(alternated(rows, problem, options)[3], rel=1e-9)
    assert w[3] != 0


def test_average_when_l1_objective_hardly_falls_then_halves_step():
    rows = make(n=40, dim=4, cuts=(10,))
    problem = replace(PROBLEM, dim=4, l1=0.05, l2=0.0, fit_intercept=False)
    options = plan_of("ma-sgd", maxIter=6, stepSize=2.0, localBatchSize=5)
    w, _, history = ended(rows, problem, options)
    np.testing.assert_allclose(w, alternated(rows, problem, options), rtol=1e-9, atol=1e-12)
    objectives = np.array(history.objective)
    assert (objectives[1:-1] > (1 - MIN_FALL) * objectives[:-2]).any()


def alternated(rows, problem, options):
    """Rounds over both shards; the order of a shard's rows follows from rank and clock."""
    w, total, step_size = np.zeros(problem.dim), rows.c.sum(), options.settings.stepSize
    before = np.inf
    for clock in range(options.settings.maxIter):
        models, now = [], objective(problem, rows, w[:, None], np.zeros(1))
        for rank, shard in enumerate(rows.shards):
            seeds = np.random.SeedSequence(options.seed, spawn_key=(rank, FIRST_SOLVER_CLOCK + clock))
            order, u = np.random.Generator(np.random.Philox(seeds)).permutation(len(shard.y)), w
            for first in range(0, len(order), options.settings.localBatchSize):
                part = order[first : first + options.settings.localBatchSize]
                slopes = shard.c[part] * (expit(shard.x[part] @ u) - shard.y[part]) / shard.c[part].sum()
                u = u - step_size * shard.x[part].T @ slopes
                u = np.sign(u) * np.maximum(np.abs(u) - step_size * problem.l1, 0.0)
            models.append(shard.c.sum() / total * u)
        w = sum(models)
        if now > (1 - MIN_FALL) * before:
            step_size /= 2
        before = now
    return w


@pytest.mark.parametrize(
    ("problem", "solver", "message"),
    [
        (replace(PROBLEM, l1=0.1), "ftsgd", "ftsgd: takes L2 penalties only"),
        (Problem("softmax", 5, 3), "ma-sgd", "solver: 'ma-sgd' expects two classes .* got family: 3 classes"),
    ],
)
def test_training_when_solver_cannot_do_it_then_config_error(uneven, problem, solver, message):
    with pytest.raises(ConfigError, match=message):
        fit(uneven, problem, plan_of(solver))


# -- ftsgd -------------------------------------------------------------------------------------------------------------


class Worker:
    """FTSGD's Algorithm 3 on one shard, with all of its rows in each step; vectors end with the intercept."""

    def __init__(self, shard, share):
        self.shard, self.share, self.old = shard, share, None

    def gradient(self, v):
        slopes = self.shard.c * (expit(self.shard.x @ v[:-1] + v[-1]) - self.shard.y) / self.shard.c.sum()
        return np.append(self.shard.x.T @ slopes + L2 * v[:-1], slopes.sum())

    def train(self, v, beta, steps, alpha):
        """Return the model and whether it has oscillated."""
        velocity, turned = np.zeros_like(v), False
        for _ in range(steps):
            g = self.gradient(v)
            cos = 0.0 if self.old is None else g @ self.old / np.linalg.norm(g) / np.linalg.norm(self.old)
            self.old = g
            if cos < 0 and turned:
                return v, True
            turned = cos < 0
            velocity = (0.0 if turned else alpha * (1 + cos)) * velocity + beta / 2 * g
            v = v - velocity
        return v, False


def simulated(rows, problem, options):
    """Return the last model, and the learning rate."""
    total = rows.c.sum()
    workers = [Worker(shard, shard.c.sum() / total) for shard in rows.shards]
    v, beta = np.append(np.zeros(problem.dim), beginning(rows, problem)), options.settings.stepSize
    for _ in range(options.settings.maxIter):
        created = [worker.train(v, beta, options.settings.localSteps, options.settings.momentum) for worker in workers]
        v = sum(worker.share * model for worker, (model, _) in zip(workers, created, strict=True))
        if sum(oscillated for _, oscillated in created) >= len(workers) / 2:
            beta /= 2
    return v, beta


@pytest.mark.parametrize(("step_size", "momentum"), [(0.5, 0.45), (7.0, 0.45), (0.5, 0.9)])
def test_ftsgd_when_all_rows_are_taken_then_equal_algorithm_3(uneven, step_size, momentum):
    """The second learning rate is so large that workers turn round and it is halved."""
    options = plan_of("ftsgd", maxIter=5, stepSize=step_size, localSteps=4, momentum=momentum)
    w, b, _ = ended(uneven, PROBLEM, options)
    expected, beta = simulated(uneven, PROBLEM, options)
    np.testing.assert_allclose(np.append(w, b), expected, rtol=1e-9, atol=1e-12)
    assert (beta < step_size) == (step_size > 1)


def test_ftsgd_when_momentum_is_not_adaptive_then_algorithm_2(uneven):
    options = plan_of("ftsgd", maxIter=3, stepSize=0.5, localSteps=4, adaptiveMomentum=False)
    w, b, _ = ended(uneven, PROBLEM, options)
    np.testing.assert_allclose(np.append(w, b), descended(uneven, PROBLEM, [4, 4, 4]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("search", ["auto", "always"])
def test_ftsgd_when_shards_are_opposite_then_search_says(opposite, search):
    """With "auto" the training falls back to MLlib's SGD after the first step."""
    problem = replace(PROBLEM, dim=2, fit_intercept=False)
    options = plan_of("ftsgd", maxIter=4, stepSize=0.5, localSteps=3, adaptiveMomentum=False, localSearch=search)
    w, _, history = ended(opposite, problem, options)
    local_steps = [3, 1, 1, 1] if search == "auto" else [3, 3, 3, 3]
    assert history.rows == 40 * sum(local_steps)
    np.testing.assert_allclose(w, descended(opposite, problem, local_steps)[:-1], rtol=1e-9, atol=1e-12)


def descended(rows, problem, local_steps):
    """Algorithm 2 of FTSGD: clocks of local steps at a rate of .5 that falls with the square root of the clock."""
    v = np.append(np.zeros(problem.dim), beginning(rows, problem))
    for clock, count in enumerate(local_steps):
        models = []
        for shard in rows.shards:
            worker, u = Worker(shard, shard.c.sum() / rows.c.sum()), v
            for _ in range(count):
                step = 0.5 / np.sqrt(clock + 1) * worker.gradient(u)
                u = u - step * np.append(np.ones(problem.dim), problem.fit_intercept)
            models.append(worker.share * u)
        v = sum(models)
    return v


@pytest.mark.parametrize(
    ("problem", "search"),
    [(Problem("softmax", 5, 3, l2=L2), "always"), (Problem("fmLogistic", 5, 3, l2=L2), "never")],
    ids=["softmax", "machine"],
)
def test_ftsgd_when_weights_are_wide_then_the_objective_falls(uneven, problem, search):
    options = plan_of("ftsgd", maxIter=5, stepSize=0.3, localSearch=search)
    _, _, history = ended(uneven, problem, options)
    assert history.objective[-1] < history.objective[0]


def test_ftsgd_when_minibatches_are_small_then_the_loss_falls(uneven):
    options = plan_of("ftsgd", maxIter=15, stepSize=1.0, miniBatchFraction=0.1)
    _, _, history = ended(uneven, PROBLEM, options)
    assert history.objective[-1] < history.objective[0] - 0.05
