"""Score a random forest by the trees that have not drawn a row: a job over the rows that it was trained on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import scipy.sparse as sp

from ps2.algorithms.frame.tables import column, names_of
from ps2.algorithms.training.faults import ColumnNames, Form, error_of
from ps2.algorithms.training.reading import read
from ps2.algorithms.training.table import Table
from ps2.algorithms.trees.forests.forest_kernels import count_draws
from ps2.algorithms.trees.forests.plan import ForestPlan
from ps2.algorithms.trees.forests.random_forest import RandomForest
from ps2.algorithms.trees.problem import TreeProblem
from ps2.algorithms.trees.rows import row_ids
from ps2.array_types import Float64s
from ps2.data.rows import LocalRows
from ps2.ops.guards import readable
from ps2.run.spark.backend_lookup import in_one_wave, with_python

log = logging.getLogger(__name__)

# Sums over rows: the number of all rows, and of the rows that some tree has not drawn; of the latter the weight, the
# weight that is predicted right (or the squared errors), labels minus the base, and their squares, by weight.
ROWS, SCORED, WEIGHT, FITTED, LABELS, SQUARES = range(6)


def out_of_bag_score(table: Table, problem: TreeProblem, plan: ForestPlan, share: Callable[[], RandomForest]) -> float:
    """Return the accuracy or R2 by the trees that have not drawn a row; NaN: all trees have drawn all rows."""
    columns, form = table.columns, Form(problem.dim, problem.classes, missing=True)

    def scored(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        forest, sums = share(), np.zeros(SQUARES + 1)
        for batch in batches:
            sums += _sums(_rows(batch, columns, form), forest, problem, plan)
        yield pa.RecordBatch.from_pydict({"sums": [sums.tolist()]})

    rows = table.frame.select(*map(column, names_of(columns)))
    parts = with_python(in_one_wave(rows)).mapInArrow(scored, "sums array<double>").collect()
    sums = np.sum([row["sums"] for row in parts], axis=0)
    if left := int(sums[ROWS] - sums[SCORED]):
        log.warning(
            "oobScore: each of the %d trees has drawn %d of %d rows, which do not count",
            plan.settings.numTrees,
            left,
            sums[ROWS],
        )
    if not sums[WEIGHT] > 0:
        return float("nan")
    if plan.classes:
        return float(sums[FITTED] / sums[WEIGHT])
    total = sums[SQUARES] - sums[LABELS] ** 2 / sums[WEIGHT]
    return float(1.0 - sums[FITTED] / total) if total > 0 else float("nan")


def _rows(batch: pa.RecordBatch, columns: ColumnNames, form: Form) -> LocalRows:
    reading = read([batch], columns, form)
    if error := error_of(reading.faults[None], columns, form):
        raise error
    return reading.training


def _sums(rows: LocalRows, forest: RandomForest, problem: TreeProblem, plan: ForestPlan) -> Float64s:
    assert rows.y is not None
    ids, draws = readable(row_ids(rows, problem.absent)), np.empty((plan.settings.numTrees, len(rows)), np.uint8)
    for tree in range(plan.settings.numTrees):
        count_draws(ids, plan.keys(tree)[0], plan.draws_below, draws[tree])
    columns = rows.keys.astype(np.int32)[rows.x.indices]
    x = sp.csr_array((rows.x.data, columns, rows.x.indptr), shape=(len(rows), problem.dim))
    votes, trees = forest.votes(x, np.ascontiguousarray(draws.T) == 0)
    some = trees > 0
    y, weights = rows.y[some], np.ones(int(some.sum())) if rows.weights is None else rows.weights[some]
    sums = np.zeros(SQUARES + 1)
    sums[[ROWS, SCORED, WEIGHT]] = len(rows), len(y), weights.sum()
    if plan.classes:
        sums[FITTED] = weights[votes[some].argmax(axis=1) == y].sum()
        return sums
    labels = y - problem.base[0]
    sums[FITTED] = weights @ (y - votes[some, 0] / trees[some]) ** 2
    sums[[LABELS, SQUARES]] = weights @ labels, weights @ labels**2
    return sums
