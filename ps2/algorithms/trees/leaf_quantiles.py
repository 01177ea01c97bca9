"""Leaf values for losses "absolute" and "quantile": a quantile of the leaf's residuals, as in LightGBM and xgboost.

When a tree has grown, workers add up the integer weights of each leaf's residuals by cells of their ordered bits: first
by the upper 16 bits, the coarse cells; then, within the coarse cell of the quantile, by the next 16, the fine cells.
Leaf values do not depend on the order of the rows, and have a relative error of at most 2^-20.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ps2.algorithms.trees.cut_points import ZERO, from_bits, integer_weights, ordered_bits, unit_of
from ps2.algorithms.trees.layout import UInt64s
from ps2.array_types import Float64s, Int32s, Int64s
from ps2.client.batch import batch
from ps2.client.dcv import DCV
from ps2.client.handle import free_all

CELL_BITS = 16
CELLS = 1 << CELL_BITS
# The number of bits of a residual below those of the coarse cell, and below those of the fine cell.
BELOW_COARSE, BELOW_FINE = 64 - CELL_BITS, 64 - 2 * CELL_BITS
# The number of bits of the mean weight as an integer: sums of 2^31 weights are exact in float64, too.
WEIGHT_BITS = 20
# The number of cells whose scan costs as much as sorting one row.
CELLS_PER_ROW = 4


class LeafRows(NamedTuple):
    """Some rows of a worker: the row numbers of each leaf, and the residuals and weights (empty: 1) of these rows."""

    leaves: Sequence[Int32s]
    residuals: Float64s
    weights: Float64s


@dataclass(frozen=True, eq=False)
class CoarseQuantiles:
    """The coarse cell of each leaf's quantile, and the weight in it up to the quantile; 0 for a leaf without rows."""

    cells: Int64s
    weights: Float64s


@dataclass(frozen=True, eq=False)
class LeafQuantiles:
    """Weights on the servers by leaf and cell; level: of the quantile; weight_unit 0: each row counts 1; picklable."""

    level: float
    weight_unit: float
    coarse: DCV
    fine: DCV

    @staticmethod
    def make(level: float, mean_weight: float | None) -> LeafQuantiles:
        """Make vectors of zeros; mean_weight: the rows' mean weight; None: all weights are 1."""
        return LeafQuantiles(level, unit_of_weights(mean_weight), *(DCV.sparse(2**63, 1, "int64") for _ in range(2)))

    def free(self) -> None:
        free_all([self.coarse, self.fine])

    def add(self, rows: Iterable[LeafRows], cells: Int64s | None) -> None:
        """Add a worker's rows to the fine cells in each leaf's coarse cell ``cells``; None: to coarse cells."""
        keys, sums = sum_parts(rows, self.weight_unit, cells)
        if len(keys):
            (self.coarse if cells is None else self.fine).add(sums, keys)

    def find_coarse(self, leaves: int) -> CoarseQuantiles:
        """Find the coarse cell of each leaf's quantile, and zero the sums."""
        keys, weights = _pull_and_zero(self.coarse)
        return CoarseQuantiles(*find_cells(keys, weights, self.level * _totals(keys, weights, leaves)))

    def find_fine(self, coarse: CoarseQuantiles) -> Float64s:
        """Return each leaf's quantile, 0 if it has no rows, and zero the sums."""
        cells, _ = find_cells(*_pull_and_zero(self.fine), coarse.weights)
        return np.where(coarse.weights > 0, cell_values(coarse.cells, cells), 0.0)


def local_quantiles(level: float, weight_unit: float, leaves: int, rows: Callable[[], Iterable[LeafRows]]) -> Float64s:
    """Return each leaf's quantile, 0 if it has no rows; leaves: their number; rows: those of this process."""
    keys, sums = sum_parts(rows(), weight_unit, None)
    cells, targets = find_cells(keys, sums, level * _totals(keys, sums, leaves))
    fine, _ = find_cells(*sum_parts(rows(), weight_unit, cells), targets)
    return np.where(targets > 0, cell_values(cells, fine), 0.0)


def sum_parts(parts: Iterable[LeafRows], weight_unit: float, cells: Int64s | None) -> tuple[Int64s, Int64s]:
    """Return the sums of ``sum_by_cell`` over parts of the rows."""
    all_keys, all_sums = list[Int64s](), list[Int64s]()
    for leaves, residuals, weights in parts:
        units = integer_weights(weights, weight_unit) if weight_unit and len(weights) else None
        keys, sums = sum_by_cell(leaves, ordered_bits(residuals), units, cells)
        all_keys.append(keys)
        all_sums.append(sums)
    if len(all_keys) == 1:
        return all_keys[0], all_sums[0]
    keys, index = np.unique(np.concatenate(all_keys), return_inverse=True)
    # The sums of these floats are exact.
    return keys, np.bincount(index, np.concatenate(all_sums), len(keys)).astype(np.int64)


def unit_of_weights(mean_weight: float | None) -> float:
    """Return the unit of integer weights; mean_weight None: all weights are 1, which gives 0."""
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
    """Return keys of leaf and cell, ascending, and their weights; cells: see ``LeafQuantiles.add``."""
    rows, leaf = np.concatenate(leaves), np.repeat(np.arange(len(leaves)), [len(leaf_rows) for leaf_rows in leaves])
    if cells is not None:
        is_inside = (bits[rows] >> np.uint64(BELOW_COARSE)).astype(np.int64) == cells[leaf]
        rows, leaf = rows[is_inside], leaf[is_inside]
    cell = bits[rows] >> np.uint64(BELOW_COARSE if cells is None else BELOW_FINE)
    keys = leaf << CELL_BITS | (cell.astype(np.int64) & (CELLS - 1))
    counts = None if weights is None else weights[rows]
    if len(leaves) << CELL_BITS > CELLS_PER_ROW * len(rows):
        distinct, key_index = np.unique(keys, return_inverse=True)
        return distinct, np.bincount(key_index, counts, len(distinct)).astype(np.int64)
    sums = np.bincount(keys, counts, len(leaves) << CELL_BITS).astype(np.int64)
    return np.flatnonzero(sums), sums[sums > 0]


def _totals(keys: Int64s, weights: Int64s, leaves: int) -> Float64s:
    # Keys of an earlier tree, which had more leaves, have weight 0.
    return np.bincount(keys >> CELL_BITS, weights, leaves)[:leaves].astype(np.float64)


def find_cells(keys: Int64s, weights: Int64s, targets: Float64s) -> tuple[Int64s, Float64s]:
    """Return each leaf's cell in which the cumulative weight reaches its target, and the target minus earlier cells."""
    ends = np.cumsum(weights)
    leaf_begins = np.append(0, ends)[np.searchsorted(keys, np.arange(len(targets)) << CELL_BITS)]
    filled = np.flatnonzero(targets > 0)
    index = np.searchsorted(ends, leaf_begins[filled] + targets[filled])
    cells, cell_targets = np.zeros(len(targets), np.int64), np.zeros(len(targets))
    cells[filled] = keys[index] & (CELLS - 1)
    cell_targets[filled] = targets[filled] - (ends[index] - weights[index] - leaf_begins[filled])
    return cells, cell_targets


def cell_values(coarse: Int64s, fine: Int64s) -> Float64s:
    """Return the value nearest to 0 in each fine cell, so that integers and short binary fractions are exact."""
    cells = (coarse << CELL_BITS | fine).astype(np.uint64)
    bits = cells << np.uint64(BELOW_FINE)
    return from_bits(np.where(bits < ZERO, bits | np.uint64((1 << BELOW_FINE) - 1), bits))
