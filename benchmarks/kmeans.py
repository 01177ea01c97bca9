"""K-means beside pyspark.ml's: seconds of ``fit`` and cost, on sparse and dense rows.

docs/performance/representations.md says how to read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import scipy.sparse as sp

from benchmarks import frame
from benchmarks.frame import Benchmark, Check, Line, Part, option, tell, timed
from benchmarks.local_spark import DAEMON, WORKERS, cached, spark_and_servers
from ps2.algorithms.clustering import KMeans
from ps2.algorithms.clusters.model import KMeansClusters
from ps2.data.rows import Rows

ITERATIONS, GOAL, MAX_COST = 5, 3.0, 1.005
# Sparse rows: hidden groups, columns that a group has, stored values of a row, all columns.
GROUPS, OF_GROUP, ENTRIES, COLUMNS = 2_000, 200, 50, 100_000
DENSE = 28
# Makes vectors of the numbers of rows.
Batch = Callable[[Any], pa.Array]


@dataclass(frozen=True)
class Args(frame.Args):
    rounds: int = option(1, "Turns that the medians are of.", least=1)
    rows: int = option(200_000, "Rows, sparse and dense.", least=1000)
    clusters: int = option(1000, "k.", least=2)
    memory: str = option("6g", "Memory of Spark's JVM.")


def sparse(args: Args) -> Part:
    """Compare k-means of sparse rows with pyspark.ml's."""
    return _compared("sparse", _sparse, args)


def dense(args: Args) -> Part:
    """Compare k-means of dense rows with pyspark.ml's."""
    return _compared("dense", _dense, args)


def _compared(what: str, batch: Batch, args: Args) -> Part:
    """Fit in turns; both begin with rows drawn at random, and take as many iterations."""
    from pyspark.ml.clustering import KMeans as Theirs

    seconds: dict[type, list[float]] = {KMeans: [], Theirs: []}
    costs: dict[type, float] = {}
    with spark_and_servers("kmeans", args.memory, settings=DAEMON) as (spark, _):
        frame = cached(_frame(spark, args.rows, batch), None)
        few = cached(frame.limit(2_000).coalesce(1), None)
        x = Rows.fromBatches(frame.toArrow().to_batches(), label=None).x
        for turn in range(args.rounds + 1):
            for kind, taken in seconds.items():
                params: dict[str, Any] = {"initMode": "random", "maxIter": ITERATIONS, "tol": 0.0, "seed": turn}
                if not turn:
                    kind(k=10, **params).fit(few)
                    continue
                model, fit_s = timed(kind(k=args.clusters, **params).fit, frame)
                taken.append(fit_s)
                costs[kind] = KMeansClusters(np.stack(model.clusterCenters())).cost(x)
                tell(f"{what}, {kind.__module__.split('.')[0]}: {fit_s:.2f} s, cost {costs[kind]:,.1f}")
    line = Line(f"{what} rows: fit of k-means", "pyspark.ml", "s", GOAL, seconds[Theirs], seconds[KMeans])
    check = Check(f"{what} rows: cost over pyspark.ml's", costs[KMeans] / costs[Theirs], MAX_COST)
    return Part([line], [check], {"iterations": ITERATIONS, "workers": WORKERS})


def _frame(spark: Any, rows: int, batch: Batch) -> Any:
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql.types import StructField, StructType

    def make(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for ids in batches:
            yield pa.RecordBatch.from_arrays([batch(np.asarray(ids.column(0)))], ["features"])

    kind = StructType([StructField("features", VectorUDT())])
    return spark.range(0, rows, 1, WORKERS).mapInArrow(make, kind)


def _sparse(ids: Any) -> pa.Array:
    """Return vectors whose columns are mostly those of a hidden group."""
    rng, n = np.random.default_rng(int(ids[0])), len(ids)
    of_groups = np.random.default_rng(7).integers(0, COLUMNS, (GROUPS, OF_GROUP))
    groups = rng.integers(0, GROUPS, (n, 1))
    own = of_groups[groups, rng.integers(0, OF_GROUP, (n, ENTRIES))]
    columns = np.where(rng.random((n, ENTRIES)) < 0.8, own, rng.integers(0, COLUMNS, (n, ENTRIES)))
    counts = sp.csr_array((np.ones(columns.size), columns.ravel(), np.arange(n + 1) * ENTRIES), shape=(n, COLUMNS))
    counts.sum_duplicates()
    ends, entries = counts.indptr.astype(np.int32), (counts.indices.astype(np.int32), counts.data)
    lists = [pa.ListArray.from_arrays(ends, part) for part in entries]
    return _vectors(np.zeros(n, np.int8), pa.array(np.full(n, COLUMNS, np.int32)), *lists)


def _dense(ids: Any) -> pa.Array:
    """Return vectors near hidden centres."""
    rng, n = np.random.default_rng(int(ids[0])), len(ids)
    values = np.random.default_rng(7).normal(size=(GROUPS, DENSE))[rng.integers(0, GROUPS, n)]
    values += rng.normal(scale=0.3, size=values.shape)
    lists = pa.ListArray.from_arrays(np.arange(0, values.size + 1, DENSE, dtype=np.int32), values.ravel())
    return _vectors(np.ones(n, np.int8), pa.nulls(n, pa.int32()), pa.nulls(n, pa.list_(pa.int32())), lists)


def _vectors(kinds: Any, sizes: pa.Array, indices: pa.Array, values: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays([pa.array(kinds), sizes, indices, values], ["type", "size", "indices", "values"])


BENCHMARK = Benchmark("kmeans", Args, {"sparse": sparse, "dense": dense})

if __name__ == "__main__":
    BENCHMARK.main()
