"""Operations of trees: servers add up histograms, and search them for the best splits.

A histogram is a row of an integer matrix. A bin has ``channels`` adjacent int64s. For boosted trees they are the sums
of integer hessians and gradients, and optionally a third sum, such as the number of rows, of which splits require a
minimum on each side. Each training row has a hessian of at least 1, so a bin whose hessian is 0 is empty. All bins of a
feature are on one server. Row ``layout`` of the matrix has the feature of each bin, and its position in the feature
(see ``layout_of``). The implied bin of a feature, which has the entries that sparse rows do not store, is the node's
total minus the other bins; it is not stored. A mark is a bit of a bin; a bin without one is empty (``nonempty_bins``).
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ps2.algorithms.trees.forests.impurity_kernels import ForestRules, search_forest
from ps2.algorithms.trees.layout import MAX_CATEGORIES, WORD_BITS
from ps2.algorithms.trees.nonempty_bins import (
    GROUP_ROWS,
    add_marked,
    add_rows_marked,
    clear_marked,
    mark_rows,
    marked_rows,
    subtract_marked,
)
from ps2.algorithms.trees.nonempty_bins import check_rows as check_marks
from ps2.algorithms.trees.scan_kernels import CategoryRules, Rules
from ps2.algorithms.trees.search_kernels import OpenNodes, Splits, search
from ps2.errors import OutOfRangeError
from ps2.ops.guards import check_row_ids, check_slots, readable
from ps2.ops.kernels import Float64s, Int64s, kernel
from ps2.ops.operands import COLUMNS, along
from ps2.ops.parallel import over_blocks
from ps2.ops.table import Array, Block, Floats, Integers, Range, RowIds, Slots, Values, op

Channels = Annotated[int, Range(at_least=2, below=4)]
# Random forests, which have a channel for each class, have fewer channels than this.
MAX_CHANNELS = 1 << 12
ManyChannels = Annotated[int, Range(at_least=2, below=MAX_CHANNELS)]

# Threads search tiles of TILE_VALUES int64s of a histogram. One int64 costs as much as SEARCH_COST array additions.
TILE_VALUES, SEARCH_COST = 1 << 12, 16
MAX_TILES = 64


@op(writes=("m",), dtypes=("int64",))
def add(
    m: Block, slots: Slots, sums: Annotated[Values, along("slots", "channels")], *, row: int = 0, marks: bool = False
) -> None:
    """Add to the bins of histogram ``row`` that begin at columns ``slots``; marks: whether to mark these bins."""
    rows = check_row_ids(np.array([row]), m.shape[0])
    if marks:
        check_marks(m, max(sums.shape[1], 2), rows)
    slots = check_slots(slots, m.shape[1] - sums.shape[1] + 1)
    if len(slots) and slots.min() < 0:
        raise OutOfRangeError("slots: expected columns of the matrix")
    add_marked(m, marks, row, slots, readable(sums))


@op(writes=("m",), dtypes=("int64",), blocks="rows")
def add_rows(
    m: Block,
    rows: Annotated[RowIds, along("rows")],
    sums: Annotated[Values, along("rows", COLUMNS)],
    *,
    channels: Channels = 2,
) -> None:
    """Add to all bins of histograms ``rows``, which are distinct, and mark the bins that change."""
    rows = check_row_ids(rows, m.shape[0])
    check_marks(m, channels, rows)
    over_blocks(add_rows_marked, (rows, readable(sums)), m, channels, cost=2 * m.shape[1])


@op(writes=("m",), dtypes=("int64",))
def subtract(
    m: Block,
    rows: Annotated[RowIds, along("rows")],
    others: Annotated[RowIds, along("rows")],
    *,
    marks: bool = False,
    channels: Channels = 2,
) -> None:
    """Subtract histograms ``others`` from ``rows``, pair by pair: a parent minus a child is the other child."""
    rows, others = check_row_ids(rows, m.shape[0]), check_row_ids(others, m.shape[0])
    if marks:
        check_marks(m, channels, rows, others)
        over_blocks(subtract_marked, (rows, others), m, channels, cost=m.shape[1])
    else:
        over_blocks(_subtract, (rows, others), m, cost=m.shape[1])


@op(writes=("m",), dtypes=("int64",))
def clear(m: Block, rows: RowIds, *, channels: ManyChannels = 2) -> None:
    """Zero the marked bins of histograms, and their marks."""
    rows = check_row_ids(rows, m.shape[0])
    check_marks(m, channels, rows)
    over_blocks(clear_marked, (rows,), m, channels, cost=m.shape[1])


@op(writes=("m",), dtypes=("int64",))
def mark(m: Block, *, layout: int = 0, channels: ManyChannels = 2) -> None:
    """Set the marks of all rows but ``layout`` again: a new partitioning of the matrix moves marks."""
    rows = np.array([row for row in marked_rows(m.shape[0]) if row != layout], np.int64)
    check_marks(m, channels, rows)
    m[1::GROUP_ROWS] = 0  # these rows hold the marks of their groups, also for histograms that are added later
    over_blocks(mark_rows, (rows,), m, channels, cost=m.shape[1])


@op(reduce="best", dtypes=("int64",))
def best_splits(
    m: Block,
    rows: RowIds,
    totals: Annotated[Integers, along("rows", 3)],
    bounds: Annotated[Floats, along("rows", 2)],
    keys: Annotated[Integers, along("rows")],
    rules: Annotated[Floats, along(5)],
    allowed: Annotated[Integers, along("rows", "")],
    *,
    layout: int = 0,
    channels: Channels = 2,
    marks: bool = False,
    words: Annotated[int, Range(at_least=0, below=65)] = 0,
    features: int = 0,
    drawn: int = 0,
    full: bool = False,
    min_third: int = 0,
    smooth: float = 0.0,
    category_lambda: float = 0.0,
    max_categories: int = MAX_CATEGORIES,
    min_category: int = 0,
    min_group: int = 0,
    one_hot: int = 0,
) -> tuple[
    Annotated[Float64s, along("rows")],
    Annotated[Int64s, along("rows", 3)],
    Annotated[Int64s, along("rows", 3)],
    Annotated[Int64s, along("rows", "")],
]:
    """Return each node's best split by the features on this server; ties go to the lowest feature and bin.

    Args:
        totals, bounds, keys, allowed: see ``OpenNodes``; rules: the fields of ``Rules`` that are floats.
        layout: the row with the result of ``layout_of``.
        words: the number of int64s that hold a set of categories.
        features, drawn: the number of features, and the number of features that each node samples (0: all).
        full: whether histograms store all bins, including the implied ones.
        min_third: see ``Rules``.
        smooth, category_lambda, max_categories, min_category, min_group, one_hot: see ``CategoryRules``.

    Returns:
        For each node: the gain, which is twice the decrease of the objective (minus infinity: no split); the feature
        (-1: none), the last bin on the left (-1: a set of categories goes left), and whether missing values go left;
        the sums of the left side; the set of categories that go left, as bits.
    """
    rows = check_row_ids(rows, m.shape[0])
    if not 0 <= layout < m.shape[0]:
        raise OutOfRangeError(f"layout: row {layout} is outside [0, {m.shape[0]})")
    if marks:
        check_marks(m, channels, rows)
    num_tiles = min(max(m.shape[1] // TILE_VALUES, 1), MAX_TILES)
    bins = m.shape[1] // channels
    tile_ends = readable(np.arange(num_tiles + 1) * bins // num_tiles)
    gains = np.full((num_tiles, len(rows)), -np.inf)
    conditions = np.full((num_tiles, len(rows), 3), -1, np.int64)
    left_sums = np.zeros((num_tiles, len(rows), 3), np.int64)
    sets = np.zeros((num_tiles, len(rows), words), np.int64)
    if allowed.shape[1] and allowed.shape[1] * WORD_BITS < features:
        raise OutOfRangeError(f"allowed: expected a bit for each of {features} features, got {allowed.shape[1]} words")
    categories = CategoryRules(smooth, category_lambda, max_categories, min_category, min_group, one_hot)
    split_rules = Rules._make([*rules.tolist(), min_third, categories])
    nodes = OpenNodes(readable(totals), readable(bounds), readable(keys), readable(allowed))
    over_blocks(
        search,
        (np.arange(num_tiles),),
        *(tile_ends, m, rows, layout, channels, marks, nodes, split_rules),
        *(features, drawn, full, Splits(gains, conditions, left_sums, sets)),
        cost=SEARCH_COST * len(rows) * m.shape[1] // num_tiles,
    )
    best = np.argmax(gains, axis=0), np.arange(len(rows))
    return gains[best], conditions[best], left_sums[best], sets[best]


@op(reduce="best", dtypes=("int64",))
def purest_splits(
    m: Block,
    rows: RowIds,
    totals: Annotated[Integers, along("rows", "channels")],
    kinds: Annotated[Integers, along(6)],
    rules: Annotated[Floats, along(4)],
    *,
    layout: int = 0,
    words: Annotated[int, Range(at_least=0, below=65)] = 0,
) -> tuple[
    Annotated[Float64s, along("rows")],
    Annotated[Int64s, along("rows", 3)],
    Annotated[Int64s, along("rows", "channels")],
    Annotated[Int64s, along("rows", "")],
]:
    """Return the best splits of nodes of a random forest, by the decrease of impurity.

    ``kinds`` has the integer fields of ``ForestRules``, ``rules`` the other ones; for the rest, see ``best_splits``.
    """
    rows = check_row_ids(rows, m.shape[0])
    channels = totals.shape[1]
    if not 2 <= channels < MAX_CHANNELS:
        raise OutOfRangeError(f"totals: expected from 2 to {MAX_CHANNELS - 1} channels, got {channels}")
    if not 0 <= layout < m.shape[0]:
        raise OutOfRangeError(f"layout: row {layout} is outside [0, {m.shape[0]})")
    forest_rules = ForestRules(*kinds.tolist(), *rules.tolist())
    is_valid = 0 <= forest_rules.impurity <= 2 and 0 <= forest_rules.max_depth < WORD_BITS - 1
    if not (is_valid and 2 <= forest_rules.width <= channels <= forest_rules.width + 1):
        raise OutOfRangeError(f"kinds: expected integers of ForestRules for {channels} channels, got {kinds.tolist()}")
    check_marks(m, channels, rows)
    gains, conditions = np.zeros(len(rows)), np.full((len(rows), 3), -1, np.int64)
    left_sums, sets = np.zeros((len(rows), channels), np.int64), np.zeros((len(rows), words), np.int64)
    over_blocks(
        search_forest,
        (np.arange(len(rows)),),
        *(m, rows, layout, readable(totals), forest_rules, Splits(gains, conditions, left_sums, sets)),
        cost=m.shape[1],
    )
    return gains, conditions, left_sums, sets


@kernel
def _subtract(rows: Int64s, others: Int64s, m: Array) -> None:
    for i in range(len(rows)):
        for j in range(m.shape[1]):
            m[rows[i], j] -= m[others[i], j]
