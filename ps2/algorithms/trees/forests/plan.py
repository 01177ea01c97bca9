"""A training of a random forest."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ps2.algorithms.frame.settings import Plan
from ps2.algorithms.training.record import Via
from ps2.algorithms.trees.forests.impurity_kernels import ENTROPY, GINI, VARIANCE, ForestRules
from ps2.algorithms.trees.gradients import scales_of
from ps2.algorithms.trees.problem import key_of
from ps2.algorithms.trees.settings import ForestSettings, ImpurityName, num_features_of
from ps2.array_types import Float64s
from ps2.ops.guards import readable

CODES: dict[ImpurityName, int] = {"gini": GINI, "entropy": ENTROPY, "variance": VARIANCE}
# The maximum number of draws of a row for one tree: the probability of more is 1 in 10^14.
MAX_DRAWS = 15
# The maximum number of times that a node selects features, if none of those selected before splits it.
TURNS = 3


@dataclass(frozen=True, kw_only=True)
class ForestPlan(Plan[ForestSettings]):
    """A training of a random forest.

    Attributes:
        impurity: the impurity that splits reduce.
        classes: the number of classes; 0: labels are numbers.
        rows: the number of rows.
        is_weighted: whether rows have weights.
        node_features: the number of features selected for each node; 0: all.
        min_node_weight: the minimum weight of a node's rows.
        via: where trees grow: in the only worker's process ("local"), or on the servers.
    """

    impurity: ImpurityName
    classes: int
    rows: int
    is_weighted: bool = False
    node_features: int = 0
    min_node_weight: float = 0.0
    via: Via = "servers"

    @property
    def width(self) -> int:
        """The number of a bin's channels without draws: one for each class, or weight and label."""
        return self.classes or 2

    @property
    def channels(self) -> int:
        """The number of a bin's channels; if rows have weights, draws are one of them."""
        return self.width + self.is_weighted

    @property
    def counts_alone(self) -> bool:
        """Whether sums are numbers of draws: classes of rows without weights."""
        return bool(self.classes) and not self.is_weighted

    @property
    def turns(self) -> int:
        """The maximum number of times that a node selects features."""
        return TURNS if self.node_features else 1

    def rules(self, scales: tuple[float, float]) -> ForestRules:
        """Return how splits are judged; ``scales``: the factors that made weights and labels whole numbers."""
        settings = self.settings
        limits = float(self.min_node_weight), float(settings.minInfoGain)
        kinds = CODES[self.impurity], self.width, settings.minInstancesPerNode, settings.maxDepth
        return ForestRules(*kinds, 1 / scales[0], 1 / scales[1], *limits)

    def scales(self, below: Float64s) -> tuple[float, float]:
        """Return factors by which weights and labels become whole numbers whose sums, bounded by ``below``, fit."""
        if self.counts_alone:
            return 1.0, 1.0
        # A tree may draw heavy rows alone.
        of_weights, of_labels = scales_of(MAX_DRAWS * below[0], MAX_DRAWS * below[1])
        return (of_weights if self.is_weighted else 1.0), of_labels

    @property
    def draws_below(self) -> Float64s:
        """The probability that a tree has a row 0, 1, ... times or fewer."""
        rate = self.settings.subsamplingRate
        if not self.settings.bootstrap:
            return readable(np.array([1.0 - rate]))
        shares = [math.exp(-rate) * rate**count / math.factorial(count) for count in range(MAX_DRAWS)]
        return readable(np.cumsum(shares))

    def keys(self, tree: int) -> tuple[int, int]:
        """Return the keys by which a tree draws rows, and its nodes features."""
        return key_of(self.seed, tree, 0), key_of(self.seed, tree, 1)

    @property
    def trees_at_once(self) -> int:
        """The number of trees that grow at once on servers, so that the rows of all of them fit in memory."""
        return max(1, min(64, self.settings.numTrees, (1 << 26) // max(self.rows, 1)))


def impurity_of(impurity: ImpurityName, shares: Float64s) -> Float64s:
    """Return the impurity of nodes by their shares of the classes, shape (n, classes)."""
    if impurity == "gini":
        return np.asarray(1.0 - (shares**2).sum(axis=1))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(-np.where(shares > 0, shares * np.log2(shares), 0.0).sum(axis=1))


def node_features_of(settings: ForestSettings, dim: int, classes: int) -> int:
    """Return how many features a node selects; 0: all. "auto" depends on trees and labels, as in pyspark.ml."""
    strategy = settings.featureSubsetStrategy
    if strategy.lower() == "auto":
        strategy = "all" if settings.numTrees == 1 else "sqrt" if classes else "onethird"
    return num_features_of(strategy, dim)


def min_rows_to_split(plan: ForestPlan) -> int:
    """Return how many rows must hold a feature, at least, so that it can split a node."""
    return 0 if plan.is_weighted else max(1, math.ceil(plan.settings.minInstancesPerNode / MAX_DRAWS))
