"""A tree of a random forest as it has grown, in whole numbers; and the forest that such trees make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.forests.options import ForestOptions, impurity_of
from ps2.algorithms.trees.forests.random_forest import RandomForest
from ps2.algorithms.trees.layout import set_of
from ps2.algorithms.trees.problem import TreeProblem
from ps2.algorithms.trees.tree import LEAF, Forest, Tree
from ps2.array_types import Float64s, Int64s

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class GrownTree:
    """A tree whose nodes are numbered level by level, from the left.

    Attributes:
        children: int64, shape (n,): the left child of each node, before the right one; -1: a leaf.
        where: int64, shape (n, 3): feature; last bin on the left (-1: a set); whether missing values go left.
        sets: int64, shape (n, words): categories that go left, as bits.
        gains: float64, shape (n,): decrease of the impurity times the node's weight.
        sums: int64, shape (n, channels): of the rows.
    """

    children: Int64s
    where: Int64s
    sets: Int64s
    gains: Float64s
    sums: Int64s

    def as_data(self) -> list[Any]:
        """Return it as plain data: numbers of bins and features as int32."""
        return [getattr(self, field.name) for field in fields(self)]

    def impurity(self, options: ForestOptions, scales: tuple[float, float]) -> tuple[float, float]:
        """Return the impurity of the root, and the mean impurity of the leaves; of labels the decrease below 0."""
        weight = self.weights(options, scales)
        gained = float(self.gains[self.children >= 0].sum()) / weight[0] if weight[0] else 0.0
        root = 0.0
        if options.classes and weight[0]:
            root = float(impurity_of(options.impurity, self.shares(options)[:1])[0])
        return root, root - gained

    def weights(self, options: ForestOptions, scales: tuple[float, float]) -> Float64s:
        """Return the weight of each node."""
        whole = self.sums[:, : options.classes].sum(axis=1) if options.classes else self.sums[:, 0]
        return np.asarray(whole / scales[0])

    def shares(self, options: ForestOptions) -> Float64s:
        """Return the shares of the classes in each node, shape (n, classes)."""
        counts = self.sums[:, : options.classes].astype(np.float64)
        return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1.0)


def random_forest(
    trees: Sequence[GrownTree], bins: Bins, problem: TreeProblem, options: ForestOptions, scales: tuple[float, float]
) -> RandomForest:
    """Return the forest of some trees.

    Args:
        scales: factors of weights and labels.
    """
    shares = tuple(tree.shares(options) for tree in trees) if options.classes else ()
    made = tuple(
        _tree(tree, bins, problem, options, scales, shares[number] if shares else None)
        for number, tree in enumerate(trees)
    )
    forest = Forest(made, np.zeros(1), problem.dim, absent=problem.absent)
    return RandomForest(forest, shares)


def _tree(
    grown: GrownTree,
    bins: Bins,
    problem: TreeProblem,
    options: ForestOptions,
    scales: tuple[float, float],
    shares: Float64s | None,
) -> Tree:
    inner, where = grown.children >= 0, grown.where
    weights = grown.weights(options, scales)
    feature = np.where(inner, where[:, 0], LEAF)
    has_set = inner & (where[:, 1] < 0)
    at = bins.offsets[np.maximum(feature, 0)] + np.maximum(where[:, 1], 0)
    is_last = at >= bins.offsets[np.maximum(feature, 0) + 1]
    cuts = np.append(bins.cuts, np.inf)
    threshold = np.where(is_last, np.inf, cuts[np.minimum(at, len(bins.cuts))])
    flags = [
        set_of(np.ascontiguousarray(grown.sets[node]), int(bins.categories[feature[node]]))
        for node in np.flatnonzero(has_set).tolist()
    ]
    sizes = np.zeros(len(inner), np.int64)
    sizes[has_set] = [len(one) for one in flags]
    if shares is None:
        value = problem.base[0] + grown.sums[:, 1] / scales[1] / np.where(weights > 0, weights, 1.0)
    else:
        value = np.argmax(shares, axis=1).astype(np.float64)
    if options.weighted:
        count = grown.sums[:, options.width]
    else:
        count = grown.sums[:, : options.classes].sum(axis=1) if options.classes else grown.sums[:, 0]
    return Tree(
        feature.astype(np.int32),
        np.where(inner & ~has_set, threshold, 0.0),
        inner & (where[:, 2] > 0),
        np.where(inner, grown.children, LEAF).astype(np.int32),
        np.where(inner, grown.children + 1, LEAF).astype(np.int32),
        value,
        np.where(inner, grown.gains, 0.0),
        weights,
        count.astype(np.int64),
        np.append(0, np.cumsum(sizes)).astype(np.int64),
        np.concatenate([np.empty(0, np.bool_), *flags]),
    )


def without_rest(tree: GrownTree) -> GrownTree:
    """Return a tree without what was found for its leaves and not used."""
    leaf = tree.children < 0
    where, sets, gains = tree.where.copy(), tree.sets.copy(), tree.gains.copy()
    where[leaf], sets[leaf], gains[leaf] = -1, 0, 0.0
    # Sets are of categorical splits alone.
    sets[where[:, 1] >= 0] = 0
    return replace(tree, where=where, sets=sets, gains=gains)
