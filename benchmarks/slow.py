"""Workers that are slow programs: how rotation with time control does beside rotation without, SSP and averaging.

    python -m benchmarks.slow --plots docs/images

docs/performance/run.md says what is measured and how to read it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyspark

from benchmarks.compared import Parts, print_report
from benchmarks.frame import ask_all, command, exit_code, machine, publish
from benchmarks.slow_part import Asked
from benchmarks.slow_plot import plot

PARTS = Parts(names=("factors", "topics"), generated=("factors", "topics"))


@command(
    click.option("--part", "parts", type=click.Choice(PARTS.names), multiple=True, help="To train; all by default."),
    click.option("--rounds", type=click.IntRange(1), default=3, help="Turns that the medians are of."),
    click.option("--plots", type=click.Path(path_type=Path), metavar="FOLDER", help="For a picture (PNG)."),
    click.option("--memory", default="3g", metavar="SIZE", help="Of Spark's JVM."),
    click.option("--strict", is_flag=True, help="Exit with 1 if a goal is missed."),
)
def main(
    parts: tuple[str, ...],
    rounds: int,
    plots: Path | None,
    memory: str,
    strict: bool,
    form: str,
    output: Path | None,
) -> None:
    """Train with two of four workers three times as slow as the first, and one ten times."""
    found = ask_all("slow", PARTS.chosen(parts, None), Asked(rounds, memory))
    of = machine(pyspark=pyspark.__version__, numpy=np.__version__)
    report: dict[str, Any] = {"machine": of, "rounds": rounds, "parts": found}
    publish(report, form, output, lambda: print_report(report))
    if plots is not None:
        plot(found, plots / "slow.png")
    sys.exit(exit_code(report, strict))


if __name__ == "__main__":
    main()
