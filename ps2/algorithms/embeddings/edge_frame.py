"""The edges of a DataFrame: check them by one Spark job, number their vertices, send them to workers or servers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ByteType, DataType, IntegerType, LongType, ShortType, StringType

from ps2.algorithms.embeddings.sentences import EdgeSentences, KeyedSentences
from ps2.algorithms.embeddings.settings import GraphSettings
from ps2.algorithms.embeddings.walks import LocalGraph, ServerGraph
from ps2.algorithms.frame.arrow_batches import blocks_of, from_bytes, to_bytes
from ps2.algorithms.frame.tables import SHOWN_CHARS, check_numbers, column, field
from ps2.array_types import Float64s, Int32s
from ps2.client.dcv import DCV
from ps2.data.ids import Ids
from ps2.errors import InputError
from ps2.run.spark.backend_lookup import backend_of, with_python

Array = npt.NDArray[Any]

# The approximate number of edges whose vertices are numbered at once.
BLOCK_EDGES = 1 << 20
# The integer types of Spark, from narrow to wide, and of Arrow.
INTEGERS: dict[type[DataType], pa.DataType] = {
    ByteType: pa.int8(),
    ShortType: pa.int16(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
}


@dataclass(frozen=True, eq=False)
class Edges:
    """Edges between vertices, which are numbers or keys; positive weights, or None for edges without weights."""

    sources: Array
    targets: Array
    weights: Float64s | None = None

    def both_directions(self) -> Edges:
        """Return these edges and the reverse ones; a loop stays one edge."""
        is_edge = self.sources != self.targets
        sources = np.append(self.sources, self.targets[is_edge])
        targets = np.append(self.targets, self.sources[is_edge])
        return Edges(sources, targets, None if self.weights is None else np.append(self.weights, self.weights[is_edge]))


def edges_of(batches: Iterable[pa.RecordBatch], vertices: Ids) -> Iterator[Edges]:
    """Read edges from columns source, target and optionally weight; skip those of weight 0."""
    for parts in blocks_of((batch for batch in batches if batch.num_rows), lambda batch: batch.num_rows, BLOCK_EDGES):
        block = pa.Table.from_batches(parts)
        sources, targets = (vertices.numbers(block.column(i).combine_chunks()) for i in (0, 1))
        yield _positive(sources, targets, block)


def _positive(sources: Array, targets: Array, columns: pa.Table | pa.RecordBatch) -> Edges:
    """Return the edges whose weight, the third column if there is one, is above 0."""
    if columns.num_columns == 2:
        return Edges(sources, targets)
    weights = columns.column(2).to_numpy()
    is_positive = weights > 0
    return Edges(sources[is_positive], targets[is_positive], weights[is_positive])


@dataclass(frozen=True, eq=False)
class EdgeTable:
    """Checked edges.

    Attributes:
        frame: columns source, target and, if edges have weights, weight (double).
        id_type: the type of the vertices' ids.
        rows: the number of rows.
        vertices: the vertices of all edges, also of edges with weight 0.
    """

    frame: DataFrame
    id_type: DataType
    rows: int
    weighted: bool
    directed: bool
    vertices: Ids

    @property
    def arrow_id_type(self) -> pa.DataType:
        """The type of the vertices' ids as an Arrow type."""
        return INTEGERS.get(type(self.id_type), pa.string())

    @property
    def max_edges(self) -> int:
        """An upper bound of the number of directed edges."""
        return self.rows if self.directed else 2 * self.rows

    def local(self) -> LocalGraph:
        """Collect the graph into the driver."""
        rows = self._through(_as_bytes, "edges binary").collect()
        table = pa.concat_tables([from_bytes(row["edges"]) for row in rows])
        edges = Edges(*(values.to_numpy() for values in table.columns))
        if not self.directed:
            edges = edges.both_directions()
        return LocalGraph.from_edges(edges.sources, edges.targets, edges.weights, len(self.vertices))

    def on_fleet(self, servers: int) -> ServerGraph:
        """Push the graph to the servers from the tasks that read its edges, without a shuffle."""
        with ExitStack() as cleanup:
            counts = DCV.dense(len(self.vertices), 1, "int64")
            cleanup.callback(counts.free)
            self._for_each(lambda edges: counts.add(np.ones(len(edges.sources), np.int64), edges.sources))
            degrees = counts.pull()
        # Tasks have handles, too, so the graph is not freed with the driver's handles: a failure has to free it.
        with ExitStack() as cleanup:
            graph = ServerGraph.empty(degrees, self.weighted, servers)
            cleanup.callback(graph.free)
            self._for_each(lambda edges: graph.add(edges.sources, edges.targets, edges.weights))
            graph.finish(degrees)
            cleanup.pop_all()
        return graph

    def _for_each(self, use: Callable[[Edges], Any]) -> None:
        """Call a function in tasks with all edges, a block at a time."""
        directed = self.directed

        def use_blocks(blocks: Iterator[Edges]) -> Iterator[pa.RecordBatch]:
            for edges in blocks:
                use(edges if directed else edges.both_directions())
                yield pa.RecordBatch.from_pydict({"edges": [len(edges.sources)]})

        self._through(use_blocks, "edges long").collect()

    def _through(self, make: Callable[[Iterator[Edges]], Iterator[pa.RecordBatch]], schema: str) -> DataFrame:
        vertices = backend_of(self.frame).broadcast(self.vertices)

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from make(edges_of(batches, vertices.value))

        return with_python(self.frame).mapInArrow(run, schema)


def survey_edges(frame: DataFrame, settings: GraphSettings) -> EdgeTable:
    """Check edges and number their vertices; raise InputError like ``check_edges``."""
    edges, kind, rows = check_edges(frame, settings)
    ids = edges.select(F.col("source").alias("id")).union(edges.select(F.col("target").alias("id"))).distinct()
    vertices = Ids.from_values(collect_arrow(ids).column(0).combine_chunks())
    return EdgeTable(edges, kind, rows, bool(settings.weightCol), settings.directed, vertices)


def check_edges(frame: DataFrame, settings: GraphSettings) -> tuple[DataFrame, DataType, int]:
    """Return the columns of ``EdgeTable.frame``, the type of ids, and the number of edges.

    Raise InputError for an unusable column, an invalid id or weight, or no edges.
    """
    kind = id_type(frame, settings.srcCol, settings.dstCol)
    columns = [column(settings.srcCol).cast(kind).alias("source"), column(settings.dstCol).cast(kind).alias("target")]
    if settings.weightCol:
        check_numbers(frame, settings.weightCol, "weights")
        columns.append(column(settings.weightCol).cast("double").alias("weight"))
    edges = frame.select(*columns)
    return edges, kind, _count(edges, settings)


def id_type(frame: DataFrame, source: str, target: str) -> DataType:
    """Return the type of ids in two columns, the wider of two integer types; raise InputError unless both columns have
    integers, or both have strings."""
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
    """Return the number of edges; raise InputError if there are none, or one is invalid."""
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
            "negative": (f"{expected} negative ones", weight < 0),
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
    if not np.isfinite(2 * counts["total"]):  # an undirected edge counts at both of its ends
        raise InputError(f"column {settings.weightCol!r}: the sum of its weights exceeds float64's range")
    return int(counts["rows"])


def collect_arrow(frame: DataFrame) -> pa.Table:
    """Collect all rows as Arrow batches."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            encoded = pa.array([to_bytes(pa.Table.from_batches([batch]))], pa.binary())
            yield pa.RecordBatch.from_pydict({"batch": encoded})

    parts = [from_bytes(row[0]) for row in with_python(frame).mapInArrow(run, "batch binary").collect()]
    return pa.concat_tables(parts) if parts else to_arrow_schema(frame.schema).empty_table()


def _as_bytes(blocks: Iterator[Edges]) -> Iterator[pa.RecordBatch]:
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
    """Checked edges without a list of their vertices. An epoch has ``edges`` directed edges, of total weight
    ``weight``."""

    frame: DataFrame
    rows: int
    edges: int
    weight: float
    directed: bool


def survey_keyed_edges(frame: DataFrame, settings: GraphSettings) -> KeyedEdges:
    """Check edges in two Spark jobs. Raise InputError like ``check_edges``, also if ids are strings or negative, if
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


@dataclass(frozen=True)
class EdgeReader:
    """Makes a worker's sentences from its rows. In an epoch, all workers together have ``edges`` edges, of total weight
    ``weight``."""

    directed: bool
    edges: int
    weight: float
    seed: int

    def join(self, parts: Iterable[Edges]) -> Edges:
        """Return all edges as one object; undirected edges in both directions."""
        joined = [part if self.directed else part.both_directions() for part in parts]
        if not joined:
            return Edges(np.empty(0, np.int32), np.empty(0, np.int32))
        sources, targets = (np.concatenate([getattr(part, name) for part in joined]) for name in ("sources", "targets"))
        weights = [part.weights for part in joined if part.weights is not None]
        return Edges(sources, targets, np.concatenate(weights) if weights else None)

    def sentences(self, edges: Edges, rank: int) -> EdgeSentences:
        """Return the sentences of edges between numbered vertices, int32."""
        count = len(edges.sources)
        if edges.weights is not None:
            count = round(self.edges * float(edges.weights.sum()) / self.weight)
        return EdgeSentences(edges.sources, edges.targets, edges.weights, count, self.seed, rank)


@dataclass(frozen=True)
class ReadEdges(EdgeReader):
    """Reads edges between numbered vertices. Tasks call ``vertices``, and ``numbers`` for the vertices' numbers in the
    training."""

    vertices: Callable[[], Ids]
    numbers: Callable[[], Int32s]

    def __call__(self, worker: Any, batches: Iterable[pa.RecordBatch]) -> EdgeSentences:
        numbers = self.numbers()
        parts = edges_of(batches, self.vertices())
        numbered = (Edges(numbers[part.sources], numbers[part.targets], part.weights) for part in parts)
        return self.sentences(self.join(numbered), worker.rank)


class ReadKeys(EdgeReader):
    """Reads edges between keys, which the worker numbers."""

    def __call__(self, worker: Any, batches: Iterable[pa.RecordBatch]) -> KeyedSentences:
        edges = self.join(self._edges(batch) for batch in batches if batch.num_rows)
        keys, numbers = np.unique(np.concatenate([edges.sources, edges.targets]), return_inverse=True)
        sources, targets = np.split(numbers.astype(np.int32), 2)
        occurrences = np.bincount(targets, edges.weights, minlength=len(keys)) * (self.edges / self.weight)
        frequencies = np.maximum(np.rint(occurrences).astype(np.int64), occurrences > 0)
        sentences = self.sentences(Edges(sources, targets, edges.weights), worker.rank)
        if not len(keys):  # without a word there is no vocabulary
            keys, frequencies = np.zeros(1, np.int64), np.zeros(1, np.int64)
        return KeyedSentences(sentences, keys, frequencies)

    def _edges(self, batch: pa.RecordBatch) -> Edges:
        sources, targets = (batch.column(i).cast(pa.int64()).to_numpy() for i in (0, 1))
        return _positive(sources, targets, batch)
