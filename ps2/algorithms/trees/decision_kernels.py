"""Compiled decisions about one node of a growing tree, for the driver and for the loop over a whole tree."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ps2.algorithms.trees.layout import GRADIENT, HESSIAN, LOWER, THIRD, UPPER
from ps2.algorithms.trees.scan_kernels import Rules, score_of, weight_of
from ps2.ops.kernels import Float64s, Int64s, inline, kernel

Bools = npt.NDArray[np.bool_]

# Share of the scores that is lost by rounding when scores of nodes (square of a sum over a sum) are subtracted.
ROUNDING = 8 * float(np.finfo(np.float64).eps)
# Gain that equal rows seem to have, as their gradients are rounded at random: the square of a normal error, whose
# variance is at most 1/4 of a unit squared; the largest of very many, and more where equal rows are rounded alike.
CHANCE = 100.0
# Columns of verdicts on nodes: whether a node may be split, whether its best split is taken, and whether its left and
# its right child may be split.
MAY, SPLITS, CHILDREN = range(3)


class Limits(NamedTuple):
    """When a tree stops growing.

    Attributes:
        max_splits: the largest number of splits in the tree.
        max_depth: the largest number of splits above a leaf.
        by_gain: whether the node with the largest gain is split first; else the oldest.
        min_gain: a split has to gain more.
        min_info_gain: the smallest gain of a split divided by the weight of its node.
        rows_per_hessian: the number of rows per hessian of 1; 0: unknown.
        weight_unit: the weight that 1 of the third channel stands for; 0: hessians are the weights.
    """

    max_splits: int
    max_depth: int
    by_gain: bool
    min_gain: float
    min_info_gain: float
    rows_per_hessian: float
    weight_unit: float


@kernel
def may_split(place: int, total: Int64s, max_depth: int, rules: Rules) -> bool:
    """Return whether both sides of a split of a node can be heavy enough; place: see ``tree_kernels.Nodes``."""
    is_heavy = total[HESSIAN] > 1 and total[HESSIAN] * rules.hessian_unit >= 2 * rules.min_hessian
    return bool(place < np.int64(1) << max_depth and is_heavy and total[THIRD] >= 2 * rules.min_third)


@inline
def weight_by(h: int, g: int, bound: Float64s, rules: Rules) -> float:
    """Compute the weight that is best for a node, by its sums as whole numbers."""
    gradient, hessian = g * rules.gradient_unit, h * rules.hessian_unit
    return weight_of(gradient, hessian, rules.reg_lambda, rules.reg_alpha, bound[LOWER], bound[UPPER])


@inline
def _score(h: int, g: int, bound: Float64s, rules: Rules) -> float:
    w = weight_by(h, g, bound, rules)
    return score_of(g * rules.gradient_unit, h * rules.hessian_unit, w, rules.reg_lambda, rules.reg_alpha)


@kernel
def gains_enough(gain: float, total: Int64s, left: Int64s, bound: Float64s, rules: Rules, limits: Limits) -> bool:
    """Return whether a split gains enough, and more than rounding may seem to gain; no split has a negative gain."""
    if not gain > limits.min_gain:
        return False
    hessian = total[HESSIAN] * rules.hessian_unit
    weight = total[THIRD] * limits.weight_unit if limits.weight_unit > 0.0 else hessian
    if limits.min_info_gain > 0 and gain < limits.min_info_gain * weight * (1 - ROUNDING):
        return False
    h, g, left_h, left_g = total[HESSIAN], total[GRADIENT], left[HESSIAN], left[GRADIENT]
    scores = abs(_score(h, g, bound, rules)) + abs(_score(left_h, left_g, bound, rules))
    scores += abs(_score(h - left_h, g - left_g, bound, rules))
    g_unit, h_unit = rules.gradient_unit, weight_by(h, g, bound, rules) * rules.hessian_unit
    chance = CHANCE * (g_unit * g_unit + h_unit * h_unit) * limits.rows_per_hessian
    return gain > max(chance, ROUNDING * scores)


@kernel
def judge(
    places: Int64s,
    totals: Int64s,
    bounds: Float64s,
    gains: Float64s,
    lefts: Int64s,
    rules: Rules,
    limits: Limits,
    out: Bools,
) -> None:
    """Set the verdicts on nodes that may be split, shape (n, 4); lefts: the sums of the left sides."""
    for i in range(len(places)):
        out[i, MAY] = True
        if gains_enough(gains[i], totals[i], lefts[i], bounds[i], rules, limits):
            out[i, SPLITS] = True
            out[i, CHILDREN] = may_split(2 * places[i], lefts[i], limits.max_depth, rules)
            out[i, CHILDREN + 1] = may_split(2 * places[i] + 1, totals[i] - lefts[i], limits.max_depth, rules)
