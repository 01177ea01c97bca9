"""Gradient-based one-side sampling: Ke et al., "LightGBM" (2017), algorithm 2. Pure.

A round keeps the ``topRate`` of the rows with the largest gradients, and samples ``otherRate`` of all rows from the
rest, whose hessians and gradients are multiplied by (1 - topRate) / otherRate. Workers count their rows by cells of
magnitude, whose sums give the cell in which the top rows end. Of the rows in that cell, a hash of the row selects the
top ones, so the sample does not depend on the number of workers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ps2.algorithms.trees.rows import ROWS_AT_ONCE, sample_rows
from ps2.array_types import Float64s, Int64s

# A cell has the magnitudes that share the sign, the exponent and the first 3 bits of the mantissa.
BITS_BELOW_CELL = np.uint64(49)
CELLS = 1 << 14
Cells = npt.NDArray[np.int16]


class TopRows(NamedTuple):
    """The rows of the largest gradients: all rows above a cell, and a fraction of the rows in the cell."""

    cell: int
    fraction: float


def magnitude_cells(pairs: Float64s) -> tuple[Cells, Int64s]:
    """Return the cell of each row's gradient times hessian, summed over outputs, and the number of rows of each cell.

    ``pairs`` has the shape (width, n, 2). Temporary arrays have some of the rows.
    """
    cells, counts = np.empty(pairs.shape[1], np.int16), np.zeros(CELLS, np.int64)
    for begin in range(0, len(cells), ROWS_AT_ONCE):
        part = slice(begin, begin + ROWS_AT_ONCE)
        magnitudes = np.zeros(len(cells[part]))
        for output in pairs[:, part]:  # one after the other, so that even the last bit is the same everywhere
            magnitudes += np.abs(output[:, 0] * output[:, 1])
        cells[part] = magnitudes.view(np.uint64) >> BITS_BELOW_CELL
        counts += np.bincount(cells[part], minlength=CELLS)
    return cells, counts


def top_rows(counts: Int64s, top_rate: float) -> TopRows:
    """Return the top rows; counts: the number of all workers' rows by cell, shape (CELLS,)."""
    num_top = max(int(counts.sum() * top_rate), 1)
    at_least = np.cumsum(counts[::-1])[::-1]  # the number of rows in each cell and above
    cell = int(np.flatnonzero(at_least >= num_top)[-1])
    return TopRows(cell, float((num_top - (at_least[cell] - counts[cell])) / counts[cell]))


def sample_by_gradient(
    cells: Cells, ids: Int64s, top: TopRows, other_fraction: float, keys: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Return for each row whether it is a top row, and whether it is sampled from the others, by two keys."""
    is_top = (cells > top.cell) | ((cells == top.cell) & sample_rows(ids, keys[0], top.fraction))
    return is_top, ~is_top & sample_rows(ids, keys[1], other_fraction)
