"""A tree that one call of a kernel grows is the one that is grown step by step, to the bit."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import scipy.sparse as sp

from ps2.algorithms.trees import local_worker
from ps2.algorithms.trees.boosted_rows import BoostedRows
from ps2.algorithms.trees.boosting_record import next_scales
from ps2.algorithms.trees.gradients import Objective, integer_scales, sum_bounds
from ps2.algorithms.trees.local_worker import LocalGrower, LocalHistograms
from ps2.algorithms.trees.problem import TreeProblem
from ps2.algorithms.trees.quantiles import Quantiles
from ps2.algorithms.trees.tree import Tree
from ps2.data.rows import LocalRows
from ps2.errors import LimitError
from tests import plans

FEATURES, CATEGORIES = 9, {4: 70}
SIGNS = (1, 0, -1, *(0,) * (FEATURES - 3))
# Objectives and settings, and whether rows have weights. Those that begin with "sparse" have sparse rows.
KINDS = {
    "level": ("logistic", {"maxDepth": 6}, False),
    "level, in the middle of one": ("logistic", {"maxDepth": 6, "maxLeaves": 11}, True),
    "leaf": ("squared", {"growth": "leaf", "maxLeaves": 40, "maxDepth": 30}, True),
    "leaf, rows counted": (
        "squared",
        {"growth": "leaf", "maxLeaves": 40, "maxDepth": 5, "minInstancesPerNode": 9},
        False,
    ),
    "deep": ("logistic", {"maxDepth": 7, "minChildWeight": 0.1}, False),
    "rows counted": ("huber", {"minInstancesPerNode": 3, "max_leaf_value": 0.4}, False),
    "monotone": ("squared", {"monotoneConstraints": SIGNS, "maxDepth": 6, "regAlpha": 0.7}, False),
    "weights of nodes": ("logistic", {"min_node_weight": 9.0, "weight_source": "weights", "minInfoGain": 0.02}, True),
    "quantiles": ("absolute", {"subsamplingRate": 0.7}, True),
    "sparse": ("logistic", {"maxDepth": 6}, True),
    "sparse, leaf": ("squared", {"growth": "leaf", "maxLeaves": 30, "maxDepth": 9, "minInstancesPerNode": 4}, False),
    "sparse, monotone": ("huber", {"monotoneConstraints": SIGNS, "maxDepth": 5}, False),
    "nodes sample": ("logistic", {"node_features": 3, "maxDepth": 6}, False),
    "sparse, nodes sample": ("squared", {"node_features": 2, "growth": "leaf", "maxLeaves": 30, "maxDepth": 20}, True),
    "no split": ("squared", {"maxDepth": 0}, False),
    "no gain": ("squared", {"minSplitLoss": 1e9}, False),
}


def rows_of(weighted, sparse, n=700):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(n, FEATURES))
    x[:, 1] = rng.integers(0, 3, n)
    x[:, 4] = rng.integers(0, CATEGORIES[4], n)
    x[:, 5] = 2.0
    y = (x[:, 0] * x[:, 1] - x[:, 2] + (x[:, 4] % 7 == 1) + 0.3 * rng.normal(size=n) > 0).astype(float)
    x[:, 3:5][rng.random((n, 2)) < 0.2] = np.nan
    if sparse:
        x[rng.random(x.shape) < 0.8] = 0
    weights = rng.integers(1, 5, n) / 3 if weighted else None
    return LocalRows(np.arange(FEATURES), sp.csr_array(x), y, weights)


def grown(kind, by_kernel, monkeypatch):
    """Return three trees and the margins of all rows, of a third that are held out, too."""
    loss, options, weighted = KINDS[kind]
    problem = TreeProblem(Objective(loss), FEATURES, (0.1,), categories=CATEGORIES)
    options = plans.boosting(maxIter=3, maxBins=40, seed=7, weight_unit=2.0**-6, **options)
    rows = rows_of(weighted, kind.startswith("sparse"))
    inputs = rows.chosen(np.flatnonzero(np.arange(700) % 3)), rows.chosen(np.arange(0, 700, 3))
    quantiles = Quantiles.in_process(problem, options.settings.maxBins, 1.0 if weighted else None)
    bins, columns = quantiles.find_bins(inputs[0])
    of = BoostedRows(problem, options, bins, inputs, columns)
    if not by_kernel:
        monkeypatch.setattr(local_worker, "is_compiled", lambda *_: False)
    grower, trees, before = LocalGrower(problem, options, bins, of, 2.0**-6 if weighted else 0.0), [], np.zeros(3)
    for number in range(3):
        below = sum_bounds(of.compute_gradients()["exponents"])
        scales = next_scales(problem, options, before, trees[-1:]) if trees else integer_scales(*below[:2])
        before = below
        trees.append(grower.grow(number, scales))
    return trees, of.training.margins, of.held_out.margins


@pytest.mark.parametrize("kind", KINDS)
def test_tree_when_grown_by_kernel_then_the_one_by_steps(kind, monkeypatch):
    trees, *margins = grown(kind, True, monkeypatch)
    others, *theirs = grown(kind, False, monkeypatch)
    for one, other in zip(trees, others, strict=True):
        for field in fields(Tree):
            mine, yours = getattr(one, field.name), getattr(other, field.name)
            assert mine.dtype == yours.dtype, field.name
            assert mine.tobytes() == yours.tobytes(), field.name
    assert [some.tobytes() for some in margins] == [some.tobytes() for some in theirs]


def test_histograms_when_memory_is_short_then_limit_error(monkeypatch):
    problem, options = TreeProblem(Objective("squared"), 1, (0.0,)), plans.boosting(maxDepth=3)
    rows = LocalRows(np.zeros(1, np.int64), sp.csr_array(np.arange(4.0)[:, None] + 1), np.arange(4.0))
    bins, columns = Quantiles.in_process(problem, options.settings.maxBins, None).find_bins(rows)
    of = BoostedRows(problem, options, bins, (rows, None), columns)
    created = LocalHistograms(problem, options, bins, of.training.rows)
    monkeypatch.setattr(local_worker, "_free_bytes", lambda: 1000)
    with pytest.raises(LimitError, match=r"needs 1,000 histograms of .* bytes, and 1,000 are left on its machine"):
        created.reserve_rows(1000)
