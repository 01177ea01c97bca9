"""Graphs on workers or servers, and walks through them: the sentences of a training, or a DataFrame."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, IntegerType, StructField, StructType

from ps2.algorithms.embeddings.edge_frame import EdgeTable, collect_arrow
from ps2.algorithms.embeddings.sentences import WalkSentences
from ps2.algorithms.embeddings.settings import BiasedWalkSettings
from ps2.algorithms.embeddings.walks import Graph, Walks, walks_of
from ps2.algorithms.frame.settings import with_values
from ps2.array_types import Float64s, Int32s, Int64s
from ps2.coordinator.context import PS2Context
from ps2.data.ids import Ids, Names
from ps2.run.spark.backend_lookup import backend_of, with_python

# The number of visits from which the vertices' frequencies are estimated, if an epoch has so many.
ENOUGH_VISITS = 1 << 20
# The largest graph that graphOn="auto" sends to each worker; larger graphs go to the servers.
MAX_WORKER_BYTES = 256 << 20
# The number of ids in a batch for Spark.
BATCH_IDS = 1 << 20


@dataclass(frozen=True, eq=False)
class LocatedGraph:
    """A graph on the workers or the servers. Tasks get it from ``share``, until ``free``."""

    share: Callable[[], Graph]
    free: Callable[[], None]
    on_servers: bool


def locate_graph(table: EdgeTable, graph_on: str, servers: int | None) -> LocatedGraph:
    """Send a graph to the workers or to the servers, by the param ``graphOn``. If no PS2Context is active, a fleet of
    ``servers`` servers starts; None: the default number."""
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
    """Makes a worker's walks. Tasks call ``graph``, and ``numbers`` for the vertices' numbers in the training. All
    walks of an epoch have about ``visits`` vertices."""

    graph: Callable[[], Graph]
    numbers: Callable[[], Int32s]
    settings: BiasedWalkSettings
    visits: int
    workers: int

    def __call__(self, worker: Any, batches: Iterable[pa.RecordBatch]) -> WalkSentences:
        return WalkSentences(self.graph(), self.settings, self.numbers(), self.visits, worker.rank, self.workers)


def count_visits(table: EdgeTable, share: Callable[[], Graph], settings: BiasedWalkSettings, workers: int) -> Int64s:
    """Estimate from a sample of an epoch's walks how often they visit each vertex."""
    vertices = len(table.vertices)
    passes = min(settings.numWalks, -(-ENOUGH_VISITS // (vertices * settings.walkLength)))
    sample_settings = with_values(settings, numWalks=passes)

    def count(rank: int) -> Iterator[pa.RecordBatch]:
        visits = np.zeros(vertices, np.int64)
        for walks in walks_of(share(), sample_settings, rank, workers):
            visits += np.bincount(walks.block(0, len(walks.walkers))[0], minlength=vertices)
        yield pa.RecordBatch.from_pydict({"visits": pa.array([visits.tobytes()], pa.binary())})

    rows = _for_each_rank(table, workers, count, "visits binary").collect()
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
    """Return how often each vertex is an edge's source in an epoch, which has ``scale`` edges per unit of weight."""
    ids, weights = _weigh(_ends(frame, "source"))
    positions, counts = names.positions(ids), np.zeros(len(names), np.int64)
    known = positions >= 0
    counts[positions[known]] = np.maximum(np.rint(weights[known] * scale), weights[known] > 0)
    return counts


def _ends(frame: DataFrame, end: str) -> DataFrame:
    weight = F.col("weight") if "weight" in frame.columns else F.lit(1.0)
    return frame.select(F.col(end).alias("id"), weight.alias("weight"))


def _weigh(edges: DataFrame) -> tuple[pa.Array, Float64s]:
    """Return each id and the total weight of its edges."""
    totals = collect_arrow(edges.groupBy("id").agg(F.sum("weight").alias("weight")))
    return totals.column("id").combine_chunks(), totals.column("weight").combine_chunks().to_numpy()


def walks_frame(table: EdgeTable, share: Callable[[], Graph], settings: BiasedWalkSettings, workers: int) -> DataFrame:
    """Return rows of ``epoch`` and ``walk``, ordered by epoch and first vertex, which ``workers`` tasks compute."""
    ids = ArrayType(table.id_type, False)
    schema = StructType([StructField("epoch", IntegerType(), False), StructField("walk", ids, False)])
    arrow_id_type = table.arrow_id_type
    shared = backend_of(table.frame).broadcast(table.vertices)

    def walk(rank: int) -> Iterator[pa.RecordBatch]:
        for walks in walks_of(share(), settings, rank, workers):
            yield from _batches(walks, shared.value, arrow_id_type)

    return _for_each_rank(table, workers, walk, schema)


def _for_each_rank(
    table: EdgeTable, workers: int, compute: Callable[[int], Iterator[pa.RecordBatch]], schema: Any
) -> DataFrame:
    """Return a DataFrame of the batches that ``workers`` tasks compute, each from its rank."""

    def run(ranks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in ranks:
            for rank in batch.column(0).to_pylist():
                yield from compute(rank)

    spark: Any = table.frame.sparkSession
    frame: DataFrame = with_python(spark).range(0, workers, 1, workers).mapInArrow(run, schema)
    return frame


def _batches(walks: Walks, vertices: Ids, id_type: pa.DataType) -> Iterator[pa.RecordBatch]:
    """Yield walks as Arrow batches of bounded size."""
    step = max(1, BATCH_IDS // walks.vertices.shape[1])
    for begin in range(0, len(walks.walkers), step):
        visited, lengths = walks.block(begin, begin + step)
        ids = vertices.named(visited).cast(id_type)
        offsets = np.append(0, np.cumsum(lengths)).astype(np.int32)
        epochs = (walks.walkers[begin : begin + step] // len(vertices)).astype(np.int32)
        lists = pa.ListArray.from_arrays(pa.array(offsets), ids)
        yield pa.RecordBatch.from_arrays([pa.array(epochs), lists], ["epoch", "walk"])
