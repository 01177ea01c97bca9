"""Gradients of rankings follow their definition, pair by pair; metrics are those of the real xgboost."""

from __future__ import annotations

import numpy as np
import pytest
import xgboost

from ps2.algorithms.trees.gradients import Objective
from ps2.algorithms.trees.metrics import Metric
from ps2.algorithms.trees.ranking import MAX_GROUP_SUM, RowGroups
from ps2.errors import ConfigError

NONE = np.empty(0)
SPAN = (0.0, 0.0)


def sample(rows=200, groups=12, seed=0, labels=5):
    """Margins, labels and groups in no order; one group has a row only, and one no relevant row."""
    rng = np.random.default_rng(seed)
    group = rng.integers(2, groups, rows)
    group[0] = 1
    y = rng.integers(0, labels, rows).astype(float)
    y[group == 2] = 0
    return rng.normal(size=rows), y, group


def gains(y):
    return 2.0**y - 1


def pair_by_pair(s, y, truncation):
    """Hessians and gradients of a group whose margins are all different."""
    order = np.argsort(-s)
    best = sum(gain / np.log2(k + 2) for k, gain in enumerate(np.sort(gains(y))[::-1][:truncation]))
    result, total = np.zeros((len(y), 2)), 0.0
    if not best:
        return result
    rank = np.argsort(order)
    for i in range(len(y)):
        for j in range(len(y)):
            if y[i] <= y[j] or min(rank[i], rank[j]) >= truncation:
                continue
            discounts = abs(1 / np.log2(rank[i] + 2) - 1 / np.log2(rank[j] + 2))
            change = (gains(y[i]) - gains(y[j])) * discounts / best / (0.01 + abs(s[i] - s[j]))
            p = 1 / (1 + np.exp(s[i] - s[j]))
            result[[i, j], 1] += [-p * change, p * change]
            result[[i, j], 0] += p * (1 - p) * change
            total += 2 * p * change
    return result * (np.log2(1 + total) / total if total else 1.0)


@pytest.mark.parametrize("truncation", [1, 3, 100])
def test_gradients_when_groups_are_mixed_then_pair_by_pair(truncation):
    margins, y, group = sample()
    weights = np.random.default_rng(1).random(200) + 0.5
    groups = RowGroups.of(group, np.arange(200), weights)
    result, (lost, count) = Objective("lambdarank", shape=float(truncation)).gradients(
        margins[:, None], y, weights, groups=groups
    )
    for number in np.unique(group):
        mine = group == number
        expected = pair_by_pair(margins[mine], y[mine], truncation) * weights[mine, None]
        np.testing.assert_allclose(result[0][mine], expected, rtol=1e-9, atol=1e-15)
    assert count == len(np.unique(group))
    ndcg = Metric("ndcg", truncation)
    sums = ndcg.sums(Objective("lambdarank"), margins[:, None], y, NONE, SPAN, groups)
    assert lost / count == pytest.approx(1 - ndcg.value(sums))


def test_gradients_when_rows_are_shuffled_then_bit_equal():
    margins, y, group = sample(seed=4)
    margins = np.round(margins)  # ties
    ids, objective = np.random.default_rng(2).permutation(200), Objective("lambdarank", shape=10.0)
    one = objective.gradients(margins[:, None], y, groups=RowGroups.of(group, ids, NONE))[0]
    p = np.random.default_rng(3).permutation(200)
    other = objective.gradients(margins[p][:, None], y[p], groups=RowGroups.of(group[p], ids[p], NONE))[0]
    np.testing.assert_array_equal(one[:, p], other)


def test_gradients_when_margins_are_far_apart_then_bounded():
    margins, y, group = sample(seed=5)
    for scale in (0.0, 1e-9, 1e4):
        inputs = (margins * scale)[:, None], y
        pairs = Objective("lambdarank", shape=1e6).gradients(*inputs, groups=RowGroups.of(group, np.arange(200), NONE))[
            0
        ]
        assert np.isfinite(pairs).all()
        assert (np.abs(pairs).sum(axis=1) <= MAX_GROUP_SUM * 200).all()
        assert (pairs[0, pairs[0, :, 1] != 0, 0] > 0).all()


@pytest.mark.parametrize("name", ["ndcg", "ndcg@3", "ndcg@10", "map"])
def test_metrics_when_rows_are_ranked_then_they_are_xgboosts(name):
    margins, y, group = sample(labels=2 if "map" in name else 5)
    order = np.argsort(group, kind="stable")
    margins, y, group = margins[order], y[order], group[order]
    rows = xgboost.DMatrix(np.zeros((200, 1)), y, qid=group, base_margin=margins)
    booster = xgboost.train({"objective": "rank:ndcg", "eval_metric": name, "eta": 0.0}, rows, 1)
    expected = float(booster.eval(rows).split(":")[-1])
    metric = Metric.parse(name)
    groups = RowGroups.of(group, np.arange(200), NONE)
    parts = metric.sums(Objective("lambdarank"), margins[:, None], y, NONE, SPAN, groups)
    assert metric.value(parts) == pytest.approx(expected, abs=2e-6)


def test_precision_when_few_rows_are_looked_at_then_of_these():
    groups = RowGroups.of(np.zeros(5, np.int64), np.arange(5), NONE)
    margins, y = np.array([[5.0], [4.0], [3.0], [2.0], [1.0]]), np.array([1.0, 0.0, 3.0, 1.0, 0.0])
    metric = Metric.parse("map@3")
    assert metric.value(metric.sums(Objective("lambdarank"), margins, y, NONE, SPAN, groups)) == pytest.approx(
        (1 + 2 / 3) / 3
    )


@pytest.mark.parametrize("name", ["ndcg@0", "ndcg@x", "auc@3", "ndcg@3@4"])
def test_metric_when_rank_is_wrong_then_error(name):
    with pytest.raises(ConfigError, match=f"evalMetric: expected one of .* got '{name}'"):
        Metric.parse(name)
