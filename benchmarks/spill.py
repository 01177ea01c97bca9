"""Trainings of rows in files, against rows in memory: seconds of steps for each row.

With ``--group-gb``, workers of rows in files run in a control group of memory, which needs the right to make one.
docs/performance/rows.md says how to read it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

from benchmarks import frame
from benchmarks.frame import Benchmark, Check, Line, Part, option, take_turns, tell
from benchmarks.local_spark import DAEMON, WORKERS, spark_and_servers
from benchmarks.reading import vectors

CLUSTERS = 20
# Each task has a new process, without the memory of the training before.
FRESH_WORKERS = {**DAEMON, "spark.python.worker.reuse": "false"}
DENSE, ENTRIES, SPARSE_DIM = 100, 50, 1 << 18
# In a file: a value, and a column of a sparse row.
VALUE_BYTES, COLUMN_BYTES = 8, 4
# A rating by user, with its item and value; and the ratings of a user, and of an item.
RATING_BYTES, USER_RATINGS, ITEM_RATINGS = 8, 100, 2000
SHAPES = {
    "dense": (DENSE, None, DENSE * VALUE_BYTES),
    "sparse": (ENTRIES, SPARSE_DIM, ENTRIES * (VALUE_BYTES + COLUMN_BYTES)),
    "ratings": (0, None, RATING_BYTES),
}
# The models, the goal of each, and the shapes of its rows.
MODELS = {
    "linear": (0.5, ("dense", "sparse")),
    "kmeans": (0.4, ("dense", "sparse")),
    "cgs": (0.4, ("sparse",)),
    "online": (0.4, ("sparse",)),
    "boosted": (0.4, ("dense",)),
    "forest": (0.4, ("dense",)),
    "sgd": (0.4, ("ratings",)),
    "ccd": (0.4, ("ratings",)),
}


@dataclass(frozen=True)
class Args(frame.Args):
    gb: float = option(1.0, "GB of rows in files.", least=0.001)
    memory_gb: float = option(0.0, "GB of rows in memory; 0: as many.", least=0)
    group_gb: float = option(0.0, "GB of memory of the workers with rows in files; 0: no limit.", least=0)
    worker_memory: str = option("", "spark.executor.pyspark.memory, such as 4g for two workers of 2g.")
    model: tuple[str, ...] = option(("linear",), "Models.", choices=tuple(MODELS))
    shape: tuple[str, ...] = option(tuple(SHAPES), "Shapes of rows.", choices=tuple(SHAPES))
    steps: int = option(5, "Steps of a training, or trees.", least=1)


def spill(args: Args) -> Part:
    """Compare steps of rows in files with steps of rows in memory."""
    memory = {"spark.executor.pyspark.memory": args.worker_memory} if args.worker_memory else {}
    lines, checks = [], []
    with (
        spark_and_servers("spill", args.memory, settings={**FRESH_WORKERS, **memory}, servers=1) as (spark, _),
        _workers_group(spark) as group,
    ):
        for model in args.model:
            for shape in (one for one in MODELS[model][1] if one in args.shape):
                line, result = _measured(spark, group, model, shape, args)
                lines.append(line)
                checks += result
    return Part(lines, checks)


@dataclass(frozen=True)
class _Group:
    """The control groups (version 1) of the processes from which Spark forks all workers; None: none can be made."""

    memory: Path | None
    cpu: Path | None

    @contextmanager
    def measured(self, limit_bytes: int) -> Iterator[dict[str, float]]:
        """Limit the workers' memory, page cache included (0: no limit); the result has the measures at the end."""
        result, is_over, began_s = dict[str, float](), threading.Event(), time.monotonic()
        if self.memory is None or self.cpu is None:
            assert not limit_bytes, "control groups cannot be made here"
            yield result
            return
        memory, cpu_usage = self.memory, self.cpu / "cpuacct.usage"

        def watch() -> None:
            while not is_over.wait(0.2):
                stat = dict(line.split(" ") for line in (memory / "memory.stat").read_text().splitlines())
                result["GB without page cache"] = max(result.get("GB without page cache", 0), int(stat["rss"]) / 1e9)

        watcher, began_ns = threading.Thread(target=watch), int(cpu_usage.read_text())
        (memory / "memory.limit_in_bytes").write_text(str(limit_bytes or -1))
        watcher.start()
        try:
            yield result
        finally:
            is_over.set()
            watcher.join()
            (memory / "memory.limit_in_bytes").write_text("-1")
        result |= {"s": time.monotonic() - began_s, "CPU s": (int(cpu_usage.read_text()) - began_ns) / 1e9}


@contextmanager
def _workers_group(spark: Any) -> Iterator[_Group]:
    """Yield the control groups of Spark's workers."""
    spark.range(1).rdd.map(lambda row: 1).count()  # Spark starts the processes now
    daemon, descendants = DAEMON["spark.python.daemon.module"], psutil.Process().children(recursive=True)
    processes = [
        one for one in psutil.process_iter(["cmdline"]) if daemon in (one.info["cmdline"] or ()) and one in descendants
    ]
    groups = [Path("/sys/fs/cgroup", controller) for controller in ("memory", "cpuacct")]
    if not all(os.access(group / "cgroup.procs", os.W_OK) for group in groups):
        yield _Group(None, None)
        return
    folders = [group / f"ps2-spill-{os.getpid()}" for group in groups]
    for folder in folders:
        folder.mkdir()
        for process in processes:
            (folder / "cgroup.procs").write_text(str(process.pid))
    try:
        yield _Group(*folders)
    finally:
        for folder in folders:
            while pids := (folder / "cgroup.procs").read_text().split():  # processes fork, and end
                for pid in pids:
                    with suppress(ProcessLookupError):
                        (folder.parent / "cgroup.procs").write_text(pid)
            folder.rmdir()


def _ratings(spark: Any, count: int) -> Any:
    """Return ratings of users and items at random; planted vectors of length 1 decide their values."""
    users, items = max(count // USER_RATINGS, 1), max(count // ITEM_RATINGS, 1)

    def make(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            ids = np.asarray(batch.column(0))
            rng = np.random.default_rng(int(ids[0]))
            user, item = rng.integers(0, users, len(ids)), rng.integers(0, items, len(ids))
            rating = 3 + np.cos(user * 0.7) * np.cos(item * 0.3) + rng.normal(0, 0.1, len(ids))
            yield pa.RecordBatch.from_arrays(
                [pa.array(user), pa.array(item), pa.array(rating, pa.float32())], ["user", "item", "rating"]
            )

    return spark.range(0, count, 1, WORKERS).mapInArrow(make, "user long, item long, rating float")


def _estimator(model: str, mode: Any, steps: int) -> Any:
    from ps2.algorithms.classification import GBTClassifier, LogisticRegression, RandomForestClassifier
    from ps2.algorithms.clustering import LDA, KMeans
    from ps2.algorithms.recommendation import MatrixFactorization

    fleet = {"numWorkers": WORKERS, "via": "servers", "spill": mode}
    if model == "forest":
        return RandomForestClassifier(**fleet, numTrees=steps, maxDepth=6, maxBins=256, seed=1)
    fleet["maxIter"] = steps
    if model in ("sgd", "ccd"):
        del fleet["via"]
        return MatrixFactorization(**fleet, rank=16, solver=model, patience=0, seed=1)
    if model == "boosted":
        return GBTClassifier(**fleet, maxDepth=6, maxBins=256, seed=1)
    if model == "linear":
        return LogisticRegression(**fleet, tol=0.0)
    if model == "kmeans":
        return KMeans(**fleet, tol=0.0, k=CLUSTERS, seed=1)
    return LDA(**fleet, k=CLUSTERS, optimizer=model, sync={"cgs": "average", "online": "gradient"}[model], seed=1)


def _parameters(model: Any) -> Any:
    """Return the parameters of a trained model: an array, or the text of its trees."""
    if hasattr(model, "toDebugString"):
        return model.toDebugString.split("\n", 1)[1]  # the first line has the model's uid
    if hasattr(model, "itemFactors"):
        return np.append(model.factors.userFactors, model.factors.itemFactors)
    if hasattr(model, "coefficients"):
        return np.append(model.coefficients.toArray(), model.intercept)
    return model.topics.counts if hasattr(model, "topics") else np.stack(model.clusterCenters())


def _measured(spark: Any, group: _Group, name: str, shape: str, args: Args) -> tuple[Line, list[Check]]:
    """Train in turns; return nanoseconds of steps for each row, and whether models are equal where rows are."""
    entries, dim, row_bytes = SHAPES[shape]
    sizes = {"never": args.memory_gb or args.gb, "always": args.gb}
    parameters = {}

    def train(mode: Any, frame: Any) -> float:
        limit = int(args.group_gb * 1e9) if mode == "always" else 0
        with group.measured(limit) as measures:
            model = _estimator(name, mode, args.steps).fit(frame)
        summary = model.summary
        parameters[mode] = _parameters(model)
        files, figures = sum(one.bytes for one in summary.spilled), {"s of steps": sum(summary.stepSeconds), **measures}
        shown = ", ".join(f"{value:,.1f} {key}" for key, value in figures.items())
        tell(f"{name}, {shape}, spill={mode!r}: {files:,} bytes in files; {shown}")
        return sum(summary.stepSeconds) * 1e9 / (summary.rows or frame.count() * args.steps)

    def make_rows(count: int) -> Any:
        if shape == "ratings":
            return _ratings(spark, count)
        return vectors(spark, count, entries, dim, WORKERS, name in ("cgs", "online"))

    variants = {mode: partial(train, mode, make_rows(int(size * 1e9 / row_bytes))) for mode, size in sizes.items()}
    turns = take_turns(variants, args.rounds, warm_ups=0)
    goal = MODELS[name][0]
    line = Line(f"{name}, {shape} rows in files", "rows in memory", "ns a row", goal, turns["never"], turns["always"])
    if sizes["never"] != sizes["always"]:
        return line, []
    one, other = parameters.values()
    difference = float(one != other if isinstance(one, str) else np.abs(one - other).max())
    return line, [Check(f"{name}, {shape}: largest difference of parameters", difference, 0.0)]


BENCHMARK = Benchmark("spill", Args, {"spill": spill})

if __name__ == "__main__":
    BENCHMARK.main()
