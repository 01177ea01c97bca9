"""Edges in the columns of a DataFrame: checked by one Spark aggregation, numbered, and moved to workers or servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BooleanType, ByteType, DataType, IntegerType, LongType, NumericType, ShortType, StringType

from ps2.algorithms.embeddings.edges import Edges, edges_of
from ps2.algorithms.embeddings.server_graph import ServerGraph
from ps2.algorithms.embeddings.walks import LocalGraph
from ps2.algorithms.estimators.tables import column, field
from ps2.client.dcv import DCV
from ps2.data.ids import Ids
from ps2.errors import InputError
from ps2.run.spark.backend_lookup import backend_of, with_python

# From narrow to wide: types of Spark and of Arrow.
INTEGERS: dict[type[DataType], pa.DataType] = {
    ByteType: pa.int8(),
    ShortType: pa.int16(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
}
SHOWN_CHARS = 200


@dataclass(frozen=True)
class EdgeColumns:
    """Names of the columns of edges."""

    source: str
    target: str
    weight: str | None


@dataclass(frozen=True, eq=False)
class EdgeTable:
    """Checked edges.

    Attributes:
        frame: source, target and, if edges have weights, weight (double).
        id: the given type of vertex ids.
        rows: number of rows.
        weighted: whether edges have weights.
        directed: whether edges have one direction.
        vertices: of all edges, those of weight 0 included.
    """

    frame: DataFrame
    id: DataType
    rows: int
    weighted: bool
    directed: bool
    vertices: Ids

    @property
    def arrow_id(self) -> pa.DataType:
        """``id`` as an Arrow type."""
        return INTEGERS.get(type(self.id), pa.string())

    @property
    def most_edges(self) -> int:
        """Upper bound of directed edges."""
        return self.rows if self.directed else 2 * self.rows

    def local(self) -> LocalGraph:
        """Collect the graph into the driver."""
        rows = self._through(_as_bytes, "sources binary, targets binary, weights binary").collect()
        sources, targets = (_joined(rows, name, np.int32) for name in ("sources", "targets"))
        edges = Edges(sources, targets, _joined(rows, "weights", np.float64) if self.weighted else None)
        if not self.directed:
            edges = edges.both_directions()
        return LocalGraph.of(edges.sources, edges.targets, edges.weights, len(self.vertices))

    def on_fleet(self, servers: int) -> ServerGraph:
        """Push the graph to the servers from the tasks that read it, without a shuffle.

        Raises:
            LimitError: it does not fit.
        """
        with ExitStack() as taken:
            counts = DCV.dense(len(self.vertices), 1, "int64")
            taken.callback(counts.free)
            self._each(lambda edges: counts.add(np.ones(len(edges.sources), np.int64), edges.sources))
            degrees = counts.pull()
        # Tasks have handles to it, so the end of the driver's handles does not free it.
        with ExitStack() as taken:
            graph = ServerGraph.empty(degrees, self.weighted, servers)
            taken.callback(graph.free)
            self._each(lambda edges: graph.add(edges.sources, edges.targets, edges.weights))
            graph.finish(degrees)
            taken.pop_all()
        return graph

    def _each(self, use: Callable[[Edges], Any]) -> None:
        """Call a function in tasks with all edges, some at a time."""
        directed = self.directed

        def used(edges: Iterator[Edges]) -> Iterator[pa.RecordBatch]:
            for some in edges:
                use(some if directed else some.both_directions())
                yield pa.RecordBatch.from_pydict({"edges": [len(some.sources)]})

        self._through(used, "edges long").collect()

    def _through(self, make: Callable[[Iterator[Edges]], Iterator[pa.RecordBatch]], schema: str) -> DataFrame:
        vertices = backend_of(self.frame).broadcast(self.vertices)

        def made(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from make(edges_of(batches, vertices.value))

        return with_python(self.frame).mapInArrow(made, schema)


def look(frame: DataFrame, columns: EdgeColumns, directed: bool) -> EdgeTable:
    """Check edges and number their vertices; raises as ``checked`` does."""
    edges, kind, rows = checked(frame, columns)
    ids = edges.select(F.col("source").alias("id")).union(edges.select(F.col("target").alias("id"))).distinct()
    vertices = Ids.from_values(collected(ids).column(0).combine_chunks())
    return EdgeTable(edges, kind, rows, columns.weight is not None, directed, vertices)


def checked(frame: DataFrame, columns: EdgeColumns) -> tuple[DataFrame, DataType, int]:
    """Check edges.

    Returns:
        Source, target and, if edges have weights, weight (double); the type of ids; the number of edges.

    Raises:
        InputError: a column is missing or of another type; there are no edges; or an id is null, or a weight is null,
            NaN, infinite or negative. Counts such rows and shows one.
    """
    kind = id_type(frame, columns.source, columns.target)
    names = [column(columns.source).cast(kind).alias("source"), column(columns.target).cast(kind).alias("target")]
    if columns.weight is not None:
        _check_weights(frame, columns.weight)
        names.append(column(columns.weight).cast("double").alias("weight"))
    edges = frame.select(*names)
    return edges, kind, _count(edges, columns)


def id_type(frame: DataFrame, source: str, target: str) -> DataType:
    """Return the type of ids: that of both columns; of two integer types, the wider.

    Raises:
        InputError: a column is missing, or the columns are not both integers or both strings.
    """
    types = [field(frame, name).dataType for name in (source, target)]
    if all(isinstance(found, StringType) for found in types):
        return StringType()
    if all(type(found) in INTEGERS for found in types):
        return max(types, key=lambda found: list(INTEGERS).index(type(found)))
    raise InputError(
        f"columns {source!r} and {target!r}: expected ids, integers in both or strings in both, got "
        f"{types[0].simpleString()} and {types[1].simpleString()}"
    )


def _check_weights(frame: DataFrame, name: str) -> None:
    weight = field(frame, name).dataType
    if not isinstance(weight, (NumericType, BooleanType)):
        raise InputError(f"column {name!r}: expected numbers as weights, got {weight.simpleString()}")


def _count(edges: DataFrame, columns: EdgeColumns) -> int:
    """Return the number of edges; raise InputError if there are none, or one is invalid."""
    weight = F.col("weight")
    faults: dict[str, tuple[str, Any]] = {
        "source": (f"column {columns.source!r}: expected ids, got null", F.col("source").isNull()),
        "target": (f"column {columns.target!r}: expected ids, got null", F.col("target").isNull()),
    }
    if columns.weight is not None:
        expected = f"column {columns.weight!r}: expected finite numbers that are not negative, got"
        faults |= {
            "null": (f"{expected} null", weight.isNull()),
            "NaN": (f"{expected} NaN", F.isnan(weight)),
            "infinite": (f"{expected} infinity", F.abs(weight) == float("inf")),
            "negative": (f"{expected} negative ones", weight < 0),
        }
    sums = [F.sum(F.coalesce(wrong, F.lit(False)).cast("long")).alias(name) for name, (_, wrong) in faults.items()]
    total = F.sum("weight") if columns.weight is not None else F.lit(0.0)
    found = edges.agg(F.count("*").alias("rows"), total.alias("total"), *sums).first()
    assert found is not None
    if not found["rows"]:
        raise InputError("expected edges, got an empty DataFrame")
    for name, (message, wrong) in faults.items():
        if found[name]:
            row = str(edges.where(wrong).first())[:SHOWN_CHARS]
            raise InputError(f"{message} in {found[name]} of {found['rows']} rows; such a row: {row}")
    if not np.isfinite(2 * found["total"]):  # an undirected edge counts at both of its ends
        raise InputError(f"column {columns.weight!r}: its weights add up to more than a float64 holds")
    return int(found["rows"])


def collected(frame: DataFrame) -> pa.Table:
    """Collect all rows as Arrow batches."""

    def packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as stream:
                stream.write_batch(batch)
            yield pa.RecordBatch.from_pydict({"batch": pa.array([sink.getvalue().to_pybytes()], pa.binary())})

    parts = [
        pa.ipc.open_stream(row[0]).read_all() for row in with_python(frame).mapInArrow(packed, "batch binary").collect()
    ]
    return pa.concat_tables(parts) if parts else to_arrow_schema(frame.schema).empty_table()


def _as_bytes(edges: Iterator[Edges]) -> Iterator[pa.RecordBatch]:
    for some in edges:
        arrays: dict[str, npt.NDArray[Any]] = {
            "sources": some.sources.astype(np.int32),
            "targets": some.targets.astype(np.int32),
            "weights": np.empty(0) if some.weights is None else some.weights,
        }
        cells = {name: pa.array([array.tobytes()], pa.binary()) for name, array in arrays.items()}
        yield pa.RecordBatch.from_pydict(cells)


def _joined(rows: Sequence[Any], name: str, dtype: type) -> Any:
    return np.concatenate([np.empty(0, dtype), *(np.frombuffer(row[name], dtype) for row in rows)])
