"""What boosted trees are trained for, and how."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from ps2.algorithms.trees.gradients import Objective
from ps2.algorithms.trees.tree import Absent
from ps2.errors import ConfigError

MOST_DEPTH = 30
WORD_BITS = 64
# The least gain of a split in xgboost.
LEAST_GAIN = 1e-6
# Of rows' weights as whole numbers: a mean one takes so many bits at most, and all of them together these.
WEIGHT_BITS, WEIGHTS_BITS = 20, 29

GrowthName = Literal["level", "leaf"]
# What tells the weight of a node.
WeighedBy = Literal["hessians", "rows", "weights"]
Bits = Literal[64, 32]


@dataclass(frozen=True)
class Problem:
    """What is to be predicted.

    Attributes:
        objective: of a row, by its margins.
        dim: number of features.
        base: the margins before any tree, one an output.
        absent: what it is that sparse rows do not hold.
        categories: how many a feature has, by its number; others are numeric.
    """

    objective: Objective
    dim: int
    base: tuple[float, ...]
    absent: Absent = "zero"
    categories: Mapping[int, int] = field(default_factory=dict)

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
    """How to grow trees.

    Attributes:
        rounds: how many trees there are of each output, at most.
        depth: splits above the deepest leaf, at most.
        growth: what is split first: by "level" the oldest node, by "leaf" the one that gains most.
        leaves: of a tree, at most; 0: any number.
        bins: of a feature, at most.
        rate: what leaves are multiplied by.
        first_rate: that of the first tree of each output; None: the same.
        reg_lambda, reg_alpha: L2 and L1 penalties on leaves.
        most_weight: what leaves say at most, either way, before they are multiplied by the rate.
        least_gain: what gains have to be above to be more than rounding.
        min_gain: the least gain of a split, twice what the objective loses.
        min_info_gain: the least gain of a split, divided by the weight of its node's rows.
        min_child_weight: the least sum of hessians of a node.
        min_weight: the least weight of a node's rows.
        weighed_by: what tells that: the sum of hessians (all are their row's weight), how many rows there are (all
            weigh 1), or a sum of its own.
        weight_unit: what weights are multiples of, about, to be whole numbers.
        min_rows: the least number of rows of a node.
        fraction: of the rows that a tree is grown of.
        features: that a node may be split by, drawn for each; 0: all.
        monotone: -1, 0 or 1 a feature: how predictions may follow it; empty, as zeros alone are made: anyhow.
        bits: of sums in histograms: 64, or 32, which take half the room and time, and lose what ``scales_of`` says.
        seed: of rounding and sampling.
        validate: stop by the loss of rows held out.
        validation_tol: it has to get smaller by this part of itself.
        name: by which a context that was restored goes on with the training; "": none does.
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
    least_gain: float = LEAST_GAIN
    min_gain: float = 0.0
    min_info_gain: float = 0.0
    min_child_weight: float = 1.0
    min_weight: float = 0.0
    weighed_by: WeighedBy = "hessians"
    weight_unit: float = 1.0
    min_rows: int = 1
    fraction: float = 1.0
    features: int = 0
    monotone: tuple[int, ...] = ()
    bits: Bits = 64
    seed: int = 0
    validate: bool = False
    validation_tol: float = 0.01
    name: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.depth <= MOST_DEPTH:
            raise ConfigError(f"depth: expected a number in [0, {MOST_DEPTH}], got {self.depth}")
        if self.growth not in get_args(GrowthName):
            raise ConfigError(f"growth: expected one of {', '.join(get_args(GrowthName))}, got {self.growth!r}")
        if self.bits not in get_args(Bits):
            raise ConfigError(f"bits: expected one of {', '.join(map(str, get_args(Bits)))}, got {self.bits}")
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
        """How many a tree may have."""
        return min(self.leaves or 1 << self.depth, 1 << self.depth)

    @property
    def bounds(self) -> npt.NDArray[np.float64]:
        """Of what any leaf says: the least and the largest."""
        return np.array([-self.most_weight, self.most_weight])

    @property
    def _is_weighed(self) -> bool:
        """Whether the weight of nodes has to be known."""
        return self.min_weight > 0 or self.min_info_gain > 0

    @property
    def third(self) -> WeighedBy | None:
        """What a bin's third number is the sum of: "rows" or "weights"; None: there are two."""
        if self._is_weighed and self.weighed_by != "hessians":
            return self.weighed_by
        return "rows" if self.min_rows > 1 else None

    @property
    def sums_dtype(self) -> str:
        """Of histograms."""
        return f"int{self.bits}"

    @property
    def channels(self) -> int:
        """Numbers of a bin: hessians and gradients, and a third one where it is asked for."""
        return 2 if self.third is None else 3

    @property
    def min_third(self) -> int:
        """The least third number of a node."""
        match self.third:
            case "rows":
                # The share that makes a least weight is rounded: so many rows, not one more.
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
        """Return the weight of a node's rows by its sums; what is not asked for may be 0."""
        return hessian if self.weighed_by == "hessians" else third * self.weight_unit

    def rate_of(self, tree: int, width: int) -> float:
        """Return what the leaves of a tree are multiplied by; width: how many outputs there are."""
        return self.rate if self.first_rate is None or tree >= width else self.first_rate

    def clocks(self, width: int) -> int:
        """Return how many the trees take at most: the first and the last loss, and those of each tree."""
        of_tree = self.depth if self.growth == "level" else self.most_leaves - 1
        return self.rounds * width * max(of_tree, 1) + 3


def weight_bits(rows: int) -> int:
    """Return how many bits the mean of so many weights takes as a whole number, so that their sum fits into int32."""
    return max(min(WEIGHT_BITS, WEIGHTS_BITS - math.ceil(math.log2(rows))), 0)


def key_of(seed: int, *numbers: int) -> int:
    """Return what something's random numbers are drawn by, below 2**63."""
    return int(np.random.SeedSequence([seed, *numbers]).generate_state(1, np.uint64)[0] >> np.uint64(1))
