"""Walks as the rows of a DataFrame, through a graph that lies on workers or on servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, IntegerType, StructField, StructType

from ps2.algorithms.embeddings.ml.edges import EdgeTable
from ps2.algorithms.embeddings.vertices import Vertices
from ps2.algorithms.embeddings.walks import Graph, Recipe, Walks, walks_of

# What a graph may take on a worker, if it is to choose where it lies.
MOST_ON_WORKER = 256 << 20
# Ids of a batch that goes to Spark.
BATCH_IDS = 1 << 20


def fits_worker(table: EdgeTable) -> bool:
    """Tell whether a graph is small enough for every worker to have it."""
    numbers = table.most_edges + len(table.vertices) + 1
    return numbers * (4 + 8 * table.weighted) <= MOST_ON_WORKER


def walks_frame(table: EdgeTable, share: Callable[[], Graph], recipe: Recipe, workers: int) -> DataFrame:
    """Return walks as rows, ``epoch`` and ``walk``, in order of epoch and first vertex.

    Args:
        share: gives a task the graph.
        workers: tasks that walk.
    """
    spark = table.frame.sparkSession
    walk_type = StructType(
        [
            StructField("epoch", IntegerType(), False),
            StructField("walk", ArrayType(table.id, False), False),
        ]
    )
    arrow_id = table.arrow_id
    shared = spark.sparkContext.broadcast(table.vertices)

    def walk(ranks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in ranks:
            for rank in batch.column(0).to_pylist():
                for walks in walks_of(share(), recipe, rank, workers):
                    yield from _batches(walks, shared.value, arrow_id)

    made: Any = spark.range(0, workers, 1, workers).mapInArrow(walk, walk_type)
    return made


def _batches(walks: Walks, vertices: Vertices, arrow_id: pa.DataType) -> Iterator[pa.RecordBatch]:
    """Yield walks as Arrow batches of a bounded size."""
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
