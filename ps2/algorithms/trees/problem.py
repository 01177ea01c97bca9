"""The objective of boosted trees, and the options of their training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from ps2.algorithms.training.placement import Via
from ps2.algorithms.trees.gradients import Objective
from ps2.algorithms.trees.tree import Absent, Forest
from ps2.errors import ConfigError

MAX_DEPTH = 30
WORD_BITS = 64
# The least gain of a split in xgboost.
MIN_GAIN = 1e-6
# Bits of rows' weights as whole numbers: of the mean weight at most, and of their sum.
WEIGHT_BITS, WEIGHTS_BITS = 20, 29

GrowthName = Literal["level", "leaf"]
# The source of a node's weight.
WeighedBy = Literal["hessians", "rows", "weights"]


@dataclass(frozen=True)
class TreeProblem:
    """The target of the prediction.

    Attributes:
        objective: of a row, by its margins.
        dim: number of features.
        base: the margins before any tree, one an output.
        absent: what it is that sparse rows do not hold.
        categories: how many a feature has, by its number; others are numeric.
        initial: a forest that the training goes on from, with this base; None: it begins anew.
        reach: by how much rows' margins may lie below and above the base before the first new tree.
    """

    objective: Objective
    dim: int
    base: tuple[float, ...]
    absent: Absent = "zero"
    categories: Mapping[int, int] = field(default_factory=dict)
    initial: Forest | None = field(default=None, repr=False)
    reach: tuple[float, float] = (0.0, 0.0)

    @property
    def span(self) -> tuple[float, float]:
        """No margin before the first new tree is below the one, or above the other."""
        return min(self.base) + self.reach[0], max(self.base) + self.reach[1]

    @property
    def words(self) -> int:
        """How many int64 hold a bit for each category of a feature."""
        return -(-max(self.categories.values(), default=0) // WORD_BITS)

    @property
    def classes(self) -> int | None:
        """How many classes labels name; None: they are numbers."""
        return self.objective.classes


@dataclass(frozen=True)
class BoostingOptions:
    """How trees grow.

    Attributes:
        rounds: most trees of each output.
        depth: most splits above a leaf.
        growth: node to split first: the oldest ("level"), or the one with the largest gain ("leaf").
        leaves: most leaves of a tree; 0: any number.
        bins: most bins of a feature.
        rate: factor of leaves.
        first_rate: that of the first tree of each output; None: the same.
        reg_lambda, reg_alpha: L2 and L1 penalties on leaves.
        most_weight: largest absolute value of a leaf, before the rate.
        least_gain: gains up to this may be rounding.
        min_gain: the least gain of a split, twice what the objective loses.
        min_info_gain: the least gain of a split, divided by the weight of its node's rows.
        min_child_weight: the least sum of hessians of a node.
        min_weight: the least weight of a node's rows.
        weighed_by: source of that weight: the sum of hessians (if these are the rows' weights), the number of rows (if
            all weigh 1), or a sum of its own.
        weight_unit: unit of weights as whole numbers.
        min_rows: the least number of rows of a node.
        fraction: share of the rows that a tree is grown from.
        features: number of features drawn for each node; 0: all.
        feature_weights: of the features, when they are drawn; none: all weigh the same.
        groups: of features that may interact (``FeatureSets``); none: all may.
        monotone: -1, 0 or 1 per feature: direction of predictions; empty (also given as zeros only): no constraint.
        seed: of rounding and sampling.
        validate: stop early by the metric of held-out rows.
        validation_tol: least relative improvement of their metric.
        patience: rounds one after the other without one, before the training ends; 0: as in pyspark.ml.
        metric: of the held-out rows: ``Metric.parsed``.
        name: by which a restored context goes on with the training; "": it cannot.
        via: where histograms lie: in the process of the only worker, or on the servers.
    """

    rounds: int = 20
    depth: int = 5
    growth: GrowthName = "level"
    leaves: int = 0
    bins: int = 32
    rate: float = 0.1
    first_rate: float | None = None
    reg_lambda: float = 1.0
    reg_alpha: float = 0.0
    most_weight: float = math.inf
    least_gain: float = MIN_GAIN
    min_gain: float = 0.0
    min_info_gain: float = 0.0
    min_child_weight: float = 1.0
    min_weight: float = 0.0
    weighed_by: WeighedBy = "hessians"
    weight_unit: float = 1.0
    min_rows: int = 1
    fraction: float = 1.0
    features: int = 0
    feature_weights: tuple[float, ...] = ()
    groups: tuple[tuple[int, ...], ...] = ()
    monotone: tuple[int, ...] = ()
    seed: int = 0
    validate: bool = False
    validation_tol: float = 0.01
    patience: int = 0
    metric: str = ""
    name: str = ""
    via: Via = "servers"

    def __post_init__(self) -> None:
        if not 0 <= self.depth <= MAX_DEPTH:
            raise ConfigError(f"depth: expected a number in [0, {MAX_DEPTH}], got {self.depth}")
        if self.growth not in get_args(GrowthName):
            raise ConfigError(f"growth: expected one of {', '.join(get_args(GrowthName))}, got {self.growth!r}")
        if not any(self.monotone):
            object.__setattr__(self, "monotone", ())
        if self.leaves < 0:
            raise ConfigError(f"leaves: expected a number that is not negative, got {self.leaves}")
        if self._is_weighed and self.weighed_by == "weights" and self.min_rows > 1:
            raise ConfigError(
                "minInstancesPerNode: expected 1 with minInfoGain or minWeightFractionPerNode and weights of rows, for "
                f"a loss whose hessians are not these, got {self.min_rows}"
            )

    @property
    def most_leaves(self) -> int:
        """Most leaves of a tree."""
        return min(self.leaves or 1 << self.depth, 1 << self.depth)

    @property
    def bounds(self) -> npt.NDArray[np.float64]:
        """Least and largest value of a leaf."""
        return np.array([-self.most_weight, self.most_weight])

    @property
    def drawn(self) -> int:
        """Number of features that the search itself draws for each node; 0: it looks at all that a node may use."""
        return 0 if self.feature_weights else self.features

    @property
    def _is_weighed(self) -> bool:
        """Whether the weight of nodes is needed."""
        return self.min_weight > 0 or self.min_info_gain > 0

    @property
    def third(self) -> WeighedBy | None:
        """Content of a bin's third channel: "rows" or "weights"; None: a bin has two channels."""
        if self._is_weighed and self.weighed_by != "hessians":
            return self.weighed_by
        return "rows" if self.min_rows > 1 else None

    @property
    def channels(self) -> int:
        """Channels of a bin: hessians, gradients, and a third one if needed."""
        return 2 if self.third is None else 3

    @property
    def min_third(self) -> int:
        """The least third total of a node."""
        match self.third:
            case "rows":
                # The share behind a least weight is rounded; the tolerance keeps it from asking for one row more.
                of_weight = self.min_weight * (1 - 1e-6) if self.weighed_by == "rows" else 0.0
                return max(self.min_rows, math.ceil(of_weight))
            case "weights":
                return math.ceil(self.min_weight * (1 - 1e-6) / self.weight_unit)
            case _:
                return 0

    @property
    def min_hessian(self) -> float:
        """The least sum of hessians of a node."""
        return max(self.min_child_weight, self.min_weight * (1 - 1e-6) if self.weighed_by == "hessians" else 0.0)

    def weight_of(self, hessian: float, third: int) -> float:
        """Return the weight of a node's rows from its sums; unneeded sums may be 0."""
        return hessian if self.weighed_by == "hessians" else third * self.weight_unit

    def rate_of(self, tree: int, width: int) -> float:
        """Return the factor of a tree's leaves; width: the number of outputs."""
        return self.rate if self.first_rate is None or tree >= width else self.first_rate


def weight_bits(rows: int) -> int:
    """Return the bits of the mean weight as a whole number, so that the sum of all rows fits int32."""
    return max(min(WEIGHT_BITS, WEIGHTS_BITS - math.ceil(math.log2(rows))), 0)


def key_of(seed: int, *numbers: int) -> int:
    """Return a key for random numbers, below 2**63."""
    return int(np.random.SeedSequence([seed, *numbers]).generate_state(1, np.uint64)[0] >> np.uint64(1))
