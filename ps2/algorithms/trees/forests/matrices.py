"""The matrices of a random forest on the servers: as many histograms at a time as fit."""

from __future__ import annotations

from collections.abc import Sequence

from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.forests.options import ForestOptions
from ps2.algorithms.trees.layout import SUM_BYTES
from ps2.algorithms.trees.nonempty_bins import rows_with_marks
from ps2.algorithms.trees.problem import TreeProblem
from ps2.algorithms.trees.tree_matrices import HistogramMatrices, columns_of
from ps2.errors import LimitError

# The largest number of histograms at a time, and the part of the servers' free memory that they may take.
MAX_ROWS, MEMORY_PART = 1024, 4


def forest_matrices(
    bins: Bins, problem: TreeProblem, options: ForestOptions, servers: Sequence[tuple[int, int]]
) -> HistogramMatrices:
    """Make the matrices of a random forest.

    Args:
        servers: of each the memory limit, and what is taken of it, in bytes.

    Raises:
        LimitError: they cannot fit.
    """
    size, free = columns_of(bins, options.channels) * SUM_BYTES, sum(max(limit - taken, 0) for limit, taken in servers)
    useful = options.trees_at_once << min(max(options.depth - 1, 0), 10)
    rows = max(min(useful, MAX_ROWS, free // MEMORY_PART // size), 1)
    try:
        return HistogramMatrices.make(bins, problem, options.channels, rows_with_marks(1 + rows))
    except LimitError as error:
        raise LimitError(
            f"{bins.features:,} features have {bins.columns.sum():,} bins that can part rows: a histogram takes "
            f"{size:,} bytes, and does not fit the servers: {error}; start more servers, or with a larger memory "
            "limit, or let features have fewer bins"
        ) from error
