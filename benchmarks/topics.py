"""Topic models against tomotopy and pyspark.ml's LDA: likelihood, perplexity, seconds, memory.

    python -m benchmarks.topics --data-dir FOLDER

docs/performance.md says what is measured and how to read it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyspark

from benchmarks.compared import Parts, print_compared, print_sizes, versions
from benchmarks.frame import ask_all, command, exit_code, machine, print_parts, publish
from benchmarks.topics_part import Asked

PARTS = Parts(names=("likelihood", "tomotopy", "pyspark", "rotation", "large"), generated=())


@command(
    *PARTS.options("docword.kos.txt.gz"),
    click.option("--rounds", type=click.IntRange(1), default=3, help="Turns that the medians are of."),
    click.option("--tokens", type=click.IntRange(1_000_000), default=100_000_000, help="Of the part large."),
    click.option("--memory", default="4g", metavar="SIZE", help="Of Spark's JVM."),
    click.option("--strict", is_flag=True, help="Exit with 1 if a goal is missed, too."),
)
def main(
    parts: tuple[str, ...],
    data_dir: str | None,
    rounds: int,
    tokens: int,
    memory: str,
    strict: bool,
    form: str,
    output: Path | None,
) -> None:
    """Compare topics with tomotopy's and pyspark.ml's; exit with 1 if they are less likely than they should be."""
    chosen = PARTS.chosen(parts, data_dir)
    found = ask_all("topics", chosen, Asked(rounds, data_dir or "", tokens, memory))
    of = machine(pyspark=pyspark.__version__, numpy=np.__version__, **versions(("tomotopy",)))
    report: dict[str, Any] = {"machine": of, "rounds": rounds, "parts": found}
    publish(report, form, output, lambda: _print(report))
    sys.exit(exit_code(report, strict))


def _print(report: dict[str, Any]) -> None:
    print_parts(report, print_compared)
    print_sizes(report)


if __name__ == "__main__":
    main()
