"""A trainer of boosted trees in one process, out of the kernels alone: the reference of the distributed one."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import scipy.sparse as sp
from cut_points import cuts_from
from tree_builder import TreeBuilder, split_test

from ps2.algorithms.trees import growing_kernels, ops, scan_kernels
from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.boosted_growth import child_bounds
from ps2.algorithms.trees.cut_points import FeatureColumns, distinct_values
from ps2.algorithms.trees.gradients import Objective, exponent_counts, integer_scales, quantise_pairs, sum_bounds
from ps2.algorithms.trees.rows import DenseRows, Scratch, SparseRows, Split
from ps2.algorithms.trees.tree import Forest
from ps2.algorithms.trees.tree_matrices import layout_row


@dataclass(frozen=True)
class Recipe:
    loss: str = "squared"
    shape: float = 0.5
    rounds: int = 1
    depth: int = 3
    rate: float = 0.3
    reg_lambda: float = 1.0
    reg_alpha: float = 0.0
    min_child_weight: float = 1.0
    min_gain: float = 1e-6
    base: tuple[float, ...] = (0.0,)
    monotone: tuple[int, ...] = ()
    categories: dict[int, int] = field(default_factory=dict)
    absent: str = "zero"
    subtract: bool = True
    block: int = 0


def bins_of(x, recipe):
    """Return bins with a cut between each two values."""
    sparse = sp.issparse(x)
    columns = FeatureColumns.of_sparse(x) if sparse else FeatureColumns.of_dense(x)
    result = distinct_values(columns, 5000)
    assert not len(result.many_valued)
    cuts, missing = [], np.zeros(x.shape[1], bool)
    for f in range(x.shape[1]):
        mine = result.features == f
        entries = np.diff(columns.begin)[f]
        present = result.weights[mine].sum()
        absent = x.shape[0] - entries if sparse and recipe.absent == "zero" else 0
        missing[f] = present < entries or (sparse and recipe.absent == "missing" and entries < x.shape[0])
        if f in recipe.categories:
            cuts.append(np.arange(recipe.categories[f], dtype=np.float64))
        else:
            cuts.append(cuts_from(result.bits[mine], result.bits[mine], result.weights[mine], 4000, int(absent)))
    if sparse and recipe.absent == "missing":
        missing[:] = True
    categories = np.array([recipe.categories.get(f, 0) for f in range(x.shape[1])], np.int32)
    return Bins(
        np.concatenate(cuts), np.append(0, np.cumsum([len(c) for c in cuts])), categories, missing, recipe.block
    )


def binned(x, recipe):
    bins = bins_of(x, recipe)
    if sp.issparse(x):
        return SparseRows(bins, *bins.bin_sparse(x, recipe.absent), recipe.absent)
    return DenseRows(bins, bins.bin_dense(FeatureColumns.of_dense(x)))


def train(x, y, recipe, weights=None, seed=0):
    """Return a forest, and the margins of the rows."""
    rows, n, width = binned(x, recipe), x.shape[0], len(recipe.base)
    weights = np.empty(0) if weights is None else weights
    margins, trees = np.tile(np.array(recipe.base, np.float64), (n, 1)), []
    objective = Objective(recipe.loss, width, recipe.shape)
    for _ in range(recipe.rounds):
        pairs, _ = objective.gradients(margins, y, weights)
        scales = integer_scales(*sum_bounds(exponent_counts(pairs, weights))[:2])
        for c in range(width):
            whole = quantise_pairs(pairs[c], np.arange(n), seed + len(trees), scales)
            trees.append(grow(rows, whole, scales, margins[:, c], recipe))
    return Forest(tuple(trees), np.array(recipe.base), x.shape[1], recipe.loss, recipe.shape, recipe.absent), margins


@dataclass
class Node:
    number: int
    begin: int
    end: int
    total: tuple[int, int, int]
    row: int
    bounds: np.ndarray


def grow(rows, pairs, scales, margins, recipe):
    """Grow a tree level by level; add what it says to the margins."""
    units = (1 / scales[1], 1 / scales[0])
    rules = np.array([*units, recipe.reg_lambda, recipe.reg_alpha, recipe.min_child_weight])
    order = np.flatnonzero(pairs[:, 0]).astype(np.int32)
    aside = np.empty_like(order)
    m = np.zeros((2 ** (recipe.depth + 1), rows.bins.first_columns[-1] * 2), np.int64)
    m[0] = layout_row(rows.bins, getattr(rows, "absent", None), 2, recipe.monotone)
    words = -(-max(recipe.categories.values(), default=0) // 64) + bool(recipe.categories)

    def weight(total, bounds):
        return scan_kernels.best_leaf_value(total[1] * units[0], total[0] * units[1], *rules[2:4], *bounds)

    def filled(node):
        build(rows, order[node.begin : node.end], pairs, m[node.row])
        return node

    total = (*growing_kernels.sum_pairs(order, pairs), len(order))
    open_nodes = [filled(Node(0, 0, len(order), total, 1, np.array([-np.inf, np.inf])))]
    draft = TreeBuilder(weight(total, open_nodes[0].bounds), total[0] * units[1], total[2])
    leaves, used = [], 2
    for depth in range(recipe.depth + 1):
        if depth == recipe.depth or not open_nodes:
            leaves += open_nodes
            break
        gains, where, left_sums, sets = ops.best_splits(
            m,
            np.array([node.row for node in open_nodes]),
            np.array([node.total for node in open_nodes]),
            np.array([node.bounds for node in open_nodes]),
            np.zeros(len(open_nodes), np.int64),
            rules,
            np.empty((len(open_nodes), 0), np.int64),
            words=words,
        )
        below = []
        for i, node in enumerate(open_nodes):
            if not gains[i] > recipe.min_gain:
                leaves.append(node)
                continue
            split = Split(int(where[i, 0]), int(where[i, 1]), bool(where[i, 2]), sets[i])
            mine = slice(node.begin, node.end)
            middle = node.begin + rows.partition(order[mine], split, aside[mine])
            draft.split(node.number, split.feature, split_test(split, rows.bins), split.default_left, float(gains[i]))
            sign = recipe.monotone[split.feature] if recipe.monotone else 0
            totals = [(*map(int, left_sums[i][:2]), middle - node.begin)]
            totals.append(tuple(a - b for a, b in zip(node.total, totals[0], strict=True)))
            bounds = child_bounds(*(weight(t, node.bounds) for t in totals), sign, node.bounds)
            numbers = [
                draft.add_child(node.number, weight(t, b), t[0] * units[1], t[2])
                for t, b in zip(totals, bounds, strict=True)
            ]
            children = [
                Node(numbers[0], node.begin, middle, totals[0], used, bounds[0]),
                Node(numbers[1], middle, node.end, totals[1], node.row, bounds[1]),
            ]
            used += 1
            if recipe.subtract:
                filled(children[0])
                m[node.row] -= m[children[0].row]
            else:
                m[node.row] = 0
                for child in children:
                    filled(child)
            below += children
        open_nodes = below
    tree = draft.finish(recipe.rate)
    for leaf in leaves:
        margins[order[leaf.begin : leaf.end]] += tree.value[leaf.number]
    return tree


def build(rows, order, pairs, out):
    out = out.reshape(-1, 2)
    if isinstance(rows, DenseRows):
        rows.add_histogram(order, pairs, out)
    else:
        bins, sums = rows.histogram(order, pairs, Scratch(len(out), 2))
        out[bins] += sums
