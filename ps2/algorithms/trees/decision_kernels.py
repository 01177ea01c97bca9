"""Compiled decisions about one node of a growing tree, for the driver and for the loop over a whole tree."""

from __future__ import annotations

import numpy as np

from ps2.algorithms.trees.scan_kernels import score_of, weight_of
from ps2.ops.kernels import Float64s, Int64s, inline, kernel

# Share of the scores that is lost by rounding when scores of nodes (square of a sum over a sum) are subtracted.
ROUNDING = 8 * float(np.finfo(np.float64).eps)
# Gain that equal rows seem to have, as their gradients are rounded at random: the square of a normal error, whose
# variance is at most 1/4 of a unit squared; the largest of very many, and more where equal rows are rounded alike.
CHANCE = 100.0
# Of ``rules``: as of ``ops.best_splits``. Of ``limits``: the least gain; the least gain by weight; how many rows there
# are by a hessian of 1; what 1 of the third channel weighs, 0: hessians are the weights.
G_UNIT, H_UNIT, REG_LAMBDA, REG_ALPHA, MIN_HESSIAN = range(5)
MIN_GAIN, MIN_INFO_GAIN, ROWS_BY_HESSIAN, WEIGHT_UNIT = range(4)


@kernel
def may_split(place: int, total: Int64s, depth: int, min_third: int, rules: Float64s) -> bool:
    """Tell whether both sides of a split of a node can be heavy enough.

    Args:
        place: 1 for the root; 2p and 2p + 1 for the children of p.
        depth: most splits above a leaf.
    """
    heavy = total[0] > 1 and total[0] * rules[H_UNIT] >= 2 * rules[MIN_HESSIAN]
    return bool(place < np.int64(1) << depth and heavy and total[2] >= 2 * min_third)


@inline
def weight_by(h: int, g: int, bound: Float64s, rules: Float64s) -> float:
    """Compute the weight that is best for a node, by its sums as whole numbers."""
    return weight_of(g * rules[G_UNIT], h * rules[H_UNIT], rules[REG_LAMBDA], rules[REG_ALPHA], bound[0], bound[1])


@inline
def _score(h: int, g: int, bound: Float64s, rules: Float64s) -> float:
    w = weight_by(h, g, bound, rules)
    return score_of(g * rules[G_UNIT], h * rules[H_UNIT], w, rules[REG_LAMBDA], rules[REG_ALPHA])


@kernel
def gains_enough(gain: float, total: Int64s, left: Int64s, bound: Float64s, rules: Float64s, limits: Float64s) -> bool:
    """Return whether a split gains enough; where none was found, the gain is negative.

    Args:
        total, left: sums of the node, and of its left side.
    """
    if not gain > limits[MIN_GAIN]:
        return False
    h, unit = total[0] * rules[H_UNIT], limits[WEIGHT_UNIT]
    weight = total[2] * unit if unit > 0.0 else h
    if limits[MIN_INFO_GAIN] > 0 and gain < limits[MIN_INFO_GAIN] * weight * (1 - ROUNDING):
        return False
    g_unit, h_unit = rules[G_UNIT], weight_by(total[0], total[1], bound, rules) * rules[H_UNIT]
    scores = abs(_score(total[0], total[1], bound, rules)) + abs(_score(left[0], left[1], bound, rules))
    scores += abs(_score(total[0] - left[0], total[1] - left[1], bound, rules))
    chance = CHANCE * (g_unit * g_unit + h_unit * h_unit) * limits[ROWS_BY_HESSIAN]
    return gain > max(chance, ROUNDING * scores)
