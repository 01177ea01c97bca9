"""K-means beside pyspark.ml's: seconds of ``fit`` and cost, on sparse and dense rows.

    python -m benchmarks.kmeans

docs/performance/representations.md says what is measured and how to read it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyspark
import scipy.sparse as sp

from benchmarks.compared import print_compared
from benchmarks.frame import Check, Part, command, exit_code, machine, print_parts, publish, tell
from benchmarks.local_spark import start_spark
from benchmarks.ml_part import Line
from ps2 import PS2Context
from ps2.algorithms.clustering import KMeans
from ps2.algorithms.clusters.model import KMeansClusters
from ps2.data.rows import Rows

PARTITIONS, ITERATIONS, GOAL, MAX_COST = 2, 5, 3.0, 1.005
# Sparse rows: hidden groups, columns that a group has, stored values of a row, all columns.
GROUPS, OF_GROUP, ENTRIES, COLUMNS = 2_000, 200, 50, 100_000
DENSE, FEW = 28, 2_000
# Makes vectors of the numbers of rows.
Batch = Callable[[Any], pa.Array]


@command(
    click.option("--rounds", type=click.IntRange(1), default=1, help="Turns that the medians are of."),
    click.option("--rows", type=click.IntRange(1000), default=200_000, help="Rows, sparse and dense."),
    click.option("--clusters", type=click.IntRange(2), default=1_000, help="k."),
    click.option("--strict", is_flag=True, help="Exit with 1 if a goal is missed, too."),
)
def main(rounds: int, rows: int, clusters: int, strict: bool, form: str, output: Path | None) -> None:
    """Compare k-means with pyspark.ml's."""
    settings = {"spark.python.daemon.module": "ps2.run.daemon", "spark.driver.memory": "6g"}
    spark = start_spark(f"local[{PARTITIONS}]", "benchmarks.kmeans", settings)
    lines: list[Line] = []
    checks: list[Check] = []
    try:
        with PS2Context.getOrCreate(spark, servers=2):
            for what, batch in (("sparse", _sparse), ("dense", _dense)):
                found = _measured(spark, what, batch, (rows, clusters, rounds))
                lines.append(found[0])
                checks.append(found[1])
    finally:
        spark.stop()
    facts = {"rows": rows, "k": clusters, "iterations": ITERATIONS, "workers": PARTITIONS}
    report = {
        "machine": machine(pyspark=pyspark.__version__),
        "rounds": rounds,
        "parts": {"kmeans": Part(lines, checks, facts).as_json()},
    }
    publish(report, form, output, lambda: print_parts(report, print_compared))
    sys.exit(exit_code(report, strict))


def _measured(spark: Any, what: str, batch: Batch, size: tuple[int, int, int]) -> tuple[Line, Check]:
    """Fit in turns; both begin with rows drawn at random, and take as many iterations."""
    from pyspark.ml.clustering import KMeans as Theirs

    rows, clusters, rounds = size
    frame = _frame(spark, rows, batch).persist()
    frame.count()
    few = frame.limit(FEW).coalesce(1).persist()
    seconds: dict[type, list[float]] = {KMeans: [], Theirs: []}
    costs: dict[type, float] = {}
    x = Rows.fromBatches(frame.toArrow().to_batches(), label=None).x
    for round_ in range(rounds + 1):
        for kind, found in seconds.items():
            k = clusters if round_ else 10
            params: dict[str, Any] = {"k": k, "initMode": "random", "maxIter": ITERATIONS, "tol": 0.0}
            began_s = time.monotonic()
            model = kind(**params, seed=round_).fit(frame if round_ else few)
            if round_:
                found.append(time.monotonic() - began_s)
                costs[kind] = KMeansClusters(np.stack(model.clusterCenters())).cost(x)
                tell(f"{what}, {kind.__module__.split('.')[0]}: {found[-1]:.2f} s, cost {costs[kind]:,.1f}")
    frame.unpersist()
    few.unpersist()
    tell(f"{what}: ours {median(seconds[KMeans]):.2f} s, pyspark.ml {median(seconds[Theirs]):.2f} s")
    line = Line(f"{what} rows: fit of k-means", "pyspark.ml", "s", GOAL, seconds[Theirs], seconds[KMeans])
    return line, Check(f"{what} rows: cost over pyspark.ml's", costs[KMeans] / costs[Theirs], MAX_COST)


def _frame(spark: Any, rows: int, batch: Batch) -> Any:
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql.types import StructField, StructType

    def make(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for ids in batches:
            yield pa.RecordBatch.from_arrays([batch(np.asarray(ids.column(0)))], ["features"])

    kind = StructType([StructField("features", VectorUDT())])
    return spark.range(0, rows, 1, PARTITIONS).mapInArrow(make, kind)


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


if __name__ == "__main__":
    main()
