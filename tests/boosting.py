"""Small tables to grow trees of, dealt out to workers, and whether two forests are one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import scipy.sparse as sp
from pyspark.ml.linalg import Vectors
from training import schema_of

from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.record import Trained
from ps2.algorithms.training.table import Facts, Table
from ps2.algorithms.trees.gradients import Objective
from ps2.algorithms.trees.problem import BoostingPlan, TreeProblem
from ps2.algorithms.trees.program import train
from ps2.algorithms.trees.rows import is_dense
from ps2.algorithms.trees.tree import Forest
from tests import plans

FEATURES = 32
CATEGORIES = {6: 70}
PROBLEM = TreeProblem(Objective("logistic"), FEATURES, (0.0,), categories=CATEGORIES)
SOFTMAX = TreeProblem(Objective("softmax", 3), FEATURES, (0.0, 0.5, -0.5), categories=CATEGORIES)
MEDIAN = TreeProblem(Objective("absolute"), FEATURES, (0.0,), categories=CATEGORIES)
RECIPE = plans.boosting(maxIter=3, maxDepth=4, maxBins=16, stepSize=0.5, subsamplingRate=0.9)
# For forests of more trees a round.
SHORT = plans.changed(RECIPE, maxIter=2, maxDepth=3)
# Its histograms do not fit into the rows that there are in the beginning.
BY_LEAF = plans.changed(RECIPE, growth="leaf", maxLeaves=48, maxDepth=30, minChildWeight=0.1)
DART = plans.changed(RECIPE, maxIter=4, boostingType="dart", dropRate=0.6, skipDrop=0.0)


def table(rows: int = 300, seed: int = 0) -> tuple[Any, Any]:
    """Features of few and of many values, most of them rare, and labels of 0 and 1.

    One is constant, one has categories; of these and of another, values are missing. Workers lay sparse vectors of
    such rows out as ``SparseRows``.
    """
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, FEATURES)).astype(np.float32)
    x[:, 1] = rng.integers(-1, 3, rows)
    x[:, 6] = rng.integers(0, CATEGORIES[6], rows)
    x[rng.random(x.shape) < np.where(np.arange(FEATURES) < 8, 0.5, 0.95)] = 0
    x[:, 2] = 7.0
    score = x[:, 0] * x[:, 1] + x[:, 3] + 0.3 * rng.normal(size=rows) + (x[:, 6] % 3 == 1) - x[:, 7]
    score += 0.5 * x[:, 8:].sum(axis=1)
    x[:, 6:8][rng.random((rows, 2)) < 0.2] = np.nan
    return x, (score > 0.2).astype(float)


def facts_of(y: Any) -> Facts:
    """What the driver knows of classes without weights."""
    n = len(y)
    of_classes = np.bincount(y.astype(int), minlength=2).astype(float).tolist()
    return Facts(n, n, n, tuple(of_classes), float(y.mean()), float(y.std()), (float(y.min()), float(y.max())))


def dealt(
    spark: Any, x: Any, y: Any, workers: int, sparse: bool = False, others: Mapping[str, list[Any]] | None = None
) -> Table:
    """Rows dealt out to workers by turns, as ``SparseRows`` or as ``DenseRows``; with other columns beside."""
    assert not (sparse and is_dense(sp.csr_array(x), x.shape[1]))

    def vector(row: Any) -> Any:
        some = np.flatnonzero(row)
        return Vectors.sparse(len(row), some.tolist(), row[some].tolist()) if sparse else Vectors.dense(row.tolist())

    others = others or {}
    rows = list(zip(map(vector, x), y.tolist(), *others.values(), strict=True))
    parts = spark.sparkContext.parallelize([rows[w::workers] for w in range(workers)], workers)
    schema = schema_of(dict(zip(["features", "label", *others], rows[0], strict=True)))
    return Table(spark.createDataFrame(parts.flatMap(list), schema, verifySchema=False), ColumnNames(), workers)


def trained(
    ps: Any,
    spark: Any,
    workers: int = 2,
    sparse: bool = False,
    recipe: BoostingPlan = RECIPE,
    problem: TreeProblem = PROBLEM,
    on_step: Any = lambda report: None,
) -> Trained[Forest]:
    """Train on the table."""
    x, y = table()
    if problem.classes == 3:
        y += x[:, 4] > 0
    return train(ps, dealt(spark, x, y, workers, sparse), problem, recipe, facts_of(y), on_step)


def digest(forest: Forest) -> str:
    """Return a hash of all bits of all trees."""
    hashed = hashlib.sha256()
    for tree in forest.trees:
        for field in fields(tree):
            hashed.update(np.ascontiguousarray(getattr(tree, field.name)).tobytes())
    return hashed.hexdigest()
