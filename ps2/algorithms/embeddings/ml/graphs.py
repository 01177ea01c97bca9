"""Place graphs on workers or servers for a training; read each worker's sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ps2.algorithms.embeddings.edges import edges_of
from ps2.algorithms.embeddings.ml.edges import EdgeTable, collected
from ps2.algorithms.embeddings.ml.params import WalkParams
from ps2.algorithms.embeddings.ml.walking import fits_worker
from ps2.algorithms.embeddings.sentences import EdgeSentences, WalkSentences
from ps2.algorithms.embeddings.walks import Graph, WalkSettings, walks_of
from ps2.array_types import Float64s, Int32s, Int64s
from ps2.coordinator.context import PS2Context
from ps2.data.ids import Ids
from ps2.data.names import Names
from ps2.run.spark.backend_lookup import backend_of, with_python

# Visited vertices that suffice to estimate frequencies.
SOME_VISITS = 1 << 20


@dataclass(frozen=True, eq=False)
class PlacedGraph:
    """A graph that tasks can reach.

    Attributes:
        share: returns the graph, in a task.
        free: frees it; walks through a graph on servers are impossible afterwards.
        on_servers: whether it is on the servers.
    """

    share: Callable[[], Graph]
    free: Callable[[], None]
    on_servers: bool


def placed(table: EdgeTable, params: WalkParams) -> PlacedGraph:
    """Place a graph on the workers or on the servers, as the params say.

    Raises:
        LimitError: it does not fit the servers.
    """
    spark, place = table.frame.sparkSession, params.getGraphOn()
    if place == "servers" or (place == "auto" and not fits_worker(table)):
        servers = params.getNumServers() if params.isSet(params.numServers) else None
        ps = PS2Context.getOrCreate(spark, servers)
        graph = table.on_fleet(len(ps.servers))
        return PlacedGraph(lambda: graph, graph.free, on_servers=True)
    shared = backend_of(spark).broadcast(table.local())
    return PlacedGraph(lambda: shared.value, shared.unpersist, on_servers=False)


@dataclass(frozen=True, eq=False)
class ReadWalks:
    """Makes a worker's sentences: walks.

    Attributes:
        graph: returns the graph, in a task.
        numbers: returns the numbers of vertices, int32, shape (vertices,).
        settings: of the walks of one epoch.
        visits: estimated vertices of all walks of an epoch.
        workers: number of workers.
    """

    graph: Callable[[], Graph]
    numbers: Callable[[], Int32s]
    settings: WalkSettings
    visits: int
    workers: int

    def __call__(self, worker: Any, batches: Iterable[pa.RecordBatch]) -> WalkSentences:
        return WalkSentences(self.graph(), self.settings, self.numbers(), self.visits, worker.rank, self.workers)


@dataclass(frozen=True, eq=False)
class ReadEdges:
    """Makes a worker's sentences from its rows: edges.

    Attributes:
        vertices: returns the vertices, in a task.
        numbers: returns their numbers, as in ``ReadWalks``.
        directed: whether edges have one direction.
        edges: number of edges in an epoch, over all workers.
        weight: total weight of the edges, over all workers.
        seed: of all draws.
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
        none = np.empty(0, np.int32)
        sources = np.concatenate([none, *(numbers[edges.sources] for edges in parts)])
        targets = np.concatenate([none, *(numbers[edges.targets] for edges in parts)])
        if all(edges.weights is None for edges in parts):
            return EdgeSentences(sources, targets, None, len(sources), self.seed, worker.rank)
        weights = np.concatenate([edges.weights for edges in parts if edges.weights is not None])
        count = round(self.edges * float(weights.sum()) / self.weight)
        return EdgeSentences(sources, targets, weights, count, self.seed, worker.rank)


def count_visits(table: EdgeTable, share: Callable[[], Graph], settings: WalkSettings, workers: int) -> Int64s:
    """Return an estimate of how often walks visit each vertex, from some walks of an epoch.

    Args:
        settings: of the walks of one epoch.
    """
    vertices = len(table.vertices)
    passes = min(settings.epochs, -(-SOME_VISITS // (vertices * settings.length)))
    some = WalkSettings(passes, settings.length, settings.seed, settings.p, settings.q)

    def count(ranks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in ranks:
            for rank in batch.column(0).to_pylist():
                visits = np.zeros(vertices, np.int64)
                for walks in walks_of(share(), some, rank, workers):
                    there = np.arange(some.length) < walks.lengths[:, None]
                    visits += np.bincount(walks.vertices[there], minlength=vertices)
                yield pa.RecordBatch.from_pydict({"visits": pa.array([visits.tobytes()], pa.binary())})

    spark: Any = table.frame.sparkSession
    counted = with_python(spark).range(0, workers, 1, workers).mapInArrow(count, "visits binary").collect()
    visits = np.sum([np.frombuffer(row["visits"], np.int64) for row in counted], axis=0)
    return np.asarray(visits * settings.epochs // passes, np.int64)


def weigh_targets(table: EdgeTable) -> Float64s:
    """Return the total weight of the edges to each vertex, shape (vertices,)."""
    edges = _ends(table.frame, "target")
    if not table.directed:
        edges = edges.union(_ends(table.frame.where("source != target"), "source"))
    ids, weights = _weighed(edges)
    of_vertices = np.zeros(len(table.vertices))
    of_vertices[table.vertices.numbers(ids)] = weights
    return of_vertices


def count_sources(frame: DataFrame, names: Names, scale: float) -> Int64s:
    """Return how often each of some vertices is an edge's source, int64.

    Args:
        frame: source, target and optionally weight.
        scale: occurrences in an epoch per unit of edge weight.
    """
    ids, weights = _weighed(_ends(frame, "source"))
    places, counts = names.positions(ids), np.zeros(len(names), np.int64)
    known = places >= 0
    counts[places[known]] = np.maximum(np.rint(weights[known] * scale), weights[known] > 0)
    return counts


def _ends(frame: DataFrame, end: str) -> DataFrame:
    weight = F.col("weight") if "weight" in frame.columns else F.lit(1.0)
    return frame.select(F.col(end).alias("id"), weight.alias("weight"))


def _weighed(edges: DataFrame) -> tuple[pa.Array, Float64s]:
    """Return ids and the total weight of the edges of each."""
    found = collected(edges.groupBy("id").agg(F.sum("weight").alias("weight")))
    return found.column("id").combine_chunks(), found.column("weight").combine_chunks().to_numpy()
