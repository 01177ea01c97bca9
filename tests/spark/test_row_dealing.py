"""Rows are dealt so that workers have about equally many feature values."""

from __future__ import annotations

import numpy as np
import pytest
from pyspark.ml.linalg import Vectors
from training import schema_of

from ps2.algorithms.frame.dealing import deal
from ps2.algorithms.frame.tables import survey
from ps2.algorithms.training.faults import ColumnNames

COLUMNS = ColumnNames()
DIM = 3_000


def frame_of(spark, shards):
    """Rows with so many values each, one rdd_partition a shard; the label numbers them."""
    rows, number = [], 0
    for sizes in shards:
        rows.append([])
        for size in sizes:
            rows[-1].append((Vectors.sparse(DIM, range(size), [1.0] * size), float(number)))
            number += 1
    dealt = spark.sparkContext.parallelize(rows, len(rows)).flatMap(lambda shard: shard)
    return spark.createDataFrame(dealt, schema_of({"features": rows[0][0][0], "label": 0.0})).cache()


def dealt(frame, workers):
    """Labels and numbers of values of each worker's rows."""
    table = deal(frame, COLUMNS, survey(frame, COLUMNS, None), workers)
    result = table.frame.rdd.map(lambda row: (row.label, len(row.features["values"]))).glom().collect()
    return table, [worker for worker in result if worker]


def test_survey_when_vectors_are_sparse_then_loads_count_values(spark):
    loads = survey(frame_of(spark, [[3, 5], [10]]), COLUMNS, None).loads
    assert [(load.rows, load.cost, load.squares) for load in loads.values()] == [(2, 10.0, 52.0), (1, 11.0, 121.0)]


@pytest.mark.parametrize("workers", [2, 3])
def test_deal_when_few_rows_have_most_values_then_balanced(spark, workers):
    sizes = np.minimum((np.random.default_rng(2).pareto(0.7, 300) * 10 + 1).astype(int), DIM).tolist()
    table, result = dealt(frame_of(spark, [sizes[:290], sizes[290:], []]), workers)
    costs = [sum(values for _, values in worker) for worker in result]
    assert table.workers == len(result) == workers
    assert sorted(label for worker in result for label, _ in worker) == list(range(300))
    assert max(costs) < 1.2 * np.mean(costs)
    assert table.frame.columns == ["features", "label"]


def test_deal_when_partitions_cost_unlike_then_none_gets_most(spark):
    frame = frame_of(spark, [[200] * 50, [10] * 50])
    _, result = dealt(frame, 2)
    costs = [sum(values for _, values in worker) for worker in result]
    assert max(costs) < 1.2 * np.mean(costs)
