"""Long-lived workers (``ps.run``): cost of a clock, stragglers, model rotation, one stage a step, many features.

    python -m benchmarks.run --part overhead

docs/performance/run.md says what is measured and how to read it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import grpc
import numpy as np
import pyspark

from benchmarks.frame import ask_all, command, exit_code, machine, print_parts, publish, read_numbers
from benchmarks.ratio import print_lines
from benchmarks.run_part import Asked
from ps2.cli.output import print_table
from ps2.text_tables import Column

# In the order in which they are measured.
PARTS = ("overhead", "stragglers", "rotation", "news20", "features")


@command(
    click.option("--rounds", type=click.IntRange(2), default=7, help="Turns that the medians are of."),
    click.option("--part", "parts", type=click.Choice(PARTS), multiple=True, default=PARTS, help="What to measure."),
    click.option(
        "--data",
        type=click.Path(exists=True, dir_okay=False, resolve_path=True),
        help="libsvm file of news20-bigram for the part news20.  [default: rows of that shape are generated]",
    ),
    click.option(
        "--features", default="40000,3000000,30000000,60000000", metavar="N,...", help="Sizes of the part features."
    ),
    click.option("--mllib/--no-mllib", default=True, help="Let pyspark.ml train in the part features, too."),
    click.option("--strict", is_flag=True, help="Exit with 1 if a target is missed, too."),
)
def main(
    rounds: int,
    parts: tuple[str, ...],
    data: str | None,
    features: str,
    mllib: bool,
    strict: bool,
    form: str,
    output: Path | None,
) -> None:
    """Measure ps.run; exit with 1 if a result is wrong."""
    asked = Asked(rounds, data, read_numbers(features), mllib)
    found = ask_all("run", [part for part in PARTS if part in parts], asked)
    versions = {"pyspark": pyspark.__version__, "numpy": np.__version__, "grpcio": grpc.__version__}
    report: dict[str, Any] = {"machine": machine(**versions), "rounds": rounds, "parts": found}
    publish(report, form, output, lambda: _print(report))
    sys.exit(exit_code(report, strict))


def _print(report: dict[str, Any]) -> None:
    print_parts(report, print_lines)
    for part in report["parts"].values():
        if part["sizes"]:
            click.echo()
            _print_sizes(part["sizes"])


def _print_sizes(sizes: Sequence[dict[str, Any]]) -> None:
    titles = ("features", "keys", "ps.run: ms a step", "ratio", "pyspark.ml: s an iteration", "ratio")
    first = sizes[0]

    def figure(size: dict[str, Any], name: str, form: str) -> tuple[str, str]:
        if size[name] is None:
            return "-", "-"
        return format(size[name], form), f"{size[name] / first[name]:.2f}"

    rows = [
        (
            f"{size['features']:,}",
            f"{size['keys']:,}",
            *figure(size, "step_ms", ".2f"),
            *figure(size, "iteration_s", ".3f"),
        )
        for size in sizes
    ]
    print_table([Column(title, right=True) for title in titles], rows)


if __name__ == "__main__":
    main()
