"""Trainings of rows in files, against rows in memory: seconds of steps for each row.

docs/performance/rows.md says how to read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks import frame
from benchmarks.frame import Benchmark, Check, Line, Part, option, take_turns, tell
from benchmarks.local_spark import DAEMON, WORKERS, spark_and_servers
from benchmarks.reading import vectors

GOAL, FAMILIES_GOAL = 0.5, 0.4
CLUSTERS = 20
DENSE, ENTRIES, SPARSE_DIM = 100, 50, 1 << 18
# In a file: a value, and a column of a sparse row.
VALUE_BYTES, COLUMN_BYTES = 8, 4
SHAPES = {
    "dense": (DENSE, None, DENSE * VALUE_BYTES),
    "sparse": (ENTRIES, SPARSE_DIM, ENTRIES * (VALUE_BYTES + COLUMN_BYTES)),
}


# The models, and the shapes of rows of each.
MODELS = {"linear": tuple(SHAPES), "kmeans": tuple(SHAPES), "cgs": ("sparse",), "online": ("sparse",)}


@dataclass(frozen=True)
class Args(frame.Args):
    gb: float = option(1.0, "GB of rows in files.", least=0.001)
    memory_gb: float = option(0.0, "GB of rows in memory; 0: as many.", least=0)
    worker_memory: str = option("", "spark.executor.pyspark.memory, such as 4g for two workers of 2g.")
    model: tuple[str, ...] = option(("linear",), "Models.", choices=tuple(MODELS))
    shape: tuple[str, ...] = option(tuple(SHAPES), "Shapes of rows.", choices=tuple(SHAPES))
    steps: int = option(5, "Steps of a training.", least=1)


def spill(args: Args) -> Part:
    """Compare steps of rows in files with steps of rows in memory."""
    memory = {"spark.executor.pyspark.memory": args.worker_memory} if args.worker_memory else {}
    lines, checks = [], []
    with spark_and_servers("spill", "3g", settings={**DAEMON, **memory}, servers=1) as (spark, _):
        for model in args.model:
            for shape in (one for one in MODELS[model] if one in args.shape):
                line, result = _measured(spark, model, shape, args)
                lines.append(line)
                checks += result
    return Part(lines, checks)


def _estimator(model: str, mode: Any, steps: int) -> Any:
    from ps2.algorithms.classification import LogisticRegression
    from ps2.algorithms.clustering import LDA, KMeans

    fleet = {"numWorkers": WORKERS, "via": "servers", "spill": mode, "maxIter": steps}
    if model == "linear":
        return LogisticRegression(**fleet, tol=0.0)
    if model == "kmeans":
        return KMeans(**fleet, tol=0.0, k=CLUSTERS, seed=1)
    return LDA(**fleet, k=CLUSTERS, optimizer=model, sync={"cgs": "average", "online": "gradient"}[model], seed=1)


def _parameters(model: Any) -> Any:
    """Return the parameters of a trained model as an array."""
    if hasattr(model, "coefficients"):
        return np.append(model.coefficients.toArray(), model.intercept)
    return model.topics.counts if hasattr(model, "topics") else np.stack(model.clusterCenters())


def _measured(spark: Any, name: str, shape: str, args: Args) -> tuple[Line, list[Check]]:
    """Train in turns; return nanoseconds of steps for each row, and whether weights are equal where rows are."""
    entries, dim, row_bytes = SHAPES[shape]
    sizes = {"never": args.memory_gb or args.gb, "always": args.gb}
    weights = {}

    def train(mode: Any, frame: Any) -> float:
        model = _estimator(name, mode, args.steps).fit(frame)
        summary = model.summary
        weights[mode] = _parameters(model)
        tell(f"{name}, {shape}, spill={mode!r}: {sum(one.bytes for one in summary.spilled):,} bytes in files")
        return sum(summary.stepSeconds) * 1e9 / (summary.rows or frame.count() * args.steps)

    are_counts = name in ("cgs", "online")
    variants = {
        mode: partial(train, mode, vectors(spark, int(size * 1e9 / row_bytes), entries, dim, WORKERS, are_counts))
        for mode, size in sizes.items()
    }
    turns = take_turns(variants, args.rounds, warm_ups=0)
    goal = GOAL if name == "linear" else FAMILIES_GOAL
    line = Line(f"{name}, {shape} rows in files", "rows in memory", "ns a row", goal, turns["never"], turns["always"])
    if sizes["never"] != sizes["always"]:
        return line, []
    difference = float(np.abs(weights["always"] - weights["never"]).max())
    return line, [Check(f"{name}, {shape}: largest difference of parameters", difference, 0.0)]


BENCHMARK = Benchmark("spill", Args, {"spill": spill})

if __name__ == "__main__":
    BENCHMARK.main()
