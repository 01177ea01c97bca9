"""Matrix factorization: how good vectors are, seconds of fits, and ratings a second against the bare kernel.

    python -m benchmarks.factors --data-dir FOLDER

docs/performance.md says what is measured and how to read it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyspark

from benchmarks.compared import Parts, print_compared, print_sizes
from benchmarks.factors_part import Asked
from benchmarks.frame import ask_all, command, exit_code, machine, print_parts, publish

PARTS = Parts(
    names=("movielens", "als", "implicit", "generated", "libmf", "recommend"),
    generated=("generated", "libmf", "recommend"),
)


@command(
    *PARTS.options("ml-1m.ratings.txt.gz: lines 'user item rating'"),
    click.option("--rounds", type=click.IntRange(1), default=3, help="Turns that the medians are of."),
    click.option("--ratings", type=click.IntRange(100_000), default=20_000_000, help="Of the part generated."),
    click.option("--memory", default="4g", metavar="SIZE", help="Of Spark's JVM."),
    click.option("--strict", is_flag=True, help="Exit with 1 if a goal is missed, too."),
)
def main(
    parts: tuple[str, ...],
    data_dir: str | None,
    rounds: int,
    ratings: int,
    memory: str,
    strict: bool,
    form: str,
    output: Path | None,
) -> None:
    """Factorize ratings; exit with 1 if vectors predict worse than they should."""
    chosen = PARTS.chosen(parts, data_dir)
    found = ask_all("factors", chosen, Asked(rounds, data_dir or "", ratings, memory))
    of = machine(pyspark=pyspark.__version__, numpy=np.__version__)
    report: dict[str, Any] = {"machine": of, "rounds": rounds, "parts": found}
    publish(report, form, output, lambda: _print(report))
    sys.exit(exit_code(report, strict))


def _print(report: dict[str, Any]) -> None:
    print_parts(report, print_compared)
    print_sizes(report)


if __name__ == "__main__":
    main()
