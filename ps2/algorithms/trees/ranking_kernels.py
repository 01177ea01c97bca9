"""Compiled loops over groups of rows: the gradients of LambdaMART, NDCG and MAP.

C. Burges, "From RankNet to LambdaRank to LambdaMART", 2010, section 7, with the truncation and the normalisation of
LightGBM's "lambdarank" and xgboost's "rank:ndcg". Rows of equal margins rank in the order of ``RowGroups``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.array_types import Float64s, Int64s
from ps2.ops.kernels import inline, kernel

Array = npt.NDArray[Any]

# The gain of a label is 2^label - 1.
LABELS = 32
# The least hessian of a row with a gradient, and what is added to differences of margins.
LEAST, NEAR = 1e-16, 0.01


@inline
def ranked(margins: Float64s, rows: Int64s) -> Int64s:
    """Return the rows of a group by falling margin."""
    found = np.empty(len(rows))
    for i in range(len(rows)):
        found[i] = -margins[rows[i]]
    return rows[np.argsort(found, kind="mergesort")]


@inline
def most_dcg(y: Float64s, rows: Int64s, at: int) -> float:
    """Return the DCG of the best order, of the first ``at`` rows."""
    counts = np.zeros(LABELS, np.int64)
    for row in rows:
        # Labels were checked before; whatever comes later must not write elsewhere.
        counts[min(max(np.int64(y[row]), np.int64(0)), np.int64(LABELS - 1))] += 1
    found, rank = 0.0, 0
    for label in range(LABELS - 1, 0, -1):
        for _ in range(counts[label]):
            if rank < at:
                found += (2.0**label - 1.0) / np.log2(rank + 2.0)
            rank += 1
    return found


@kernel
def lambdas(
    begins: Int64s,
    ends: Int64s,
    order: Int64s,
    margins: Float64s,
    y: Float64s,
    weights: Float64s,
    truncation: int,
    out: Float64s,
) -> tuple[float, float]:
    """Set ``out``, shape (n, 2), to hessians and gradients of the rows of some groups.

    Args:
        truncation: pairs are made of each of the first so many rows and all below it.

    Returns:
        The sum of 1 - NDCG of the first ``truncation`` rows, and the number of groups.
    """
    lost = 0.0
    for group in range(len(begins)):
        rows = ranked(margins, order[begins[group] : ends[group]])
        count, best = len(rows), most_dcg(y, rows, truncation)
        for row in rows:
            out[row, 0] = out[row, 1] = 0.0
        if best <= 0.0:
            continue
        lost += 1.0 - _dcg(y, rows, truncation) / best
        total, is_even = 0.0, margins[rows[0]] == margins[rows[count - 1]]
        for i in range(min(truncation, count - 1)):
            for j in range(i + 1, count):
                if y[rows[i]] == y[rows[j]]:
                    continue
                upper, lower = (rows[i], rows[j]) if y[rows[i]] > y[rows[j]] else (rows[j], rows[i])
                apart = margins[upper] - margins[lower]
                change = (2.0 ** y[upper] - 2.0 ** y[lower]) * (1.0 / np.log2(i + 2.0) - 1.0 / np.log2(j + 2.0)) / best
                if not is_even:
                    change /= NEAR + abs(apart)
                odds = np.exp(-abs(apart))
                smaller, larger = odds / (1.0 + odds), 1.0 / (1.0 + odds)
                g, h = change * (smaller if apart > 0.0 else larger), change * smaller * larger
                out[upper, 1] -= g
                out[lower, 1] += g
                out[upper, 0] += max(h, LEAST)
                out[lower, 0] += max(h, LEAST)
                total += 2.0 * g
        factor = np.log2(1.0 + total) / total if total > 0.0 else 1.0
        for row in rows:
            weight = factor * (weights[row] if len(weights) else 1.0)
            out[row, 0] *= weight
            out[row, 1] *= weight
    return lost, float(len(begins))


@inline
def _dcg(y: Float64s, rows: Int64s, at: int) -> float:
    found = 0.0
    for rank in range(min(at, len(rows))):
        found += (2.0 ** y[rows[rank]] - 1.0) / np.log2(rank + 2.0)
    return found


@kernel
def ndcgs(begins: Int64s, ends: Int64s, order: Int64s, margins: Float64s, y: Float64s, at: int) -> float:
    """Return the sum of the NDCG of the first ``at`` rows of groups; 1 of a group without a relevant row."""
    total = 0.0
    for group in range(len(begins)):
        rows = order[begins[group] : ends[group]]
        best = most_dcg(y, rows, at)
        total += _dcg(y, ranked(margins, rows), at) / best if best > 0.0 else 1.0
    return total


@kernel
def average_precisions(begins: Int64s, ends: Int64s, order: Int64s, margins: Float64s, y: Float64s, at: int) -> float:
    """Return the sum of groups' average precision among the first ``at`` rows; 1 without a relevant row."""
    total = 0.0
    for group in range(len(begins)):
        rows = ranked(margins, order[begins[group] : ends[group]])
        relevant, found = 0, 0.0
        for rank in range(len(rows)):
            if y[rows[rank]] > 0.0:
                relevant += 1
                if rank < at:
                    found += relevant / (rank + 1.0)
        total += found / min(relevant, at) if relevant else 1.0
    return total
