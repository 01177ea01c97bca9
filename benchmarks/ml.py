"""Linear models against pyspark.ml's: right results, steps to the optimum, seconds to equal objectives.

    python -m benchmarks.ml --part a9a --data-dir FOLDER

docs/performance.md says what is measured and how to read it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyspark

from benchmarks.compared import Parts, print_compared
from benchmarks.frame import ask_all, command, exit_code, machine, print_parts, publish, read_numbers
from benchmarks.ml_part import Asked

PARTS = Parts(
    names=("reference", "steps", "a9a", "news20", "large"),
    generated=("large",),
)


@command(
    *PARTS.options("a9a.libsvm.gz, a9a.t.libsvm.gz and news20-bigram.train.libsvm.gz and .test.libsvm.gz"),
    click.option("--rounds", type=click.IntRange(2), default=5, help="Turns that the medians are of."),
    click.option("--features", default="1000000", metavar="N,...", help="Sizes of the part large."),
    click.option("--rows", type=click.IntRange(1000), default=200_000, help="Rows of the part large."),
    click.option("--pyspark/--no-pyspark", "theirs", default=True, help="Let pyspark.ml train in the part large, too."),
    click.option(
        "--target",
        type=float,
        help="Objective to reach in the part large.  [default: pyspark.ml's after 20 iterations]",
    ),
    click.option(
        "--memory", default="6g", metavar="SIZE", help="Of Spark's JVM; pyspark.ml wants 18g for 60M features."
    ),
    click.option("--strict", is_flag=True, help="Exit with 1 if a goal is missed, too."),
)
def main(
    parts: tuple[str, ...],
    data_dir: str | None,
    rounds: int,
    features: str,
    rows: int,
    theirs: bool,
    target: float | None,
    memory: str,
    strict: bool,
    form: str,
    output: Path | None,
) -> None:
    """Compare linear models with pyspark.ml's; exit with 1 if one is not what it should be."""
    chosen = PARTS.chosen(parts, data_dir)
    asked = Asked(rounds, data_dir or "", read_numbers(features), rows, theirs, target, memory)
    found = ask_all("ml", chosen, asked)
    versions = {"pyspark": pyspark.__version__, "numpy": np.__version__}
    report: dict[str, Any] = {"machine": machine(**versions), "rounds": rounds, "parts": found}
    publish(report, form, output, lambda: print_parts(report, print_compared))
    sys.exit(exit_code(report, strict))


if __name__ == "__main__":
    main()
