"""The scales of gradients, from one round of trees to the next. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ps2.algorithms.trees.growing import scales_of
from ps2.algorithms.trees.problem import BoostingPlan, TreeProblem
from ps2.algorithms.trees.tree import Tree
from ps2.array_types import Float64s


def first_scales(plan: BoostingPlan, below: Float64s) -> tuple[float, float]:
    """Return the factors of hessians and gradients in the first round.

    Args:
        below: bounds of the sums of hessians, gradients and weights (``sums_below``).

    Raises:
        ConfigError: a gradient is not finite.
    """
    return scales_of(float(below[0]), float(below[1]))


def next_scales(problem: TreeProblem, plan: BoostingPlan, below: Float64s, last: Sequence[Tree]) -> tuple[float, float]:
    """Return the factors of hessians and gradients in a round, by bounds of the last round's sums, and its trees."""
    return scales_of(*problem.objective.bounds_after(below, *_moves(problem, plan, last)))


def _moves(problem: TreeProblem, plan: BoostingPlan, last: Sequence[Tree]) -> tuple[float, float]:
    """Return the largest move of a margin in a round, and the sum of moves times weights; infinity: unknown."""
    leaves = [abs(tree.value[tree.leaves]) for tree in last]
    step = max(float(values.max()) for values in leaves)
    if problem.objective.loss != "squared" or plan.settings.subsamplingRate < 1:
        return step, math.inf
    return step, math.fsum(last[0].cover[last[0].leaves] * leaves[0])
