"""Compile all kernels of random forests: called by ``ps2.algorithms.trees.warm``."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy.sparse as sp

from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.compiled_growing import bin_columns, rows_of
from ps2.algorithms.trees.forests.forest_rows import ForestRows
from ps2.algorithms.trees.forests.grown_tree import random_forest
from ps2.algorithms.trees.forests.growth import ForestGrowth
from ps2.algorithms.trees.forests.local import ForestGrower
from ps2.algorithms.trees.forests.plan import ForestPlan
from ps2.algorithms.trees.forests.random_forest import RandomForest
from ps2.algorithms.trees.forests.worker import NodeHistograms
from ps2.algorithms.trees.gradients import Objective, sums_below
from ps2.algorithms.trees.growing import DenseRows
from ps2.algorithms.trees.ops import purest_splits
from ps2.algorithms.trees.problem import TreeProblem
from ps2.algorithms.trees.quantiles import Quantiles
from ps2.algorithms.trees.search_kernels import Splits
from ps2.algorithms.trees.settings import ForestSettings
from ps2.data.rows import LocalRows
from ps2.ops.guards import readable

SETTINGS = ForestSettings(numTrees=2, maxDepth=2, maxBins=8)
CLASSES = ForestPlan(settings=SETTINGS, impurity="gini", classes=2, rows=4, node_features=1)
NUMBERS = replace(CLASSES, impurity="variance", classes=0)


def warm_forests() -> None:
    """Call every kernel on four rows, in the forms in which workers and servers hold them."""
    y = np.array([0.0, 0.0, 1.0, 1.0])
    for x in (sp.csr_array(1 + y[:, None]), sp.csr_array(np.column_stack([y, *np.zeros((9, 4))]))):
        for plan in (CLASSES, NUMBERS):
            forest, _ = forest_here(LocalRows(np.arange(x.shape[1]), x, y), plan)
            forest.margins(x)
            forest.votes(x, np.ones((4, plan.settings.numTrees), np.bool_))
            _add(LocalRows(np.arange(x.shape[1]), x, y), plan)
    rules = CLASSES.rules((1.0, 1.0))
    one, m = np.zeros(1, np.int64), np.zeros((3, 64), np.int64)
    purest_splits(m, one, np.zeros((1, 2), np.int64), np.array(rules[:4]), np.array(rules[4:]))
    growth = ForestGrowth(CLASSES, (1.0, 1.0), np.full((2, 2), 2), [2, 3], 1)
    found = np.ones(2), np.zeros((2, 3), np.int64), np.array([[2, 0], [2, 0]]), np.zeros((2, 0), np.int64)
    growth.advance(Splits(*found))


def warm_whole_trees() -> None:
    """Compile the loop over a whole tree, which takes as long as all that a worker needs before it."""
    bins = Bins(np.zeros(1), np.array([0, 1]), np.zeros(1, np.int32), np.zeros(1, np.bool_))
    dense = DenseRows(bins, np.zeros((1, 1), np.uint8))
    rows: Any = SimpleNamespace(
        sample=lambda tree, rules: (np.zeros(1, np.int32), np.ones(1, np.uint8), np.ones(CLASSES.channels, np.int64)),
        whole=readable(np.zeros((1, 2), np.int64)),
        arrays=rows_of(dense, has_blocks=False),
    )
    ForestGrower(CLASSES, bin_columns(bins, "zero"), rows, (1.0, 1.0), 0).grow([0])


def forest_here(rows: LocalRows, plan: ForestPlan) -> tuple[RandomForest, Bins]:
    """Grow a forest of some rows in this process."""
    assert rows.y is not None
    bins, mine, scales, problem = _prepared(rows, plan)
    grower = ForestGrower(plan, bin_columns(bins, problem.absent), mine, scales, problem.words)
    return random_forest(grower.grow(range(plan.settings.numTrees)), bins, problem, plan, scales), bins


def _prepared(rows: LocalRows, plan: ForestPlan) -> tuple[Bins, ForestRows, tuple[float, float], TreeProblem]:
    classes = plan.classes
    objective = Objective("softmax", classes) if classes > 2 else Objective("logistic" if classes else "squared")
    problem = TreeProblem(objective, len(rows.keys), (0.0,))
    mean = None if rows.weights is None else float(rows.weights.mean())
    bins, columns = Quantiles.in_process(problem, plan.settings.maxBins, mean).find_bins(rows)
    mine = ForestRows(problem, plan, rows)
    scales = plan.scales(sums_below(mine.exponents()))
    mine.begin(bins, columns, scales)
    return bins, mine, scales, problem


def _add(rows: LocalRows, plan: ForestPlan) -> None:
    """Build a histogram as workers do."""
    bins, mine, scales, problem = _prepared(rows, plan)
    rules = plan.rules(scales)
    order, draws, _ = mine.sample(0, rules)
    NodeHistograms(plan, rules, bin_columns(bins, problem.absent), mine).of(readable(order), draws, 1, 1, 0)
