"""The compiled loop over the features that are in the marked histograms of some nodes of a random forest."""

from __future__ import annotations

from ps2.algorithms.trees.forests.impurity_kernels import scratch_of, search_feature
from ps2.algorithms.trees.layout import PLACE_BITS, PLACES
from ps2.algorithms.trees.nonempty_bins import marks_of, next_marked
from ps2.ops.kernels import Float64s, Int64s, kernel
from ps2.ops.table import Array


@kernel
def search_forest(
    nodes: Int64s,
    m: Array,
    rows: Int64s,
    layout_row: int,
    totals: Int64s,
    kinds: Int64s,
    rules: Float64s,
    out: tuple[Float64s, Int64s, Int64s, Int64s],
) -> None:
    """Search some nodes; out: as of ``search_feature``."""
    channels = totals.shape[1]
    layout, scratch = m[layout_row], scratch_of(channels)
    columns = m.shape[1] // channels
    for node in nodes:
        words, histogram = marks_of(m, channels, rows[node]), m[rows[node]]
        column = next_marked(words, 0, columns)
        while column < columns:
            column -= max(int(layout[column * channels + 1]), 0)
            word = -int(layout[column * channels + 1])
            size = (word >> PLACE_BITS) & PLACES
            bins, flags = (column, size, (word & PLACES) - 1), word >> (2 * PLACE_BITS)
            feature = int(layout[column * channels])
            search_feature(histogram, feature, bins, flags, node, totals[node], kinds, rules, scratch, out)
            column = next_marked(words, column + size, columns)
