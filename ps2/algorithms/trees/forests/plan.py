"""The plan of a training of a random forest."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ps2.algorithms.frame.settings import Plan
from ps2.algorithms.training.record import Via
from ps2.algorithms.trees.forests.impurity_kernels import ENTROPY, GINI, VARIANCE, ForestRules
from ps2.algorithms.trees.gradients import integer_scales
from ps2.algorithms.trees.problem import default_min_group, key_of
from ps2.algorithms.trees.settings import ForestSettings, ImpurityName, num_features_of
from ps2.array_types import Float64s
from ps2.ops.guards import readable

CODES: dict[ImpurityName, int] = {"gini": GINI, "entropy": ENTROPY, "variance": VARIANCE}
# The maximum number of times that a tree draws a row: the probability of more draws is 10^-14.
MAX_DRAWS = 15
# The maximum number of times that a node samples features. It samples others if no split by the first gains enough.
TURNS = 3


@dataclass(frozen=True, kw_only=True)
class ForestPlan(Plan[ForestSettings]):
    """A training of a random forest.

    Attributes:
        classes: the number of classes; 0: regression.
        node_features: the number of features that each node samples; 0: all.
        via: "local": the process of the only worker has the histograms; "servers": the servers have them.
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
        """The number of a bin's channels without that for draws: one for each class, or two: weight and label."""
        return self.classes or 2

    @property
    def channels(self) -> int:
        """The number of a bin's channels; if rows have weights, the last one counts draws."""
        return self.width + self.is_weighted

    @property
    def sums_are_counts(self) -> bool:
        """Whether all sums are numbers of draws: classification of rows without weights."""
        return bool(self.classes) and not self.is_weighted

    @property
    def turns(self) -> int:
        """The maximum number of times that a node samples features."""
        return TURNS if self.node_features else 1

    def rules(self, scales: tuple[float, float]) -> ForestRules:
        """Return the rules of splits; scales: see ``PlantTrees``."""
        settings = self.settings
        limits = float(self.min_node_weight), float(settings.minInfoGain)
        kinds = CODES[self.impurity], self.width, settings.minInstancesPerNode, settings.maxDepth
        # pyspark.ml refuses more categories than maxBins.
        categories = settings.maxBins, default_min_group(self.rows)
        return ForestRules(*kinds, *categories, 1 / scales[0], 1 / scales[1], *limits)

    def scales(self, bounds: Float64s) -> tuple[float, float]:
        """Return factors that make weights and labels integers whose sums fit int64; bounds: see ``sum_bounds``."""
        if self.sums_are_counts:
            return 1.0, 1.0
        # A tree may draw each row MAX_DRAWS times.
        weight_scale, label_scale = integer_scales(MAX_DRAWS * bounds[0], MAX_DRAWS * bounds[1])
        return (weight_scale if self.is_weighted else 1.0), label_scale

    @property
    def draw_probabilities(self) -> Float64s:
        """The probabilities that a tree draws a row at most 0, 1, ... times; bootstrap: a Poisson variable."""
        rate = self.settings.subsamplingRate
        if not self.settings.bootstrap:
            return readable(np.array([1.0 - rate]))
        probabilities = [math.exp(-rate) * rate**count / math.factorial(count) for count in range(MAX_DRAWS)]
        return readable(np.cumsum(probabilities))

    def keys(self, tree: int) -> tuple[int, int]:
        """Return the random keys by which a tree samples rows, and by which its nodes sample features."""
        return key_of(self.seed, tree, 0), key_of(self.seed, tree, 1)

    @property
    def trees_at_once(self) -> int:
        """The number of trees that grow at once on servers, so few that their row numbers fit in a worker's memory."""
        return max(1, min(64, self.settings.numTrees, (1 << 26) // max(self.rows, 1)))


def impurity_of(impurity: ImpurityName, class_fractions: Float64s) -> Float64s:
    """Return the impurity of nodes from the fraction of each class, shape (n, classes)."""
    if impurity == "gini":
        return np.asarray(1.0 - (class_fractions**2).sum(axis=1))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(-np.where(class_fractions > 0, class_fractions * np.log2(class_fractions), 0.0).sum(axis=1))


def node_features_of(settings: ForestSettings, dim: int, classes: int) -> int:
    """Return the number of features that a node samples; 0: all; classes: 0 for regression."""
    strategy = settings.featureSubsetStrategy
    if strategy.lower() == "auto":
        strategy = "all" if settings.numTrees == 1 else "sqrt" if classes else "onethird"
    return num_features_of(strategy, dim)


def min_rows_to_split(plan: ForestPlan) -> int:
    """Return the number of rows that must store a feature, so that it can split a node."""
    return 0 if plan.is_weighted else max(1, math.ceil(plan.settings.minInstancesPerNode / MAX_DRAWS))
