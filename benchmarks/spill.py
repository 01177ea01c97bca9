"""Logistic regression by L-BFGS of rows in files, against rows in memory: seconds of steps for each row.

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

GOAL = 0.5
DENSE, ENTRIES, SPARSE_DIM = 100, 50, 1 << 18
# In a file: a value, and a column of a sparse row.
VALUE_BYTES, COLUMN_BYTES = 8, 4
SHAPES = {
    "dense": (DENSE, None, DENSE * VALUE_BYTES),
    "sparse": (ENTRIES, SPARSE_DIM, ENTRIES * (VALUE_BYTES + COLUMN_BYTES)),
}


@dataclass(frozen=True)
class Args(frame.Args):
    gb: float = option(1.0, "GB of rows in files.", least=0.001)
    memory_gb: float = option(0.0, "GB of rows in memory; 0: as many.", least=0)
    worker_memory: str = option("", "spark.executor.pyspark.memory, such as 4g for two workers of 2g.")
    shape: tuple[str, ...] = option(tuple(SHAPES), "Shapes of rows.", choices=tuple(SHAPES))
    steps: int = option(5, "Steps of L-BFGS.", least=1)


def spill(args: Args) -> Part:
    """Compare steps of rows in files with steps of rows in memory."""
    memory = {"spark.executor.pyspark.memory": args.worker_memory} if args.worker_memory else {}
    lines, checks = [], []
    with spark_and_servers("spill", "3g", settings={**DAEMON, **memory}, servers=1) as (spark, _):
        for shape in args.shape:
            line, result = _measured(spark, shape, args)
            lines.append(line)
            checks += result
    return Part(lines, checks)


def _measured(spark: Any, shape: str, args: Args) -> tuple[Line, list[Check]]:
    """Train in turns; return nanoseconds of steps for each row, and whether weights are equal where rows are."""
    from ps2.algorithms.classification import LogisticRegression

    entries, dim, row_bytes = SHAPES[shape]
    sizes = {"never": args.memory_gb or args.gb, "always": args.gb}
    weights = {}

    def train(mode: Any, frame: Any) -> float:
        estimator = LogisticRegression(
            maxIter=args.steps,
            tol=0.0,
            numWorkers=WORKERS,
            via="servers",
            spill=mode,
        )
        model = estimator.fit(frame)
        summary = model.summary
        weights[mode] = np.append(model.coefficients.toArray(), model.intercept)
        tell(f"{shape}, spill={mode!r}: {sum(one.bytes for one in summary.spilled):,} bytes in files")
        return sum(summary.stepSeconds) * 1e9 / summary.rows

    variants = {
        mode: partial(train, mode, vectors(spark, int(size * 1e9 / row_bytes), entries, dim, WORKERS))
        for mode, size in sizes.items()
    }
    turns = take_turns(variants, args.rounds, warm_ups=0)
    line = Line(f"{shape} rows in files", "rows in memory", "ns a row", GOAL, turns["never"], turns["always"])
    if sizes["never"] != sizes["always"]:
        return line, []
    difference = float(np.abs(weights["always"] - weights["never"]).max())
    return line, [Check(f"{shape}: largest difference of weights", difference, 0.0)]


BENCHMARK = Benchmark("spill", Args, {"spill": spill})

if __name__ == "__main__":
    BENCHMARK.main()
