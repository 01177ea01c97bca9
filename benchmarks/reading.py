"""Reading rows from Spark's cache into a worker's arrays, against Arrow's transfer alone.

docs/performance/small.md says how to read it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks import frame
from benchmarks.frame import Benchmark, Line, Part, option, take_turns
from benchmarks.local_spark import DAEMON, WORKERS, cached, spark_and_servers
from ps2 import PS2Context
from ps2.algorithms.frame.frames import as_arrow_structs
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.reading import read

FEATURES, ENTRIES, SPARSE_DIM = 28, 50, 1 << 20
GOAL = 0.4


@dataclass(frozen=True)
class Args(frame.Args):
    rows: int = option(1_000_000, "Dense rows; a tenth are sparse rows.", least=1000)


def reading(args: Args) -> Part:
    """Compare reading with Arrow's transfer."""
    with spark_and_servers("reading", args.memory, settings=DAEMON, servers=1) as (spark, ps):
        return Part([_measured(ps, table, args.rounds) for table in _tables(spark, args.rows)])


@dataclass(frozen=True, eq=False)
class _Table:
    what: str
    frame: Any
    columns: ColumnNames


def _tables(spark: Any, rows: int) -> Iterator[_Table]:
    """Yield tables in Spark's cache, one after the other."""
    few = rows // 10
    yield from _cached(f"dense vectors, {rows:,} x {FEATURES}", vectors(spark, rows, FEATURES, None))
    yield from _cached(f"sparse vectors, {few:,} x {ENTRIES}", vectors(spark, few, ENTRIES, SPARSE_DIM))
    arrays = spark.range(0, rows, 1, WORKERS).selectExpr(
        "cast(id % 2 as double) label", f"transform(sequence(1, {FEATURES}), i -> cast(hash(id, i) as double)) features"
    )
    yield from _cached(f"arrays, {rows:,} x {FEATURES}", arrays)
    names = tuple(f"f{i}" for i in range(FEATURES))
    numbers = spark.range(0, rows, 1, WORKERS).selectExpr(
        "cast(id % 2 as double) label", *(f"cast(hash(id, {i}) as double) {name}" for i, name in enumerate(names))
    )
    yield from _cached(f"columns, {rows:,} x {FEATURES}", numbers, names)


def _cached(what: str, frame: Any, features: str | tuple[str, ...] = "features") -> Iterator[_Table]:
    from pyspark.sql.types import ArrayType

    frame = cached(frame, None)
    is_vector = isinstance(features, str) and not isinstance(frame.schema[features].dataType, ArrayType)
    inputs = frame.withColumn("features", as_arrow_structs(frame["features"])) if is_vector else frame
    yield _Table(what, inputs, ColumnNames(features, "label"))
    frame.unpersist()


def vectors(
    spark: Any, rows: int, entries: int, dim: int | None, partitions: int = WORKERS, counts: bool = False
) -> Any:
    """Return seeded rows of labels and vectors of pyspark.ml: dense ones, or sparse ones of so many columns.

    Values are normally distributed, or ``counts`` from 1 to 3.
    """
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql.types import DoubleType, StructField, StructType

    def make(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield _batch(np.asarray(batch.column(0)), entries, dim, counts)

    kind = StructType([StructField("label", DoubleType()), StructField("features", VectorUDT())])
    return spark.range(0, rows, 1, partitions).mapInArrow(make, kind)


def _batch(ids: Any, entries: int, dim: int | None, counts: bool) -> pa.RecordBatch:
    n, rng = len(ids), np.random.default_rng(int(ids[0]))
    ends = np.arange(0, (n + 1) * entries, entries, dtype=np.int32)
    numbers = rng.integers(1, 4, n * entries).astype(np.float64) if counts else rng.normal(size=n * entries)
    values = pa.ListArray.from_arrays(ends, numbers)
    if dim is None:
        kinds, sizes = np.ones(n, np.int8), pa.nulls(n, pa.int32())
        indices = pa.nulls(n, pa.list_(pa.int32()))
    else:
        step = dim // entries
        result = np.arange(entries) * step + rng.integers(0, step, (n, entries))
        kinds, sizes = np.zeros(n, np.int8), pa.array(np.full(n, dim, np.int32))
        indices = pa.ListArray.from_arrays(ends, result.astype(np.int32).reshape(-1))
    vectors = pa.StructArray.from_arrays(
        [pa.array(kinds), sizes, indices, values], ["type", "size", "indices", "values"]
    )
    return pa.RecordBatch.from_arrays([pa.array((ids % 2).astype(np.float64)), vectors], ["label", "features"])


def _measured(ps: PS2Context, table: _Table, rounds: int) -> Line:
    columns = table.columns

    def transfer(worker: Any, batches: Iterator[Any]) -> float:
        began_s = time.monotonic()
        for _ in batches:
            pass
        return time.monotonic() - began_s

    def reading(worker: Any, batches: Iterator[Any]) -> float:
        began_s = time.monotonic()
        read(batches, columns)
        return time.monotonic() - began_s

    def run(work: Any) -> float:
        return max(ps.run(table.frame, work, workers=WORKERS))

    turns = take_turns({"Arrow": partial(run, transfer), "read": partial(run, reading)}, rounds)
    return Line(f"{table.what}: read", "Arrow's transfer alone", "s", GOAL, turns["Arrow"], turns["read"])


BENCHMARK = Benchmark("reading", Args, {"reading": reading})

if __name__ == "__main__":
    BENCHMARK.main()
