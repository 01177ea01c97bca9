"""Rows in groups, such as the results of a query: gradients of LambdaMART, and the metrics NDCG and MAP.

C. Burges, "From RankNet to LambdaRank to LambdaMART", 2010, section 7, with the truncation and the normalisation of
LightGBM's "lambdarank" and xgboost's "rank:ndcg". Rows with equal margins rank in the order of ``RowGroups``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ps2.array_types import Float64s, Int64s
from ps2.ops.guards import readable
from ps2.ops.kernels import inline, kernel
from ps2.ops.parallel import over_blocks

# The costs of a pair of rows, and of sorting a row, in additions of array elements.
PAIR_COST, SORT_COST = 60, 100
# An upper bound of the sums of a group's absolute gradients and of its hessians: the normalisation makes both at most
# log2(1 + the sum of the changes of all pairs).
MAX_GROUP_SUM = 64.0
# The number of top rows for metrics that use all rows of a group.
ALL_ROWS = 2**31

# The number of labels. The gain of a label is 2^label - 1.
LABELS = 32
# The smallest hessian of a pair. A pair's change of NDCG is divided by MARGIN_TERM plus the difference of its margins.
MIN_HESSIAN, MARGIN_TERM = 1e-16, 0.01


@dataclass(frozen=True, eq=False)
class RowGroups:
    """Rows by group.

    Attributes:
        order: the numbers of the rows, int64, shape (n,), contiguous for each group.
        offsets: the index in ``order`` of each group's first row, and the end, int64, shape (groups + 1,).
    """

    order: Int64s
    offsets: Int64s

    @staticmethod
    def of(groups: Int64s, ids: Int64s, weights: Float64s) -> RowGroups:
        """Order rows by group and, within it, by ``row_ids`` and weight, which do not depend on the rows' order."""
        keys = (weights, ids, groups) if len(weights) else (ids, groups)
        order = np.lexsort(keys).astype(np.int64)
        ordered = groups[order]
        starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if len(order) else np.empty(0, np.int64)
        return RowGroups(readable(order), readable(np.append(starts, len(order)).astype(np.int64)))

    @staticmethod
    def in_row_order(groups: Int64s) -> RowGroups:
        """Order rows by group, and keep their order within it: metrics rank equal margins in this order."""
        return RowGroups.of(groups, np.arange(len(groups)), np.empty(0))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def intervals(self) -> tuple[Int64s, Int64s]:
        """The first index of each group in ``order``, and the index after its last row."""
        return self.offsets[:-1], self.offsets[1:]


class RankedRows(NamedTuple):
    """Rows whose groups are ranked; order: see ``RowGroups``."""

    order: Int64s
    margins: Float64s
    y: Float64s


def lambda_gradients(
    margins: Float64s, y: Float64s, weights: Float64s, groups: RowGroups, truncation: int, out: Float64s
) -> tuple[float, float]:
    """Set ``out``, shape (n, 2), to hessians and gradients; return ``ndcg_losses``."""
    mean_rows = len(y) // max(len(groups), 1) + 1
    rows = RankedRows(groups.order, readable(margins), readable(y))
    cost = PAIR_COST * mean_rows * min(truncation, mean_rows) + SORT_COST * mean_rows
    sums = over_blocks(lambdas, groups.intervals, rows, readable(weights), truncation, out, cost=cost)
    return sum(loss for loss, _ in sums), sum(count for _, count in sums)


def ndcg_losses(margins: Float64s, y: Float64s, groups: RowGroups, depth: int) -> tuple[float, float]:
    """Return the sum of 1 - NDCG over groups, and the number of groups."""
    return len(groups) - sum_of_ndcg(margins, y, groups, depth), float(len(groups))


def sum_of_ndcg(margins: Float64s, y: Float64s, groups: RowGroups, depth: int = ALL_ROWS) -> float:
    return float(ndcgs(*groups.intervals, RankedRows(groups.order, readable(margins), readable(y)), depth))


def sum_of_precisions(margins: Float64s, y: Float64s, groups: RowGroups, depth: int = ALL_ROWS) -> float:
    """Return the sum over groups of the average precision of their first ``depth`` rows."""
    return float(average_precisions(*groups.intervals, RankedRows(groups.order, readable(margins), readable(y)), depth))


@inline
def rank_rows(margins: Float64s, rows: Int64s) -> Int64s:
    """Return the rows of a group by decreasing margin."""
    negated_margins = np.empty(len(rows))
    for i in range(len(rows)):
        negated_margins[i] = -margins[rows[i]]
    return rows[np.argsort(negated_margins, kind="mergesort")]


@inline
def max_dcg(y: Float64s, rows: Int64s, depth: int) -> float:
    """Return the DCG of the first ``depth`` rows in the best order."""
    counts = np.zeros(LABELS, np.int64)
    for row in rows:
        # Labels were checked by an earlier Spark job. A label that has changed since must not write outside the array.
        counts[min(max(np.int64(y[row]), np.int64(0)), np.int64(LABELS - 1))] += 1
    dcg, rank = 0.0, 0
    for label in range(LABELS - 1, 0, -1):
        for _ in range(counts[label]):
            if rank < depth:
                dcg += (2.0**label - 1.0) / np.log2(rank + 2.0)
            rank += 1
    return dcg


@kernel
def lambdas(
    begins: Int64s, ends: Int64s, ranked_rows: RankedRows, weights: Float64s, truncation: int, out: Float64s
) -> tuple[float, float]:
    """Do ``lambda_gradients``; each of the first ``truncation`` rows of a group is paired with all rows below it."""
    total_loss, margins, y = 0.0, ranked_rows.margins, ranked_rows.y
    for group in range(len(begins)):
        rows = rank_rows(margins, ranked_rows.order[begins[group] : ends[group]])
        count, ideal_dcg = len(rows), max_dcg(y, rows, truncation)
        for row in rows:
            out[row, 0] = out[row, 1] = 0.0
        if ideal_dcg <= 0.0:
            continue
        total_loss += 1.0 - _dcg(y, rows, truncation) / ideal_dcg
        total_change, all_equal = 0.0, margins[rows[0]] == margins[rows[count - 1]]
        for i in range(min(truncation, count - 1)):
            for j in range(i + 1, count):
                if y[rows[i]] == y[rows[j]]:
                    continue
                upper, lower = (rows[i], rows[j]) if y[rows[i]] > y[rows[j]] else (rows[j], rows[i])
                difference = margins[upper] - margins[lower]
                discount = 1.0 / np.log2(i + 2.0) - 1.0 / np.log2(j + 2.0)
                ndcg_change = (2.0 ** y[upper] - 2.0 ** y[lower]) * discount / ideal_dcg
                if not all_equal:
                    ndcg_change /= MARGIN_TERM + abs(difference)
                odds = np.exp(-abs(difference))
                smaller, larger = odds / (1.0 + odds), 1.0 / (1.0 + odds)
                g, h = ndcg_change * (smaller if difference > 0.0 else larger), ndcg_change * smaller * larger
                out[upper, 1] -= g
                out[lower, 1] += g
                out[upper, 0] += max(h, MIN_HESSIAN)
                out[lower, 0] += max(h, MIN_HESSIAN)
                total_change += 2.0 * g
        factor = np.log2(1.0 + total_change) / total_change if total_change > 0.0 else 1.0
        for row in rows:
            weight = factor * (weights[row] if len(weights) else 1.0)
            out[row, 0] *= weight
            out[row, 1] *= weight
    return total_loss, float(len(begins))


@inline
def _dcg(y: Float64s, rows: Int64s, depth: int) -> float:
    dcg = 0.0
    for rank in range(min(depth, len(rows))):
        dcg += (2.0 ** y[rows[rank]] - 1.0) / np.log2(rank + 2.0)
    return dcg


@kernel
def ndcgs(begins: Int64s, ends: Int64s, ranked_rows: RankedRows, depth: int) -> float:
    """Return the sum over groups of the NDCG of their first ``depth`` rows; a group without a relevant row has 1."""
    total, y = 0.0, ranked_rows.y
    for group in range(len(begins)):
        rows = ranked_rows.order[begins[group] : ends[group]]
        ideal_dcg = max_dcg(y, rows, depth)
        total += _dcg(y, rank_rows(ranked_rows.margins, rows), depth) / ideal_dcg if ideal_dcg > 0.0 else 1.0
    return total


@kernel
def average_precisions(begins: Int64s, ends: Int64s, ranked_rows: RankedRows, depth: int) -> float:
    """Return the sum of groups' average precision at ``depth`` rows; a group without a relevant row has 1."""
    total, y = 0.0, ranked_rows.y
    for group in range(len(begins)):
        rows = rank_rows(ranked_rows.margins, ranked_rows.order[begins[group] : ends[group]])
        relevant, precisions = 0, 0.0
        for rank in range(len(rows)):
            if y[rows[rank]] > 0.0:
                relevant += 1
                if rank < depth:
                    precisions += relevant / (rank + 1.0)
        total += precisions / min(relevant, depth) if relevant else 1.0
    return total
