"""Metric learning: objective and gradient, pairs, the trained metric as arrays, and the same L on any servers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from ps2.algorithms import Metric
from ps2.algorithms.frame.settings import with_values
from ps2.algorithms.metric.pairs import draw_pairs, evaluate, objective, read_pairs
from ps2.algorithms.metric.plan import MetricPlan
from ps2.algorithms.metric.program import MetricProgram
from ps2.algorithms.metric.settings import MetricSettings
from ps2.data.rows import LocalRows, Rows
from ps2.errors import ConfigError, DivergedError, InputError, LimitError, ShapeError, UsageError
from tests.in_process import ArrayTable, training_context

RANK, DIM, WEIGHT = 2, 4, 0.5


def rows_of(n=30, dim=DIM, classes=3):
    rng = np.random.default_rng(n)
    y = np.arange(n) % classes
    x = rng.normal(size=(n, dim))
    x[:, 0] += 2.0 * y
    x[rng.random((n, dim)) < 0.3] = 0.0
    return LocalRows(np.arange(dim), sp.csr_array(x), y.astype(float))


def plain(components, differences, similar):
    """The objective, pair by pair."""
    total = 0.0
    for d, is_similar in zip(differences, similar, strict=True):
        square = sum(float(row @ d) ** 2 for row in components)
        total += square if is_similar else WEIGHT * max(0.0, 1.0 - square)
    return total / len(similar)


def test_objective_when_pairs_are_sparse_then_equals_plain_sum():
    rng = np.random.default_rng(0)
    components, d, similar = rng.normal(size=(RANK, DIM)) / 2, rng.normal(size=(9, DIM)), rng.random(9) < 0.5
    assert objective(components, sp.csr_array(d), similar, WEIGHT) == pytest.approx(plain(components, d, similar))
    result = evaluate(d, similar, components.T, WEIGHT)
    for at in np.ndindex(RANK, DIM):
        step = np.zeros((RANK, DIM))
        step[at] = 1e-6
        slope = (plain(components + step, d, similar) - plain(components - step, d, similar)) / 2e-6
        assert (result.slopes.T @ d)[at] / 9 == pytest.approx(slope, abs=1e-6)


def test_draw_pairs_when_made_then_classes_are_as_said():
    rows = rows_of()
    pairs = draw_pairs(rows, 4, np.random.default_rng(1))
    assert len(pairs) == 2 * 4 * len(rows)
    assert (pairs.first != pairs.second).all()
    np.testing.assert_array_equal(rows.y[pairs.first] == rows.y[pairs.second], pairs.similar)
    some = np.array([3, 100])
    expected = rows.x.toarray()[pairs.first[some]] - rows.x.toarray()[pairs.second[some]]
    np.testing.assert_array_equal(pairs.differences(some).toarray(), expected)


def test_read_pairs_when_read_then_are_differences():
    first, second = rows_of(8).x.toarray(), rows_of(9).x.toarray()[:8]
    both = Rows(sp.csr_array(np.hstack([first, second])), np.arange(8) % 2.0)
    pairs = read_pairs(both.localize(), DIM)
    result = np.zeros((8, DIM))
    result[:, pairs.keys] = pairs.differences(np.arange(8)).toarray()
    np.testing.assert_allclose(result, first - second)
    assert pairs.similar.tolist() == [False, True] * 4


def trained(rows, settings, servers=1, workers=1, classes=3):
    plan = MetricPlan(settings=settings, dim=DIM, classes=classes)
    with training_context(servers) as ps:
        table = ArrayTable.of(rows.x, rows.y, workers)
        return MetricProgram.train(ps, table, plan)


@pytest.mark.parametrize("factors", ["always", "never"])
def test_training_when_servers_differ_then_same_bits(factors):
    settings = MetricSettings(rank=RANK, pairsPerRow=3, maxIter=8, miniBatchFraction=0.3, factors=factors, seed=5)
    one, three = (trained(rows_of(), settings, servers).model for servers in (1, 3))
    np.testing.assert_array_equal(one.components, three.components)


def test_training_when_rows_are_pairs_then_of_their_objective():
    first, second = rows_of(40).x.toarray(), rows_of(50).x.toarray()[:40]
    pairs = LocalRows(np.arange(2 * DIM), sp.csr_array(np.hstack([first, second])), np.arange(40) % 2.0)
    settings = MetricSettings(rank=3, dissimilarWeight=WEIGHT, otherCol="other", maxIter=20)
    factors, values = (
        trained(pairs, with_values(settings, factors=name), servers=2, workers=2, classes=2)
        for name in ("always", "never")
    )
    last = objective(factors.model.components, first - second, pairs.y > 0, WEIGHT)
    assert factors.history.objective[-1] == pytest.approx(last, rel=1e-9)
    np.testing.assert_allclose(values.model.components, factors.model.components, rtol=1e-6, atol=1e-9)
    assert (factors.history.gradients.factored, values.history.gradients.factored) == (40, 0)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.eye(2, DIM), [0, 1], "got no similar pair"),
        (np.ones((4, DIM)), [0, 0, 1, 1], "the two vectors of each pair are equal"),
        ([[s * 1.7e308, 0, 0, 1] for s in (1, -1, 1, -1)], [0, 0, 1, 1], "values are too large"),
    ],
    ids=["no-similar", "equal", "huge"],
)
def test_training_when_pairs_teach_nothing_then_error_says_so(x, y, message):
    with pytest.raises(InputError, match=message):
        trained(
            LocalRows(np.arange(DIM), sp.csr_array(x), np.array(y, float)),
            MetricSettings(rank=1, pairsPerRow=2, maxIter=1),
        )


@pytest.mark.parametrize("optimizer", ["adagrad", "sgd"])
def test_training_when_run_then_takes_steps_of_numpy(optimizer):
    rows, shape = rows_of(), {"rank": RANK, "dissimilarWeight": WEIGHT, "pairsPerRow": 3, "maxIter": 6}
    settings = MetricSettings(**shape, optimizer=optimizer, factors="always", seed=5)
    start = trained(rows, with_values(settings, stepSize=1e-300)).model.components
    created = trained(rows, settings)
    pairs = draw_pairs(rows, 3, np.random.default_rng([5, 0]))
    d = pairs.differences(np.arange(len(pairs))).toarray()
    scale = np.sqrt((d**2).sum() / len(d))
    w, squares = start * scale, np.zeros_like(start)
    objectives = []
    for _ in range(6):
        objectives.append(plain(w / scale, d, pairs.similar))
        g = evaluate(d / scale, pairs.similar, w.T, WEIGHT).slopes.T @ (d / scale) / len(d)
        squares += g**2
        w = w - 0.1 * g / ((np.sqrt(squares) + 1e-8) if optimizer == "adagrad" else 1.0)
    np.testing.assert_allclose(created.model.components, w / scale, rtol=1e-9)
    np.testing.assert_allclose(created.history.objective, [*objectives, plain(w / scale, d, pairs.similar)], rtol=1e-9)
    assert created.history.objective[-1] < created.history.objective[0]


def test_training_when_values_are_huge_then_scale_matters_not():
    rows, settings = rows_of(), MetricSettings(rank=RANK, pairsPerRow=2, maxIter=5)
    huge = replace(rows, x=rows.x * 2.0**600)
    expected = trained(rows, settings).model.components
    np.testing.assert_allclose(trained(huge, settings).model.components * 2.0**600, expected, rtol=1e-12)


def test_training_when_values_are_tiny_then_error_says_so():
    rows = rows_of()
    with pytest.raises(InputError, match="too small, to be scaled"):
        trained(replace(rows, x=rows.x * 2.0**-1040), MetricSettings(rank=RANK, pairsPerRow=2, maxIter=5))


def test_training_when_it_diverges_then_error_or_warning(caplog):
    settings = MetricSettings(rank=RANK, pairsPerRow=2, maxIter=5, optimizer="sgd", stepSize=1e6)
    with pytest.raises(DivergedError, match=r"the objective has grown from .* stepSize 1e"):
        trained(rows_of(), settings)
    trained(rows_of(), with_values(settings, optimizer="adagrad"))
    assert "the objective has grown from" in caplog.text


def test_distances_when_offset_is_large_then_are_of_differences():
    rng = np.random.default_rng(0)
    metric, x = Metric(rng.normal(size=(2, 3))), rng.normal(size=(6, 3)) + 1.7e15
    expected = np.linalg.norm((x[:3] - x[3:]) @ metric.components.T, axis=1)
    np.testing.assert_allclose(metric.distances(x[:3], x[3:]), expected)
    with pytest.raises(ShapeError, match="as many rows of y as of x, got 6 and 3"):
        metric.distances(x[:3], x)


def test_metric_when_saved_then_loads_without_spark(tmp_path):
    metric = Metric(np.arange(6.0).reshape(2, 3))
    metric.save(str(tmp_path / "metric"))
    result = Metric.load(str(tmp_path / "metric"))
    np.testing.assert_array_equal(result.components, metric.components)
    x, y = np.ones((1, 3)), sp.csr_array(np.eye(3)[:1])
    np.testing.assert_allclose(result.distances(x, y) ** 2, [np.array([0, 1, 1]) @ result.matrix() @ [0, 1, 1]])
    with pytest.raises(UsageError, match="there is something already"):
        metric.save(str(tmp_path / "metric"))
    with pytest.raises(ShapeError, match=r"x: expected shape \(n, 3\) of numbers, got \(1, 2\)"):
        result.transform(np.ones((1, 2)))


def test_rank_when_too_large_then_error_says_how_many():
    with pytest.raises(ConfigError, match="rank: expected at most the number of features, 4, got 5"):
        MetricPlan(settings=MetricSettings(rank=5), dim=4, classes=2)
    with pytest.raises(LimitError, match="rank: 10,000 rows for 10,000 features are 100,000,000 values"):
        MetricPlan(settings=MetricSettings(rank=10_000), dim=10_000, classes=2)
    with pytest.raises(LimitError, match="matrix: 20,000 features"):
        Metric(np.zeros((1, 20_000))).matrix()


def test_objective_when_minibatches_have_no_pair_then_is_known():
    settings = MetricSettings(rank=2, maxIter=20, pairsPerRow=2, miniBatchFraction=0.02, seed=1)
    history = trained(rows_of(12), settings).history
    assert len(history.objective) == 21
    assert np.isfinite(history.objective).all()
    assert len(set(history.objective)) < 21
