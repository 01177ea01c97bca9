"""Where a step of MLlib's gradient descent spends its time, by the size of the model: Figure 1.

    python -m benchmarks.mllib_steps --features 40000,3000000 --plots out

docs/performance/linear.md says what is measured and how to read it.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import psutil
import pyspark

from benchmarks.compared import print_report
from benchmarks.frame import ask, command, exit_code, machine, publish, read_numbers, tell
from benchmarks.mllib_steps_part import Asked
from benchmarks.mllib_steps_plot import plot

# Of driver and executors together, in bytes a feature, about; and what Spark takes in any case.
BYTES, LEAST = 250, 3 << 30


@command(
    click.option("--features", default="40000,3000000,30000000,60000000", metavar="N,...", help="Sizes of the model."),
    click.option("--rows", type=click.IntRange(100), default=100_000, help="Of the data set; a step takes a tenth."),
    click.option("--driver-memory", default="7g", metavar="SIZE", help="Of the driver's JVM."),
    click.option("--executor-memory", default=5 << 10, metavar="MIB", help="Of each executor's JVM."),
    click.option("--plots", type=click.Path(path_type=Path), metavar="FOLDER", help="For a picture (PNG)."),
)
def main(
    features: str,
    rows: int,
    driver_memory: str,
    executor_memory: int,
    plots: Path | None,
    form: str,
    output: Path | None,
) -> None:
    """Train with pyspark.mllib on two executors, and read what Spark recorded of it."""
    found: dict[str, Any] = {}
    for size in read_numbers(features):
        free, needed = psutil.virtual_memory().available, LEAST + BYTES * size
        if free < needed:
            tell(f"{size:,} features: left out: {needed >> 20} MiB are needed, {free >> 20} are free")
            continue
        asked = Asked(size, rows, driver_memory, executor_memory)
        found[f"{size:,}"] = ask(f"{size:,} features", "benchmarks.mllib_steps_part", json.dumps(asdict(asked)))
    sizes = [size for part in found.values() for size in part.pop("sizes")]
    if not sizes:
        raise click.ClickException("memory suffices for none of the sizes")
    part = {**next(iter(found.values())), "sizes": sizes}  # all sizes have the same facts
    report: dict[str, Any] = {
        "machine": machine(pyspark=pyspark.__version__),
        "rounds": 1,
        "parts": {"mllib": part},
    }
    publish(report, form, output, lambda: print_report(report))
    if plots is not None:
        plot(sizes, plots / "mllib-steps.png")
    sys.exit(exit_code(report, strict=False))


if __name__ == "__main__":
    main()
