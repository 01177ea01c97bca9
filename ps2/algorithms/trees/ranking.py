"""Losses, gradients and metrics of rows in groups."""

from __future__ import annotations

from ps2.algorithms.trees import ranking_kernels as kernels
from ps2.algorithms.trees.row_groups import RowGroups
from ps2.array_types import Float64s
from ps2.ops.guards import readable
from ps2.ops.parallel import over_blocks

# Cost of a pair of rows, and of a row that is sorted, in additions.
PAIR_COST, SORT_COST = 60, 100
# No sum of a group's absolute gradients, nor of its hessians, is above the logarithm of all its pairs' changes.
MAX_OF_GROUP = 64.0
# For metrics of all rows.
ALL = 2**31


def lambda_gradients(
    margins: Float64s, y: Float64s, weights: Float64s, groups: RowGroups, truncation: int, out: Float64s
) -> tuple[float, float]:
    """Set ``out``, shape (n, 2), to hessians and gradients; return ``lost_ndcg``."""
    mean = len(y) // max(len(groups), 1) + 1
    held = (groups.order, readable(margins), readable(y), readable(weights), truncation, out)
    cost = PAIR_COST * mean * min(truncation, mean) + SORT_COST * mean
    found = over_blocks(kernels.lambdas, (groups.begins[:-1], groups.begins[1:]), *held, cost=cost)
    return sum(lost for lost, _ in found), sum(count for _, count in found)


def lost_ndcg(margins: Float64s, y: Float64s, groups: RowGroups, at: int) -> tuple[float, float]:
    """Return the sum of 1 - NDCG of groups, and the number of groups."""
    return len(groups) - sum_of_ndcg(margins, y, groups, at), float(len(groups))


def sum_of_ndcg(margins: Float64s, y: Float64s, groups: RowGroups, at: int = ALL) -> float:
    """Return the sum of the NDCG of the first ``at`` rows of groups."""
    held = groups.begins[:-1], groups.begins[1:], groups.order, readable(margins), readable(y)
    return float(kernels.ndcgs(*held, at))


def sum_of_precisions(margins: Float64s, y: Float64s, groups: RowGroups, at: int = ALL) -> float:
    """Return the sum of the average precision among the first ``at`` rows of groups."""
    held = groups.begins[:-1], groups.begins[1:], groups.order, readable(margins), readable(y)
    return float(kernels.average_precisions(*held, at))
