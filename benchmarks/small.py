"""Warm fits of small data against pyspark.ml's: seconds of ``fit``, and how many Spark jobs each starts.

    python -m benchmarks.small --data-dir FOLDER

docs/performance.md says what is measured and how to read it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import pyspark

from benchmarks.compared import Parts, print_compared, print_sizes
from benchmarks.frame import ask_all, command, exit_code, machine, print_parts, publish
from benchmarks.small_part import Asked

PARTS = Parts(names=("linear", "trees", "others"), generated=())


@command(
    *PARTS.options("a9a.libsvm.gz and agaricus.train.libsvm.gz"),
    click.option("--rounds", type=click.IntRange(2), default=5, help="Turns that the medians are of."),
    click.option("--only", default="", metavar="TEXT", help="Measure the fits whose names have this text."),
    click.option("--strict", is_flag=True, help="Exit with 1 if a goal is missed, too."),
)
def main(
    parts: tuple[str, ...],
    data_dir: str | None,
    rounds: int,
    only: str,
    strict: bool,
    form: str,
    output: Path | None,
) -> None:
    """Compare warm fits of small data with pyspark.ml's."""
    chosen = PARTS.chosen(parts, data_dir)
    if not chosen:
        raise click.UsageError("--data-dir: all parts need it")
    found = ask_all("small", chosen, Asked(rounds, data_dir or "", only))
    report: dict[str, Any] = {"machine": machine(pyspark=pyspark.__version__), "rounds": rounds, "parts": found}

    def show() -> None:
        print_parts(report, print_compared)
        print_sizes(report)

    publish(report, form, output, show)
    sys.exit(exit_code(report, strict))


if __name__ == "__main__":
    main()
