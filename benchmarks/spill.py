"""Logistic regression by L-BFGS of rows in files, against rows in memory: seconds of steps for each row.

    python -m benchmarks.spill --gb 2
    python -m benchmarks.spill --gb 8 --memory-gb 0.5 --worker-memory 4g --rounds 2

docs/performance/rows.md says what is measured and how to read it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyspark

from benchmarks.compared import print_compared
from benchmarks.frame import Check, Part, command, exit_code, machine, print_parts, publish, tell
from benchmarks.local_spark import local_spark
from benchmarks.ml_part import Line
from benchmarks.reading import vectors
from ps2 import PS2Context

WORKERS = 2
GOAL = 0.5
DENSE, ENTRIES, SPARSE_DIM = 100, 50, 1 << 18
# In a file: a value, and a column of a sparse row.
VALUE_BYTES, COLUMN_BYTES = 8, 4
SHAPES = {
    "dense": (DENSE, None, DENSE * VALUE_BYTES),
    "sparse": (ENTRIES, SPARSE_DIM, ENTRIES * (VALUE_BYTES + COLUMN_BYTES)),
}


@command(
    click.option("--rounds", type=click.IntRange(1), default=3, help="Turns that the medians are of."),
    click.option("--gb", type=click.FloatRange(0.001), default=1.0, help="GB of rows in files."),
    click.option("--memory-gb", type=float, default=None, help="GB of rows in memory; as many if not given."),
    click.option(
        "--worker-memory", default="", help="spark.executor.pyspark.memory, such as 4g for two workers of 2g."
    ),
    click.option("--shape", type=click.Choice([*SHAPES]), multiple=True, default=[*SHAPES], help="Of the rows."),
    click.option("--steps", type=click.IntRange(1), default=5, help="Of L-BFGS."),
    click.option("--strict", is_flag=True, help="Exit with 1 if a goal is missed, too."),
)
def main(
    rounds: int,
    gb: float,
    memory_gb: float | None,
    worker_memory: str,
    shape: tuple[str, ...],
    steps: int,
    strict: bool,
    form: str,
    output: Path | None,
) -> None:
    """Compare steps of rows in files with steps of rows in memory."""
    settings = {"spark.python.daemon.module": "ps2.run.daemon"}
    if worker_memory:
        settings["spark.executor.pyspark.memory"] = worker_memory
    lines, checks = [], []
    with local_spark("spill", WORKERS, "3g", settings) as spark, PS2Context.getOrCreate(spark, servers=1):
        for name in shape:
            line, check = _measured(spark, name, (memory_gb or gb, gb), rounds, steps)
            lines.append(line)
            checks += check
    about = {"workers": WORKERS, "GB in files": gb, "GB in memory": memory_gb or gb, "worker memory": worker_memory}
    part = Part(lines, checks, about).as_json()
    report = {"machine": machine(pyspark=pyspark.__version__), "rounds": rounds, "parts": {"spill": part}}
    publish(report, form, output, lambda: print_parts(report, print_compared))
    sys.exit(exit_code(report, strict))


def _measured(spark: Any, shape: str, gb: tuple[float, float], rounds: int, steps: int) -> tuple[Line, list[Check]]:
    """Train in turns; return nanoseconds of steps for each row, and whether weights are equal where rows are."""
    from ps2.algorithms.classification import LogisticRegression

    entries, dim, row_bytes = SHAPES[shape]
    frames = [vectors(spark, int(size * 1e9 / row_bytes), entries, dim, WORKERS) for size in gb]
    ways = {"never": frames[0], "always": frames[1]}
    found: dict[str, list[float]] = {mode: [] for mode in ways}
    weights = {}
    for _ in range(rounds):
        for mode, frame in ways.items():
            model = LogisticRegression(maxIter=steps, tol=0.0, numWorkers=WORKERS, via="servers", spill=mode).fit(frame)
            summary = model.summary
            found[mode].append(sum(summary.stepSeconds) * 1e9 / summary.rows)
            weights[mode] = np.append(model.coefficients.toArray(), model.intercept)
            written = sum(one.bytes for one in summary.spilled)
            tell(f"{shape}, spill={mode!r}: {found[mode][-1]:.0f} ns a row, {written:,} bytes in files")
    line = Line(f"{shape} rows in files", "rows in memory", "ns a row", GOAL, found["never"], found["always"])
    if gb[0] != gb[1]:
        return line, []
    difference = float(np.abs(weights["always"] - weights["never"]).max())
    return line, [Check(f"{shape}: largest difference of weights", difference, 0.0)]


if __name__ == "__main__":
    main()
