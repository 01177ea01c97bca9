"""How random forests grow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ps2.algorithms.training.placement import Via
from ps2.algorithms.trees.forests.impurity_kernels import ENTROPY, GINI, VARIANCE, ForestRules
from ps2.algorithms.trees.growing import scales_of
from ps2.algorithms.trees.problem import key_of
from ps2.array_types import Float64s
from ps2.ops.guards import readable

ImpurityName = Literal["gini", "entropy", "variance"]
CODES: dict[ImpurityName, int] = {"gini": GINI, "entropy": ENTROPY, "variance": VARIANCE}
# Most draws of a row for one tree: more are as likely as 1 in 10^14.
MAX_DRAWS = 15
# How often a node draws features, if none of those drawn before parts it.
TURNS = 3


@dataclass(frozen=True)
class ForestOptions:
    """How the trees of a forest grow.

    Attributes:
        trees: how many there are.
        depth: most splits above a leaf.
        bins: most bins of a feature.
        impurity: what splits lessen.
        classes: how many labels name; 0: labels are numbers.
        min_rows: least draws of a node.
        min_weight: least weight of a node.
        min_info_gain: least gain of a split, divided by the weight of its node.
        features: how many a node draws; 0: all.
        rate: draws of a row for a tree, in the mean.
        bootstrap: rows are drawn with replacement; else each row at most once.
        weighted: rows have weights of their own.
        rows: how many there are.
        seed: of all draws, and of the rounding of labels and weights.
        name: by which a restored context goes on with the training; "": it cannot.
        via: where trees grow: in the process of the only worker, or on the servers.
    """

    trees: int
    depth: int
    bins: int
    impurity: ImpurityName
    classes: int
    rows: int
    min_rows: int = 1
    min_weight: float = 0.0
    min_info_gain: float = 0.0
    features: int = 0
    rate: float = 1.0
    bootstrap: bool = True
    weighted: bool = False
    seed: int = 0
    name: str = ""
    via: Via = "servers"

    @property
    def width(self) -> int:
        """Channels of a bin without draws: one a class, or weight and label."""
        return self.classes or 2

    @property
    def channels(self) -> int:
        """Channels of a bin: draws are one of them where rows have weights."""
        return self.width + self.weighted

    @property
    def counts_alone(self) -> bool:
        """Whether sums are numbers of draws: classes of rows without weights."""
        return bool(self.classes) and not self.weighted

    @property
    def turns(self) -> int:
        """How often a node may draw features."""
        return TURNS if self.features else 1

    def rules(self, scales: tuple[float, float]) -> ForestRules:
        """Return how splits are judged; scales: factors of weights and labels."""
        limits = float(self.min_weight), float(self.min_info_gain)
        kinds = CODES[self.impurity], self.width, self.min_rows, self.depth
        return ForestRules(*kinds, 1 / scales[0], 1 / scales[1], *limits)

    def scales(self, below: Float64s) -> tuple[float, float]:
        """Return factors by which weights and labels become whole numbers whose sums fit.

        Args:
            below: bounds of the sums of weights, and of absolute labels, less the base, times weights.
        """
        if self.counts_alone:
            return 1.0, 1.0
        # A tree may draw heavy rows alone.
        of_weights, of_labels = scales_of(MAX_DRAWS * below[0], MAX_DRAWS * below[1])
        return (of_weights if self.weighted else 1.0), of_labels

    @property
    def draws_below(self) -> Float64s:
        """The probability that a tree has a row 0, 1, ... times or fewer."""
        if not self.bootstrap:
            return readable(np.array([1.0 - self.rate]))
        shares = [math.exp(-self.rate) * self.rate**count / math.factorial(count) for count in range(MAX_DRAWS)]
        return readable(np.cumsum(shares))

    def keys(self, tree: int) -> tuple[int, int]:
        """Return the keys by which a tree draws rows, and its nodes features."""
        return key_of(self.seed, tree, 0), key_of(self.seed, tree, 1)

    @property
    def trees_at_once(self) -> int:
        """How many trees grow at once on servers, so that the rows of all of them fit in memory."""
        return max(1, min(64, self.trees, (1 << 26) // max(self.rows, 1)))

    @property
    def most_nodes(self) -> int:
        """Most nodes of a tree."""
        return 2 * min(1 << self.depth, max(self.rows, 1)) - 1


def impurity_of(impurity: ImpurityName, shares: Float64s) -> Float64s:
    """Return the impurity of nodes by their shares of the classes, shape (n, classes)."""
    if impurity == "gini":
        return np.asarray(1.0 - (shares**2).sum(axis=1))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(-np.where(shares > 0, shares * np.log2(shares), 0.0).sum(axis=1))


def features_drawn(strategy: str, dim: int, trees: int, classes: int) -> str:
    """Return the strategy that "auto" stands for, as in pyspark.ml: all for one tree, else by the kind of labels."""
    if strategy.lower() != "auto":
        return strategy
    return "all" if trees == 1 else "sqrt" if classes else "onethird"


def min_rows_to_split(options: ForestOptions) -> int:
    """Return how many rows must hold a feature, at least, so that it can split a node."""
    return 0 if options.weighted else max(1, math.ceil(options.min_rows / MAX_DRAWS))
