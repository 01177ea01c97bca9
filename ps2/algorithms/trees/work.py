"""The work of growing trees, in measured seconds (decision 55). Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ps2.algorithms.frame.placement import Work
from ps2.algorithms.trees.problem import BoostingPlan
from ps2.algorithms.trees.rows import DENSE_FROM

# Seconds of one core: to read and bin a stored value; to add one to a histogram; for a row's gradient, its rounding and
# its way to a leaf; to look at a bin of a node.
READ_S, ADD_S, ROW_S, BIN_S = 100e-9, 0.75e-9, 40e-9, 5e-9
# Of sparse rows, whose bins lie far apart: to add a value, and to send what it adds to.
ADD_SPARSE_S, SEND_SPARSE_S = 40e-9, 16e-9
# Seconds of a clock with servers, whatever it does.
CLOCK_S = 10e-3
# The speed of each further thread of one worker.
THREAD_SHARE = 0.8
# The largest number of stored values of one worker: with bins and gradients, about 1 GB.
MAX_VALUES = 50_000_000
# Levels and clocks of a tree that grows by leaf, for each doubling of its leaves.
LEVELS_BY_LEAF, CLOCKS_BY_LEAF = 1.0, 3.0


@dataclass(frozen=True)
class TableSize:
    """The size of a table.

    Attributes:
        rows: the number of rows.
        values: the number of stored feature values.
        features: the number of features.
    """

    rows: int
    values: float
    features: int


def work_of(table: TableSize, plan: BoostingPlan, trees: int, node_s: float = 0.0) -> Work:
    """Count the work of a training of at most some trees; node_s: seconds of servers for a node, besides its bins."""
    leaves = min(plan.max_leaves, max(table.rows // max(plan.settings.minInstancesPerNode, 1), 1))
    if plan.settings.growth == "level":
        levels = clocks = float(max(plan.settings.maxDepth, 1))
    else:
        doublings = math.log2(max(leaves, 2))
        levels, clocks = LEVELS_BY_LEAF * doublings, CLOCKS_BY_LEAF * doublings
    # A histogram has the bins that rows fill.
    bins = min(table.features * min(plan.settings.maxBins, table.rows), table.values)
    # Of two children, the histogram of the one with fewer rows is added up.
    added, scanned, add_s, send_s = table.values * (1 + levels / 2), leaves * bins, ADD_S, 0.0
    if table.values < DENSE_FROM * table.rows * table.features:
        # Only bins that are filled are looked at.
        scanned, add_s, send_s = min(scanned, table.values * levels), ADD_SPARSE_S, SEND_SPARSE_S
    why_not_auto = ""
    if table.values > MAX_VALUES:
        why_not_auto = f"{table.values:,.0f} stored values are more than the {MAX_VALUES:,} of one worker"
    return Work(
        read_s=table.values * READ_S,
        steps=trees,
        step_s=added * add_s + table.rows * ROW_S + scanned * BIN_S,
        local_s=0.0,
        servers_s=added * send_s + leaves * node_s + clocks * CLOCK_S,
        local_threads=math.inf,
        worker_threads=math.inf,
        thread_share=THREAD_SHARE,
        why_not_auto=why_not_auto,
    )
