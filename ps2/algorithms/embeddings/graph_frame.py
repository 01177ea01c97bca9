"""Graphs on workers or servers: read as sentences for a training, or walked into a DataFrame."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, IntegerType, StructField, StructType

from ps2.algorithms.embeddings.edge_frame import EdgeTable, collect_arrow, edges_of
from ps2.algorithms.embeddings.sentences import EdgeSentences, WalkSentences
from ps2.algorithms.embeddings.settings import BiasedWalkSettings
from ps2.algorithms.embeddings.walks import Graph, Walks, walks_of
from ps2.algorithms.frame.settings import with_values
from ps2.array_types import Float64s, Int32s, Int64s
from ps2.coordinator.context import PS2Context
from ps2.data.ids import Ids, Names
from ps2.run.spark.backend_lookup import backend_of, with_python

# The visited vertices that suffice to estimate frequencies.
ENOUGH_VISITS = 1 << 20
# graphOn="auto" places larger graphs on the servers.
MAX_WORKER_BYTES = 256 << 20
# The ids of a batch for Spark.
BATCH_IDS = 1 << 20


@dataclass(frozen=True, eq=False)
class LocatedGraph:
    """A graph that tasks can reach.

    Attributes:
        share: a function that returns the graph, in a task.
        free: a function that frees the graph; walks through a graph on servers are impossible afterwards.
        on_servers: whether the graph is on the servers.
    """

    share: Callable[[], Graph]
    free: Callable[[], None]
    on_servers: bool


def locate_graph(table: EdgeTable, graph_on: str, servers: int | None) -> LocatedGraph:
    """Place a graph on the workers or on the servers, by the param ``graphOn``. ``servers``: those of the fleet that
    starts if no PS2Context is active; None: the default."""
    spark = table.frame.sparkSession
    numbers = table.max_edges + len(table.vertices) + 1
    fits_worker = numbers * (4 + 8 * table.weighted) <= MAX_WORKER_BYTES
    if graph_on == "servers" or (graph_on == "auto" and not fits_worker):
        ps = PS2Context.getOrCreate(spark, servers)
        graph = table.on_fleet(len(ps.servers))
        return LocatedGraph(lambda: graph, graph.free, on_servers=True)
    shared = backend_of(spark).broadcast(table.local())
    return LocatedGraph(lambda: shared.value, shared.unpersist, on_servers=False)


@dataclass(frozen=True, eq=False)
class ReadWalks:
    """Makes a worker's sentences: walks.

    Attributes:
        graph: a function that returns the graph, in a task.
        numbers: a function that returns the numbers of vertices, int32, shape (vertices,).
        settings: the settings of the walks of one epoch.
        visits: the estimated number of vertices of all walks of an epoch.
        workers: the number of workers.
    """

    graph: Callable[[], Graph]
    numbers: Callable[[], Int32s]
    settings: BiasedWalkSettings
    visits: int
    workers: int

    def __call__(self, worker: Any, batches: Iterable[pa.RecordBatch]) -> WalkSentences:
        return WalkSentences(self.graph(), self.settings, self.numbers(), self.visits, worker.rank, self.workers)


@dataclass(frozen=True, eq=False)
class ReadEdges:
    """Makes a worker's sentences from its rows: edges.

    Attributes:
        vertices: a function that returns the vertices, in a task.
        numbers: a function that returns their numbers; see ``ReadWalks``.
        directed: whether edges have one direction.
        edges: the number of edges in an epoch, over all workers.
        weight: the total weight of the edges, over all workers.
        seed: the seed of all draws.
    """

    vertices: Callable[[], Ids]
    numbers: Callable[[], Int32s]
    directed: bool
    edges: int
    weight: float
    seed: int

    def __call__(self, worker: Any, batches: Iterable[pa.RecordBatch]) -> EdgeSentences:
        numbers = self.numbers()
        parts = [edges if self.directed else edges.both_directions() for edges in edges_of(batches, self.vertices())]
        empty = np.empty(0, np.int32)
        sources = np.concatenate([empty, *(numbers[edges.sources] for edges in parts)])
        targets = np.concatenate([empty, *(numbers[edges.targets] for edges in parts)])
        if all(edges.weights is None for edges in parts):
            return EdgeSentences(sources, targets, None, len(sources), self.seed, worker.rank)
        weights = np.concatenate([edges.weights for edges in parts if edges.weights is not None])
        count = round(self.edges * float(weights.sum()) / self.weight)
        return EdgeSentences(sources, targets, weights, count, self.seed, worker.rank)


def count_visits(table: EdgeTable, share: Callable[[], Graph], settings: BiasedWalkSettings, workers: int) -> Int64s:
    """Return an estimate of how often an epoch's walks visit each vertex, from some of these walks."""
    vertices = len(table.vertices)
    passes = min(settings.numWalks, -(-ENOUGH_VISITS // (vertices * settings.walkLength)))
    some_walks = with_values(settings, numWalks=passes)

    def count(ranks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in ranks:
            for rank in batch.column(0).to_pylist():
                visits = np.zeros(vertices, np.int64)
                for walks in walks_of(share(), some_walks, rank, workers):
                    is_visited = np.arange(some_walks.walkLength) < walks.lengths[:, None]
                    visits += np.bincount(walks.vertices[is_visited], minlength=vertices)
                yield pa.RecordBatch.from_pydict({"visits": pa.array([visits.tobytes()], pa.binary())})

    spark: Any = table.frame.sparkSession
    rows = with_python(spark).range(0, workers, 1, workers).mapInArrow(count, "visits binary").collect()
    visits = np.sum([np.frombuffer(row["visits"], np.int64) for row in rows], axis=0)
    return np.asarray(visits * settings.numWalks // passes, np.int64)


def weigh_targets(table: EdgeTable) -> Float64s:
    """Return the total weight of the edges to each vertex, shape (vertices,)."""
    edges = _ends(table.frame, "target")
    if not table.directed:
        edges = edges.union(_ends(table.frame.where("source != target"), "source"))
    ids, weights = _weigh(edges)
    vertex_weights = np.zeros(len(table.vertices))
    vertex_weights[table.vertices.numbers(ids)] = weights
    return vertex_weights


def count_sources(frame: DataFrame, names: Names, scale: float) -> Int64s:
    """Return how often each of some vertices is an edge's source, int64, with ``scale`` occurrences in an epoch per
    unit of edge weight."""
    ids, weights = _weigh(_ends(frame, "source"))
    positions, counts = names.positions(ids), np.zeros(len(names), np.int64)
    known = positions >= 0
    counts[positions[known]] = np.maximum(np.rint(weights[known] * scale), weights[known] > 0)
    return counts


def _ends(frame: DataFrame, end: str) -> DataFrame:
    weight = F.col("weight") if "weight" in frame.columns else F.lit(1.0)
    return frame.select(F.col(end).alias("id"), weight.alias("weight"))


def _weigh(edges: DataFrame) -> tuple[pa.Array, Float64s]:
    """Return ids and the total weight of the edges of each."""
    totals = collect_arrow(edges.groupBy("id").agg(F.sum("weight").alias("weight")))
    return totals.column("id").combine_chunks(), totals.column("weight").combine_chunks().to_numpy()


def walks_frame(table: EdgeTable, share: Callable[[], Graph], settings: BiasedWalkSettings, workers: int) -> DataFrame:
    """Return walks as rows, ``epoch`` and ``walk``, ordered by epoch and first vertex, computed by ``workers``
    tasks."""
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

    ranks: Any = with_python(spark).range(0, workers, 1, workers)
    frame: DataFrame = ranks.mapInArrow(walk, walk_type)
    return frame


def _batches(walks: Walks, vertices: Ids, arrow_id: pa.DataType) -> Iterator[pa.RecordBatch]:
    """Yield walks as Arrow batches of bounded size."""
    step = max(1, BATCH_IDS // walks.vertices.shape[1])
    for begin in range(0, len(walks.walkers), step):
        block = slice(begin, begin + step)
        lengths = walks.lengths[block]
        is_visited = np.arange(walks.vertices.shape[1]) < lengths[:, None]
        ids = vertices.named(walks.vertices[block][is_visited]).cast(arrow_id)
        offsets = np.append(0, np.cumsum(lengths)).astype(np.int32)
        epochs = (walks.walkers[block] // len(vertices)).astype(np.int32)
        yield pa.RecordBatch.from_arrays(
            [pa.array(epochs), pa.ListArray.from_arrays(pa.array(offsets), ids)], ["epoch", "walk"]
        )
