"""Random walks as the rows of a DataFrame."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, IntegerType, StructField, StructType

from ps2.algorithms.embeddings.ml.edges import EdgeTable
from ps2.algorithms.embeddings.walks import Graph, Walks, WalkSettings, walks_of
from ps2.data.ids import Ids
from ps2.run.spark.backend_lookup import backend_of, with_python

# graphOn="auto" places larger graphs on the servers.
MAX_ON_WORKER = 256 << 20
# Ids of a batch for Spark.
BATCH_IDS = 1 << 20


def fits_worker(table: EdgeTable) -> bool:
    """Return True if every worker can hold the graph."""
    numbers = table.most_edges + len(table.vertices) + 1
    return numbers * (4 + 8 * table.weighted) <= MAX_ON_WORKER


def walks_frame(table: EdgeTable, share: Callable[[], Graph], settings: WalkSettings, workers: int) -> DataFrame:
    """Return walks as rows, ``epoch`` and ``walk``, ordered by epoch and first vertex.

    Args:
        share: returns the graph, in a task.
        workers: number of tasks.
    """
    spark = table.frame.sparkSession
    walk_type = StructType(
        [
            StructField("epoch", IntegerType(), False),
            StructField("walk", ArrayType(table.id, False), False),
        ]
    )
    arrow_id = table.arrow_id
    shared = backend_of(spark).broadcast(table.vertices)

    def walk(ranks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in ranks:
            for rank in batch.column(0).to_pylist():
                for walks in walks_of(share(), settings, rank, workers):
                    yield from _batches(walks, shared.value, arrow_id)

    made: Any = with_python(spark).range(0, workers, 1, workers).mapInArrow(walk, walk_type)
    return made


def _batches(walks: Walks, vertices: Ids, arrow_id: pa.DataType) -> Iterator[pa.RecordBatch]:
    """Yield walks as Arrow batches of bounded size."""
    step = max(1, BATCH_IDS // walks.vertices.shape[1])
    for begin in range(0, len(walks.walkers), step):
        some = slice(begin, begin + step)
        lengths = walks.lengths[some]
        there = np.arange(walks.vertices.shape[1]) < lengths[:, None]
        ids = vertices.named(walks.vertices[some][there]).cast(arrow_id)
        offsets = np.append(0, np.cumsum(lengths)).astype(np.int32)
        epochs = (walks.walkers[some] // len(vertices)).astype(np.int32)
        yield pa.RecordBatch.from_arrays(
            [pa.array(epochs), pa.ListArray.from_arrays(pa.array(offsets), ids)], ["epoch", "walk"]
        )
