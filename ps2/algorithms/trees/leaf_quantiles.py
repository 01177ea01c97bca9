"""Leaf values of losses that a quantile minimises: the quantile of the leaf's residuals, as in LightGBM and xgboost.

When a tree is grown, workers add up the weights of each leaf's residuals, as whole numbers: first by the first 16 of
their ordered bits, then, in the cell of the quantile, by the next 16. So leaf values do not depend on the order of
the rows, and have a relative error of at most 2^-20.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ps2.algorithms.trees.cut_points import unit_of, whole
from ps2.algorithms.trees.feature_columns import ZERO, from_bits, ordered_bits
from ps2.algorithms.trees.layout import UInt64s
from ps2.array_types import Float64s, Int32s, Int64s
from ps2.client.batch import batch
from ps2.client.dcv import DCV
from ps2.client.handle import free_all

CELL_BITS = 16
CELLS = 1 << CELL_BITS
# Bits of a residual below the coarse cell, and below the fine one.
BELOW_COARSE, BELOW_FINE = 64 - CELL_BITS, 64 - 2 * CELL_BITS
# Bits of the mean weight as a whole number: sums of 2^31 of them are exact in float64, too.
WEIGHT_BITS = 20
# Scanning this number of cells costs as much as sorting one row.
CELLS_PER_ROW = 4


@dataclass(frozen=True, eq=False)
class CoarseQuantiles:
    """Each leaf's coarse cell with the quantile, 0 without rows, and the cell's weight up to the quantile."""

    cells: Int64s
    weights: Float64s


@dataclass(frozen=True, eq=False)
class LeafQuantiles:
    """Sums by leaf and cell that workers add to; weight_unit 0: each row counts 1; picklable."""

    share: float
    weight_unit: float
    coarse: DCV
    fine: DCV

    @staticmethod
    def make(share: float, mean_weight: float | None) -> LeafQuantiles:
        """Make empty sums; mean_weight: the rows' mean weight; None: all weights are 1."""
        return LeafQuantiles(share, unit_of_weights(mean_weight), *(DCV.sparse(2**63, 1, "int64") for _ in range(2)))

    def free(self) -> None:
        free_all([self.coarse, self.fine])

    # -- workers ---------------------------------------------------------------------------------------------------

    def add(self, leaves: Sequence[Int32s], residuals: Float64s, weights: Float64s, cells: Int64s | None) -> None:
        """Add a worker's rows to the fine cells of each leaf's coarse cell; cells None: to the coarse cells."""
        units = whole(weights, self.weight_unit) if self.weight_unit and len(weights) else None
        keys, sums = sum_by_cell(leaves, ordered_bits(residuals), units, cells)
        if len(keys):
            (self.coarse if cells is None else self.fine).add(sums, keys)

    # -- the driver ------------------------------------------------------------------------------------------------

    def find_coarse(self, leaves: int) -> CoarseQuantiles:
        """Return the coarse cell of each leaf's quantile, and zero the sums."""
        keys, weights = _pull_and_zero(self.coarse)
        return CoarseQuantiles(*find_cells(keys, weights, self.share * _totals(keys, weights, leaves)))

    def find_fine(self, coarse: CoarseQuantiles) -> Float64s:
        """Return each leaf's quantile, 0 without rows, and zero the sums."""
        cells, _ = find_cells(*_pull_and_zero(self.fine), coarse.weights)
        return np.where(coarse.weights > 0, cell_values(coarse.cells, cells), 0.0)


def local_quantiles(
    share: float, weight_unit: float, leaves: Sequence[Int32s], residuals: Float64s, weights: Float64s
) -> Float64s:
    """Return each leaf's quantile, 0 without rows, where one worker has all rows."""
    units = whole(weights, weight_unit) if weight_unit and len(weights) else None
    bits = ordered_bits(residuals)
    keys, sums = sum_by_cell(leaves, bits, units, None)
    cells, left = find_cells(keys, sums, share * _totals(keys, sums, len(leaves)))
    fine, _ = find_cells(*sum_by_cell(leaves, bits, units, cells), left)
    return np.where(left > 0, cell_values(cells, fine), 0.0)


def unit_of_weights(mean_weight: float | None) -> float:
    """Return the unit of weights as whole numbers; mean_weight: the rows' mean weight; None: all weights are 1."""
    return 0.0 if mean_weight is None else unit_of(mean_weight, WEIGHT_BITS)


def _pull_and_zero(sums: DCV) -> tuple[Int64s, Int64s]:
    with batch():
        future = sums.pull()
        sums.zero()
    keys, weights = future.result()
    return keys, weights


def sum_by_cell(
    leaves: Sequence[Int32s], bits: UInt64s, weights: Int64s | None, cells: Int64s | None
) -> tuple[Int64s, Int64s]:
    """Return ascending keys of leaf and cell, and their weights; cells None: sum up all coarse cells."""
    rows, leaf = np.concatenate(leaves), np.repeat(np.arange(len(leaves)), [len(some) for some in leaves])
    if cells is not None:
        is_inside = (bits[rows] >> np.uint64(BELOW_COARSE)).astype(np.int64) == cells[leaf]
        rows, leaf = rows[is_inside], leaf[is_inside]
    cell = bits[rows] >> np.uint64(BELOW_COARSE if cells is None else BELOW_FINE)
    keys = leaf << CELL_BITS | (cell.astype(np.int64) & (CELLS - 1))
    counts = None if weights is None else weights[rows]
    if len(leaves) << CELL_BITS > CELLS_PER_ROW * len(rows):
        some, keys = np.unique(keys, return_inverse=True)
        return some, np.bincount(keys, counts, len(some)).astype(np.int64)
    sums = np.bincount(keys, counts, len(leaves) << CELL_BITS).astype(np.int64)
    return np.flatnonzero(sums), sums[sums > 0]


def _totals(keys: Int64s, weights: Int64s, leaves: int) -> Float64s:
    # Keys of earlier trees, which had more leaves, are still there, with weights of 0.
    return np.bincount(keys >> CELL_BITS, weights, leaves)[:leaves].astype(np.float64)


def find_cells(keys: Int64s, weights: Int64s, targets: Float64s) -> tuple[Int64s, Float64s]:
    """Return each leaf's cell in which the cumulative weight reaches a target, and the rest of the target in it."""
    ends = np.cumsum(weights)
    before = np.append(0, ends)[np.searchsorted(keys, np.arange(len(targets)) << CELL_BITS)]
    some = np.flatnonzero(targets > 0)
    index = np.searchsorted(ends, before[some] + targets[some])
    cells, left = np.zeros(len(targets), np.int64), np.zeros(len(targets))
    cells[some] = keys[index] & (CELLS - 1)
    left[some] = targets[some] - (ends[index] - weights[index] - before[some])
    return cells, left


def cell_values(coarse: Int64s, fine: Int64s) -> Float64s:
    """Return the number of each cell that is nearest to 0: whole numbers and short fractions are exact."""
    cells = (coarse << CELL_BITS | fine).astype(np.uint64)
    bits = cells << np.uint64(BELOW_FINE)
    return from_bits(np.where(bits < ZERO, bits | np.uint64((1 << BELOW_FINE) - 1), bits))
