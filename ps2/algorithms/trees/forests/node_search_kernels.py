"""The compiled loop over the features that are in the marked histograms of some nodes of a random forest."""

from __future__ import annotations

import numpy as np

from ps2.algorithms.trees.forests.impurity_kernels import ForestRules, search_feature
from ps2.algorithms.trees.nonempty_bins import marks_of, next_marked
from ps2.algorithms.trees.search_kernels import Splits, feature_at, scratch_of
from ps2.ops.kernels import Int64s, kernel
from ps2.ops.table import Array


@kernel
def search_forest(
    nodes: Int64s, m: Array, rows: Int64s, layout_row: int, totals: Int64s, rules: ForestRules, best: Splits
) -> None:
    """Search some nodes."""
    channels = totals.shape[1]
    layout, scratch, sides = m[layout_row], scratch_of(channels), np.empty((3, channels), np.int64)
    columns = m.shape[1] // channels
    for node in nodes:
        marks, histogram = marks_of(m, channels, rows[node]), m[rows[node]]
        column = next_marked(marks, 0, columns)
        while column < columns:
            feature = feature_at(layout, column, channels)
            search_feature(histogram, feature, node, totals[node], rules, scratch, sides, best)
            column = next_marked(marks, feature.column + feature.size, columns)
