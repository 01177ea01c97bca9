"""Graphs in DataFrames of edges: check edges, list vertices, send graphs to workers or servers, compute walks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from ps2.algorithms.embeddings.sentences import Edges, edges_of
from ps2.algorithms.embeddings.settings import BiasedWalkSettings, GraphSettings
from ps2.algorithms.embeddings.walks import Graph, LocalGraph, ServerGraph, Walks, walks_of
from ps2.algorithms.frame.arrow_batches import collect_arrow, from_bytes, to_bytes
from ps2.algorithms.frame.settings import with_values
from ps2.algorithms.frame.tables import SHOWN_CHARS, check_numbers, column, field
from ps2.array_types import Float64s, Int64s
from ps2.client.dcv import DCV
from ps2.coordinator.context import PS2Context
from ps2.data.ids import Ids, Names
from ps2.errors import InputError
from ps2.run.spark.backend_lookup import backend_of, with_python

Array = npt.NDArray[Any]

# Spark's integer types, from narrow to wide, with Arrow's types.
INTEGERS: dict[type[DataType], pa.DataType] = {
    ByteType: pa.int8(),
    ShortType: pa.int16(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
}
# The approximate number of visits from which vertices' frequencies are estimated, unless an epoch has fewer.
ENOUGH_VISITS = 1 << 20
# The maximum bytes of a graph that graphOn="auto" sends to each worker; larger graphs are stored on the servers.
MAX_WORKER_BYTES = 256 << 20
# The approximate number of ids in an Arrow batch of walks.
BATCH_IDS = 1 << 20


@dataclass(frozen=True, eq=False)
class EdgeTable:
    """Checked edges.

    Attributes:
        frame: columns source, target and, if edges have weights, weight (double).
        id_type: the Spark type of the vertices' ids.
        directed: whether edges lead only from source to target.
        vertices: the vertices of all edges, including edges of weight 0.
    """

    frame: DataFrame
    id_type: DataType
    rows: int
    weighted: bool
    directed: bool
    vertices: Ids

    @property
    def arrow_id_type(self) -> pa.DataType:
        """The Arrow type of the vertices' ids."""
        return INTEGERS.get(type(self.id_type), pa.string())

    @property
    def max_edges(self) -> int:
        """The maximum number of directed edges; an undirected edge counts as two."""
        return self.rows if self.directed else 2 * self.rows

    def local(self) -> LocalGraph:
        """Collect the graph into the driver."""
        rows = self._map_edges(_as_bytes, "edges binary").collect()
        table = pa.concat_tables([from_bytes(row["edges"]) for row in rows])
        edges = Edges(*(values.to_numpy() for values in table.columns))
        if not self.directed:
            edges = edges.both_directions()
        return LocalGraph.from_edges(edges.sources, edges.targets, edges.weights, len(self.vertices))

    def on_fleet(self, servers: int) -> ServerGraph:
        """Send the graph to ``servers`` servers, from the tasks that read its edges, without a shuffle."""
        with ExitStack() as cleanup:
            counts = DCV.dense(len(self.vertices), 1, "int64")
            cleanup.callback(counts.free)
            self._for_each(lambda edges: counts.add(np.ones(len(edges.sources), np.int64), edges.sources))
            degrees = counts.pull()
        # After a failure, the graph must be freed explicitly: handles in tasks would keep it alive.
        with ExitStack() as cleanup:
            graph = ServerGraph.empty(degrees, self.weighted, servers)
            cleanup.callback(graph.free)
            self._for_each(lambda edges: graph.add(edges.sources, edges.targets, edges.weights))
            graph.finish(degrees)
            cleanup.pop_all()
        return graph

    def _for_each(self, use: Callable[[Edges], Any]) -> None:
        """Call ``use`` in tasks with all edges, a block at a time."""
        directed = self.directed

        def use_blocks(blocks: Iterator[Edges]) -> Iterator[pa.RecordBatch]:
            for edges in blocks:
                use(edges if directed else edges.both_directions())
                yield pa.RecordBatch.from_pydict({"edges": [len(edges.sources)]})

        self._map_edges(use_blocks, "edges long").collect()

    def _map_edges(self, convert: Callable[[Iterator[Edges]], Iterator[pa.RecordBatch]], schema: str) -> DataFrame:
        """Return a DataFrame of the batches that ``convert`` makes from a task's edges between vertex indices."""
        vertices = backend_of(self.frame).broadcast(self.vertices)

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from convert(edges_of(batches, vertices.value))

        return with_python(self.frame).mapInArrow(run, schema)


def survey_edges(frame: DataFrame, settings: GraphSettings) -> EdgeTable:
    """Check edges and list their vertices; raise InputError like ``check_edges``."""
    edges, kind, rows = check_edges(frame, settings)
    ids = edges.select(F.col("source").alias("id")).union(edges.select(F.col("target").alias("id"))).distinct()
    vertices = Ids.from_values(collect_arrow(ids).column(0).combine_chunks())
    return EdgeTable(edges, kind, rows, bool(settings.weightCol), settings.directed, vertices)


def check_edges(frame: DataFrame, settings: GraphSettings) -> tuple[DataFrame, DataType, int]:
    """Return ``EdgeTable.frame``'s columns, the type of ids, and the number of edges; raise InputError if invalid."""
    kind = id_type(frame, settings.srcCol, settings.dstCol)
    columns = [column(settings.srcCol).cast(kind).alias("source"), column(settings.dstCol).cast(kind).alias("target")]
    if settings.weightCol:
        check_numbers(frame, settings.weightCol, "weights")
        columns.append(column(settings.weightCol).cast("double").alias("weight"))
    edges = frame.select(*columns)
    return edges, kind, _count(edges, settings)


def id_type(frame: DataFrame, source: str, target: str) -> DataType:
    """Return the common type of ids, the wider of two integer types; raise InputError if there is none."""
    types = [field(frame, name).dataType for name in (source, target)]
    if all(isinstance(kind, StringType) for kind in types):
        return StringType()
    if all(type(kind) in INTEGERS for kind in types):
        return max(types, key=lambda kind: list(INTEGERS).index(type(kind)))
    raise InputError(
        f"columns {source!r} and {target!r}: expected ids, integers in both or strings in both, got "
        f"{types[0].simpleString()} and {types[1].simpleString()}"
    )


def _count(edges: DataFrame, settings: GraphSettings) -> int:
    """Return the number of edges; raise InputError if there are no edges, or an edge is invalid."""
    weight = F.col("weight")
    faults: dict[str, tuple[str, Any]] = {
        "source": (f"column {settings.srcCol!r}: expected ids, got null", F.col("source").isNull()),
        "target": (f"column {settings.dstCol!r}: expected ids, got null", F.col("target").isNull()),
    }
    if settings.weightCol:
        expected = f"column {settings.weightCol!r}: expected finite numbers that are not negative, got"
        faults |= {
            "null": (f"{expected} null", weight.isNull()),
            "NaN": (f"{expected} NaN", F.isnan(weight)),
            "infinite": (f"{expected} infinity", F.abs(weight) == float("inf")),
            "negative": (f"{expected} negative weights", weight < 0),
        }
    sums = [F.sum(F.coalesce(fault, F.lit(False)).cast("long")).alias(name) for name, (_, fault) in faults.items()]
    total = F.sum("weight") if settings.weightCol else F.lit(0.0)
    counts = edges.agg(F.count("*").alias("rows"), total.alias("total"), *sums).first()
    assert counts is not None
    if not counts["rows"]:
        raise InputError("expected edges, got an empty DataFrame")
    for name, (message, fault) in faults.items():
        if counts[name]:
            row = str(edges.where(fault).first())[:SHOWN_CHARS]
            raise InputError(f"{message} in {counts[name]} of {counts['rows']} rows; such a row: {row}")
    if not np.isfinite(2 * counts["total"]):  # an undirected edge counts for both of its vertices
        raise InputError(f"column {settings.weightCol!r}: the sum of its weights exceeds float64's range")
    return int(counts["rows"])


def _as_bytes(blocks: Iterator[Edges]) -> Iterator[pa.RecordBatch]:
    """Yield each block of edges as an Arrow stream in the column ``edges``."""
    for edges in blocks:
        columns: dict[str, Array] = {
            "sources": edges.sources.astype(np.int32),
            "targets": edges.targets.astype(np.int32),
        }
        if edges.weights is not None:
            columns["weights"] = edges.weights
        yield pa.RecordBatch.from_pydict({"edges": [to_bytes(pa.table(columns))]})


@dataclass(frozen=True, eq=False)
class KeyedEdges:
    """Checked edges without a list of vertices; ``edges`` and ``weight`` are those of an epoch's directed edges."""

    frame: DataFrame
    rows: int
    edges: int
    weight: float
    directed: bool


def survey_keyed_edges(frame: DataFrame, settings: GraphSettings) -> KeyedEdges:
    """Check edges in two Spark jobs. Raise InputError like ``check_edges``, and if ids are strings or negative, if
    there is only one vertex, or if all edges have weight 0."""
    edges, kind, rows = check_edges(frame, settings)
    if isinstance(kind, StringType):
        raise InputError(
            f"columns {settings.srcCol!r} and {settings.dstCol!r}: expected integers, to be hashed, got strings"
        )
    weighted, directed = bool(settings.weightCol), settings.directed
    directions = F.lit(1) if directed else F.when(F.col("source") == F.col("target"), 1).otherwise(2)
    weight = F.sum(directions * F.col("weight")) if weighted else F.sum(directions)
    min_id, max_id = F.least(F.min("source"), F.min("target")), F.greatest(F.max("source"), F.max("target"))
    totals = edges.agg(weight.alias("weight"), min_id.alias("min"), max_id.alias("max")).first()
    assert totals is not None
    if totals["min"] < 0:
        raise InputError(f"expected ids that are not negative, to be hashed, got {totals['min']}")
    if totals["min"] == totals["max"]:
        raise InputError("expected at least two vertices, got one")
    if not totals["weight"]:
        raise InputError("expected edges, got none of a weight above 0")
    count = (rows if directed else 2 * rows) if weighted else int(totals["weight"])
    return KeyedEdges(edges, rows, count, float(totals["weight"]), directed)


@dataclass(frozen=True, eq=False)
class PlacedGraph:
    """A graph on the workers or the servers. ``get_graph`` returns it in tasks, until ``free`` is called."""

    get_graph: Callable[[], Graph]
    free: Callable[[], None]
    on_servers: bool


def place_graph(table: EdgeTable, graph_on: str, servers: int | None) -> PlacedGraph:
    """Send a graph to workers or servers, as ``graphOn`` says; start ``servers`` (None: the default) if needed."""
    spark = table.frame.sparkSession
    pack_length = table.max_edges + len(table.vertices) + 1
    fits_worker = pack_length * (4 + 8 * table.weighted) <= MAX_WORKER_BYTES
    if graph_on == "servers" or (graph_on == "auto" and not fits_worker):
        ps = PS2Context.getOrCreate(spark, servers)
        graph = table.on_fleet(len(ps.servers))
        return PlacedGraph(lambda: graph, graph.free, on_servers=True)
    broadcast = backend_of(spark).broadcast(table.local())
    return PlacedGraph(lambda: broadcast.value, broadcast.unpersist, on_servers=False)


def count_visits(
    table: EdgeTable, get_graph: Callable[[], Graph], settings: BiasedWalkSettings, workers: int
) -> Int64s:
    """Estimate the number of visits of an epoch's walks to each vertex, from a sample of the walks."""
    vertices = len(table.vertices)
    passes = min(settings.numWalks, -(-ENOUGH_VISITS // (vertices * settings.walkLength)))
    sample_settings = with_values(settings, numWalks=passes)

    def count(rank: int) -> Iterator[pa.RecordBatch]:
        visits = np.zeros(vertices, np.int64)
        for walks in walks_of(get_graph(), sample_settings, rank, workers):
            visits += np.bincount(walks.block(0, len(walks.walkers))[0], minlength=vertices)
        yield pa.RecordBatch.from_pydict({"visits": pa.array([visits.tobytes()], pa.binary())})

    rows = _for_each_rank(table, workers, count, "visits binary").collect()
    visits = np.sum([np.frombuffer(row["visits"], np.int64) for row in rows], axis=0)
    return np.asarray(visits * settings.numWalks // passes, np.int64)


def weigh_targets(table: EdgeTable) -> Float64s:
    """Return the total weight of the edges to each vertex, shape (vertices,)."""
    edges = _endpoints(table.frame, "target")
    if not table.directed:
        edges = edges.union(_endpoints(table.frame.where("source != target"), "source"))
    ids, weights = _weigh(edges)
    vertex_weights = np.zeros(len(table.vertices))
    vertex_weights[table.vertices.numbers(ids)] = weights
    return vertex_weights


def count_sources(frame: DataFrame, names: Names, scale: float) -> Int64s:
    """Return the number of edges from each vertex in an epoch, which has ``scale`` edges per unit of weight."""
    ids, weights = _weigh(_endpoints(frame, "source"))
    positions, counts = names.positions(ids), np.zeros(len(names), np.int64)
    is_known = positions >= 0
    counts[positions[is_known]] = np.maximum(np.rint(weights[is_known] * scale), weights[is_known] > 0)
    return counts


def _endpoints(frame: DataFrame, end: str) -> DataFrame:
    """Return the id of each edge's ``end`` ("source" or "target"), and the edge's weight."""
    weight = F.col("weight") if "weight" in frame.columns else F.lit(1.0)
    return frame.select(F.col(end).alias("id"), weight.alias("weight"))


def _weigh(edges: DataFrame) -> tuple[pa.Array, Float64s]:
    """Return the distinct ids, and the total weight of each id's edges."""
    totals = collect_arrow(edges.groupBy("id").agg(F.sum("weight").alias("weight")))
    return totals.column("id").combine_chunks(), totals.column("weight").combine_chunks().to_numpy()


def walks_frame(
    table: EdgeTable, get_graph: Callable[[], Graph], settings: BiasedWalkSettings, workers: int
) -> DataFrame:
    """Return columns ``epoch`` and ``walk``, ordered by epoch and first vertex; ``workers`` tasks compute them."""
    ids = ArrayType(table.id_type, False)
    schema = StructType([StructField("epoch", IntegerType(), False), StructField("walk", ids, False)])
    arrow_id_type = table.arrow_id_type
    vertices = backend_of(table.frame).broadcast(table.vertices)

    def walk(rank: int) -> Iterator[pa.RecordBatch]:
        for walks in walks_of(get_graph(), settings, rank, workers):
            yield from _batches(walks, vertices.value, arrow_id_type)

    return _for_each_rank(table, workers, walk, schema)


def _for_each_rank(
    table: EdgeTable, workers: int, compute: Callable[[int], Iterator[pa.RecordBatch]], schema: Any
) -> DataFrame:
    """Return a DataFrame of the batches that ``compute`` yields for each rank, in ``workers`` tasks."""

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
