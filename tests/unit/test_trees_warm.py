"""What is compiled ahead is all that training and prediction call."""

from __future__ import annotations

import inspect

import numpy as np
import scipy.sparse as sp

from ps2.algorithms.trees import (
    binning_kernels,
    boosted_growth,
    gradients,
    growing_kernels,
    layout,
    metrics,
    model,
    nonempty_bins,
    ops,
    predict,
    ranking,
    rows,
    scan_kernels,
    search_kernels,
    tree_kernels,
    warm,
)
from ps2.algorithms.trees.boosted_growth import FeatureSets
from ps2.algorithms.trees.gradients import Objective
from ps2.algorithms.trees.metrics import Metric
from ps2.algorithms.trees.model import Explainer
from ps2.algorithms.trees.predict import Predictor
from ps2.algorithms.trees.ranking import RowGroups
from tests import plans
from tests.tree_training import Recipe, train

MODULES = (
    binning_kernels,
    model,
    boosted_growth,
    layout,
    metrics,
    gradients,
    growing_kernels,
    nonempty_bins,
    ops,
    predict,
    ranking,
    rows,
    scan_kernels,
    search_kernels,
    tree_kernels,
)


def compiled():
    return {
        f"{module.__name__}.{name}": len(member.signatures)
        for module in MODULES
        for name, member in inspect.getmembers(module)
        if hasattr(member, "signatures")
    }


def test_training_and_prediction_when_warm_then_compile_nothing():
    warm.warm()
    # What the driver asks of single numbers.
    scan_kernels.best_leaf_value(1.0, 1.0, 1.0, 0.0, -np.inf, np.inf)
    before = compiled()
    x = np.random.default_rng(0).integers(0, 5, (100, 3)).astype(np.float64)
    for inputs in (x, sp.csr_array(x), x.astype(np.float32)):
        forest, _ = train(inputs, x[:, 0], Recipe(depth=2, rounds=2))
        Predictor(forest).margins(inputs)
        Predictor(forest).leaves(inputs)
        Explainer(forest).contributions(inputs)
    Metric("auc").sums(Objective("logistic"), x[:, :1], x[:, 0], np.empty(0), (0.0, 1.0))
    FeatureSets(3, weights=(1.0, 1.0, 1.0), num_sampled=1).words([frozenset()], np.zeros(1, np.int64))
    for options in (
        {"growth": "leaf", "maxLeaves": 4},
        {"minInstancesPerNode": 2},
        {"node_features": 1, "maxDepth": 2},
    ):
        warm.grow_in_process(plans.boosting(maxIter=1, **options))
    warm.warm_whole_trees()
    groups, ranks = RowGroups.of(np.arange(100) // 9, np.arange(100), np.empty(0)), Objective("lambdarank")
    ranks.gradients(x[:, :1], x[:, 0], groups=groups)
    for metric in ("ndcg@3", "map"):
        Metric.parse(metric).sums(ranks, x[:, :1], x[:, 0], np.empty(0), (0.0, 1.0), groups)
    assert compiled() == before
