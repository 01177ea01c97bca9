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
# The least gain of a split, as in xgboost: below, there is nothing but rounding.
LEAST_GAIN = 1e-6

GrowthName = Literal["level", "leaf"]


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
        return {"logistic": 2, "softmax": self.objective.width}.get(self.objective.loss)


@dataclass(frozen=True)
class Recipe:
    """How to grow trees.

    Attributes:
        rounds: how many trees there are of each output, at most.
        depth: splits above the deepest leaf, at most.
        growth: what is split first: by "level" the oldest node, by "leaf" the one that gains most.
        leaves: of a tree, at most; 0: any number.
        bins: of a feature, at most.
        rate: what leaves are multiplied by.
        reg_lambda, reg_alpha: L2 and L1 penalties on leaves.
        most_weight: what leaves say at most, either way, before they are multiplied by the rate.
        min_gain: the least gain of a split, twice what the objective loses.
        min_child_weight: the least sum of hessians of a node.
        min_rows: the least number of rows of a node.
        fraction: of the rows that a tree is grown of.
        features: that a node may be split by, drawn for each; 0: all.
        monotone: -1, 0 or 1 a feature: how predictions may follow it; empty: anyhow.
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
    reg_lambda: float = 1.0
    reg_alpha: float = 0.0
    most_weight: float = math.inf
    min_gain: float = 0.0
    min_child_weight: float = 1.0
    min_rows: int = 1
    fraction: float = 1.0
    features: int = 0
    monotone: tuple[int, ...] = ()
    seed: int = 0
    validate: bool = False
    validation_tol: float = 0.01
    name: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.depth <= MOST_DEPTH:
            raise ConfigError(f"depth: expected a number in [0, {MOST_DEPTH}], got {self.depth}")
        if self.growth not in get_args(GrowthName):
            raise ConfigError(f"growth: expected one of {', '.join(get_args(GrowthName))}, got {self.growth!r}")
        if self.leaves < 0:
            raise ConfigError(f"leaves: expected a number that is not negative, got {self.leaves}")

    @property
    def most_leaves(self) -> int:
        """How many a tree may have."""
        return min(self.leaves or 1 << self.depth, 1 << self.depth)

    @property
    def bounds(self) -> npt.NDArray[np.float64]:
        """Of what any leaf says: the least and the largest."""
        return np.array([-self.most_weight, self.most_weight])

    @property
    def channels(self) -> int:
        """Numbers of a bin: hessians and gradients, and rows where they are asked for."""
        return 3 if self.min_rows > 1 else 2

    def clocks(self, width: int) -> int:
        """Return how many the trees take at most: the first and the last loss, and those of each tree."""
        of_tree = self.depth if self.growth == "level" else self.most_leaves - 1
        return self.rounds * width * max(of_tree, 1) + 3


def key_of(seed: int, *numbers: int) -> int:
    """Return what something's random numbers are drawn by, below 2**63."""
    return int(np.random.SeedSequence([seed, *numbers]).generate_state(1, np.uint64)[0] >> np.uint64(1))
