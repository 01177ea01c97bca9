"""Compile all kernels of trees (``python -m ps2.algorithms.trees.warm``), so that trainings need not wait for it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy.sparse as sp

from ps2.algorithms.trees import binning_kernels, cut_points, growing_kernels
from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.boosted_growth import FeatureSets
from ps2.algorithms.trees.boosted_rows import BoostedRows
from ps2.algorithms.trees.compiled_growing import CompiledGrower, bin_columns, kernel_rows
from ps2.algorithms.trees.cut_points import NO_WEIGHTS, Cells, FeatureColumns, Refinement
from ps2.algorithms.trees.forests.growth import ForestGrowth, random_forest
from ps2.algorithms.trees.forests.plan import ForestPlan
from ps2.algorithms.trees.forests.random_forest import RandomForest
from ps2.algorithms.trees.forests.worker import ForestGrower, ForestRows, NodeHistograms
from ps2.algorithms.trees.gradients import NO_WEIGHTS as NO_FLOATS
from ps2.algorithms.trees.gradients import Objective, exponent_counts, integer_scales, quantise_pairs, sum_bounds
from ps2.algorithms.trees.growth import GrownTree, tree_of
from ps2.algorithms.trees.local_worker import LocalGrower
from ps2.algorithms.trees.metrics import Metric
from ps2.algorithms.trees.model import Explainer
from ps2.algorithms.trees.ops import add, add_rows, best_splits, clear, mark, purest_splits, subtract
from ps2.algorithms.trees.predict import Predictor
from ps2.algorithms.trees.problem import BoostingPlan, TreeProblem
from ps2.algorithms.trees.quantiles import Quantiles
from ps2.algorithms.trees.ranking import RowGroups
from ps2.algorithms.trees.row_blocks import NO_COLUMNS, RowWiseRows
from ps2.algorithms.trees.rows import DenseRows, Scratch, SparseRows, Split, rounded_weights, row_ids, sample_rows
from ps2.algorithms.trees.search_kernels import Splits
from ps2.algorithms.trees.settings import BoostingSettings, ForestSettings
from ps2.algorithms.trees.tree import Forest
from ps2.data.rows import LocalRows
from ps2.ops.guards import readable

ORDER = np.zeros(1, np.int32)

SETTINGS = ForestSettings(numTrees=2, maxDepth=2, maxBins=8)
CLASSIFICATION = ForestPlan(settings=SETTINGS, impurity="gini", classes=2, rows=4, node_features=1)
REGRESSION = replace(CLASSIFICATION, impurity="variance", classes=0)


def warm() -> None:
    """Call every kernel on one row, with the types of arguments that workers and servers use."""
    x = np.ones((1, 1))
    _warm_binning(x, sp.csr_array(x))
    nodes = np.array([1, -1, -1]), np.zeros((3, 3), np.int64), np.zeros((3, 0), np.int64), np.zeros(3)
    grown = GrownTree(*nodes, np.ones((3, 2), np.int64))
    forest = Forest((tree_of(_bins(), grown, np.zeros(3), np.ones(3)),), np.zeros(1), 1)
    predictor = Predictor(forest)
    for rows in (x, sp.csr_array(x)):
        predictor.margins(rows)
        predictor.leaves(rows)
        Explainer(forest).contributions(rows)
    first_row, third_row, m = np.zeros(1, np.int64), np.full(1, 2), np.zeros((3, 64), np.int64)
    add(m, first_row, np.zeros((1, 2), np.int64), row=0, marks=True)
    add_rows(m, first_row, np.zeros((1, 64), np.int64))
    clear(m, first_row)
    mark(m)
    for marks in (False, True):
        subtract(m, first_row, third_row, marks=marks)
    keys, allowed = np.zeros(1, np.int64), np.zeros((1, 0), np.int64)
    operands = np.zeros((1, 3), np.int64), np.zeros((1, 2)), keys, np.zeros(5), allowed
    best_splits(np.zeros((1, 2), np.int64), np.zeros(1, np.int64), *operands)
    _warm_growing()
    warm_forests()
    for min_rows in (1, 2):
        for level_features in (0, 1):  # the compiled engine; the engine in steps
            settings = BoostingSettings(maxIter=1, minChildWeight=1.0, regLambda=1.0, minInstancesPerNode=min_rows)
            grow_in_process(BoostingPlan(settings=settings, level_features=level_features))


def _bins() -> Bins:
    return Bins(np.zeros(1), np.array([0, 1]), np.zeros(1, np.int32), np.zeros(1, np.bool_))


def _warm_binning(x: np.ndarray, sparse: sp.csr_array) -> None:
    features = np.zeros(1, np.int64)
    for columns in (FeatureColumns.of_dense(x), FeatureColumns.of_sparse(sparse)):
        for weights in (NO_WEIGHTS, readable(np.ones(1, np.int64))):
            cut_points.distinct_values(columns, 2, weights)
            cells = Cells.uncut(1)
            for turn in range(2):
                refinement = Refinement.of(cells, 2, turn)
                sums = cut_points.child_weights(columns, features, cells, refinement, weights)
                filled = np.flatnonzero(sums)
                cells = cells.refine(refinement, filled, sums[filled])
            cut_points.cuts_of_cells(cells, 2)
            cut_points.missing_weights(columns, weights)
    _bins().bin_dense(FeatureColumns.of_dense(x))
    _bins().bin_sparse(sparse, "zero")


def _warm_growing() -> None:
    for objective in (Objective("logistic"), Objective("softmax", 2)):
        margins, y = np.zeros((1, objective.width)), np.zeros(1)
        objective.losses(margins, y)
        pairs, _ = objective.gradients(margins, y)
    _warm_ranking()
    exponent_counts(pairs, np.ones(1))
    FeatureSets(1, weights=(1.0,), num_sampled=1).words([frozenset()], np.zeros(1, np.int64))
    Metric("auc").sums(Objective("logistic"), np.zeros((1, 1)), np.zeros(1), NO_FLOATS, (0.0, 0.0))
    row = LocalRows(np.zeros(1, np.int64), sp.csr_array(np.ones((1, 1))), np.zeros(1))
    sample_rows(row_ids(row, "zero"), 0, 0.5)
    binning_kernels.count_values(readable(row.x.indices), readable(row.x.data), np.zeros(1, np.int64))
    rounded_weights(readable(np.ones(1)), readable(np.zeros(1, np.int64)), 1.0)
    ends = readable(np.zeros((1, 2), np.int64))
    growing_kernels.add_leaf_values(
        np.zeros(1, np.int64), ends, readable(np.zeros(1)), readable(ORDER), np.zeros((1, 1))[:, 0]
    )
    split = Split(0, 0, False, np.empty(0, np.int64))
    growing_kernels.sum_pairs(ORDER, quantise_pairs(pairs[0], np.zeros(1, np.int64), 0, (1.0, 1.0)))
    for channels in (2, 3):
        pairs_of_row = np.ones((1, channels), np.int64)
        for unsigned in (np.uint8, np.uint16):
            dense = DenseRows(_bins(), np.zeros((1, 1), unsigned))
            dense.add_histogram(ORDER, pairs_of_row, np.zeros((2, channels), np.int64))
            dense.partition(ORDER.copy(), split, ORDER.copy())
            row_wise = RowWiseRows(_bins(), NO_COLUMNS, row_wise=readable(np.zeros((1, 2, 2), unsigned)))
            row_wise.partition(ORDER.copy(), split, ORDER.copy())
        sparse = SparseRows(_bins(), *_bins().bin_sparse(sp.csr_array(np.ones((1, 1))), "zero"), "zero")
        sparse.histogram(ORDER, pairs_of_row, Scratch(2, channels))
        sparse.partition(ORDER.copy(), split, ORDER.copy())


def grow_in_process(plan: BoostingPlan) -> None:
    """Grow a tree of four rows in this process."""
    problem, y = TreeProblem(Objective("logistic"), 1, (0.0,)), np.array([0.0, 0.0, 1.0, 1.0])
    rows = LocalRows(np.zeros(1, np.int64), sp.csr_array(1 + y[:, None]), y)
    bins, columns = Quantiles.in_process(problem, plan.settings.maxBins, None).find_bins(rows)
    boosted_rows = BoostedRows(problem, plan, bins, (rows, rows), columns)
    scales = integer_scales(*sum_bounds(boosted_rows.compute_gradients()["exponents"])[:2])
    LocalGrower(problem, plan, bins, boosted_rows, 0.0).grow(0, scales)


def warm_whole_trees() -> None:
    """Compile the kernel that grows a whole tree, which takes as long as all kernels that a worker calls earlier."""
    rows = DenseRows(_bins(), np.zeros((1, 1), np.uint8))
    problem, plan = TreeProblem(Objective("logistic"), 1, (0.0,)), BoostingPlan(settings=BoostingSettings(maxIter=1))
    boosted_rows: Any = SimpleNamespace(
        tree_rows=SimpleNamespace(arrays=(ORDER.copy(), ORDER.copy()), set_ends=lambda ends: None),
        channel_values=np.zeros((1, 2), np.int64),
    )
    CompiledGrower(problem, plan, rows).grow(boosted_rows, 0, (1.0, 1.0), np.zeros(3, np.int64), 1.0)


def _warm_ranking() -> None:
    objective, groups = Objective("lambdarank"), RowGroups.of(np.zeros(1, np.int64), np.zeros(1, np.int64), NO_FLOATS)
    objective.gradients(np.zeros((1, 1)), np.zeros(1), groups=groups)
    for metric in (Metric("ndcg"), Metric("map")):
        metric.sums(objective, np.zeros((1, 1)), np.zeros(1), NO_FLOATS, (0.0, 0.0), groups)


def warm_forests() -> None:
    """Call every kernel of random forests on four rows, with the types that workers and servers use."""
    y = np.array([0.0, 0.0, 1.0, 1.0])
    for x in (sp.csr_array(1 + y[:, None]), sp.csr_array(np.column_stack([y, *np.zeros((9, 4))]))):
        for plan in (CLASSIFICATION, REGRESSION):
            forest, _ = forest_in_process(LocalRows(np.arange(x.shape[1]), x, y), plan)
            forest.margins(x)
            forest.votes(x, np.ones((4, plan.settings.numTrees), np.bool_))
            _build_histogram(LocalRows(np.arange(x.shape[1]), x, y), plan)
    rules = CLASSIFICATION.rules((1.0, 1.0))
    first_row, m = np.zeros(1, np.int64), np.zeros((3, 64), np.int64)
    purest_splits(m, first_row, np.zeros((1, 2), np.int64), np.array(rules[:4]), np.array(rules[4:]))
    growth = ForestGrowth(CLASSIFICATION, (1.0, 1.0), np.full((2, 2), 2), [2, 3], 1)
    left_sums, words = np.array([[2, 0], [2, 0]]), np.zeros((2, 0), np.int64)
    growth.advance(Splits(np.ones(2), np.zeros((2, 3), np.int64), left_sums, words))


def warm_whole_forest_trees() -> None:
    bins = _bins()
    dense, sums = DenseRows(bins, np.zeros((1, 1), np.uint8)), np.ones(CLASSIFICATION.channels, np.int64)
    rows: Any = SimpleNamespace(
        sample=lambda tree: np.ones(1, np.uint8),
        totals=lambda order, draws, rules: sums,
        integer_pairs=readable(np.zeros((1, 2), np.int64)),
        arrays=kernel_rows(dense, has_blocks=False),
    )
    ForestGrower(CLASSIFICATION, bin_columns(bins, "zero"), rows, (1.0, 1.0), 0).grow([0])


def forest_in_process(rows: LocalRows, plan: ForestPlan) -> tuple[RandomForest, Bins]:
    assert rows.y is not None
    bins, forest_rows, scales, problem = _prepared(rows, plan)
    grower = ForestGrower(plan, bin_columns(bins, problem.absent), forest_rows, scales, problem.words)
    return random_forest(grower.grow(range(plan.settings.numTrees)), bins, problem, plan, scales), bins


def _prepared(rows: LocalRows, plan: ForestPlan) -> tuple[Bins, ForestRows, tuple[float, float], TreeProblem]:
    classes = plan.classes
    objective = Objective("softmax", classes) if classes > 2 else Objective("logistic" if classes else "squared")
    problem = TreeProblem(objective, len(rows.keys), (0.0,))
    mean = None if rows.weights is None else float(rows.weights.mean())
    bins, columns = Quantiles.in_process(problem, plan.settings.maxBins, mean).find_bins(rows)
    forest_rows = ForestRows(problem, plan, rows)
    scales = plan.scales(sum_bounds(forest_rows.exponents()))
    forest_rows.begin(bins, columns, scales)
    return bins, forest_rows, scales, problem


def _build_histogram(rows: LocalRows, plan: ForestPlan) -> None:
    bins, forest_rows, scales, problem = _prepared(rows, plan)
    rules = plan.rules(scales)
    draws = forest_rows.sample(0)
    order = np.flatnonzero(draws).astype(np.int32)
    histograms = NodeHistograms(plan, rules, bin_columns(bins, problem.absent))
    histograms.of(readable(order), draws, (1, 1, 0), forest_rows.arrays, readable(forest_rows.integer_pairs))


if __name__ == "__main__":
    warm()
