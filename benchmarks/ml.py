"""Linear models against pyspark.ml's: right results, steps to the optimum, seconds to equal objectives.

    python -m benchmarks.ml --part a9a --data-dir FOLDER

docs/performance.md says what is measured and how to read it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyspark

from benchmarks.frame import ask_all, command, exit_code, machine, print_parts, publish, read_numbers
from benchmarks.ml_part import Asked
from ps2.cli.output import Column, print_table

# In the order in which they are measured.
PARTS = ("reference", "steps", "a9a", "news20", "large")
# What needs no files.
GENERATED = ("large",)


@command(
    click.option(
        "--part",
        "parts",
        type=click.Choice(PARTS),
        multiple=True,
        help="What to measure.  [default: all; large alone without --data-dir]",
    ),
    click.option(
        "--data-dir",
        type=click.Path(exists=True, file_okay=False, resolve_path=True),
        help="Folder of a9a.libsvm.gz, a9a.t.libsvm.gz and news20-bigram.train.libsvm.gz and .test.libsvm.gz.",
    ),
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
    parts = parts or (GENERATED if data_dir is None else PARTS)
    if data_dir is None and set(parts) - set(GENERATED):
        raise click.UsageError(f"--data-dir: the parts {', '.join(sorted(set(parts) - set(GENERATED)))} need it")
    asked = Asked(rounds, data_dir or "", read_numbers(features), rows, theirs, target, memory)
    found = ask_all("ml", [part for part in PARTS if part in parts], asked)
    versions = {"pyspark": pyspark.__version__, "numpy": np.__version__}
    report: dict[str, Any] = {"machine": machine(**versions), "rounds": rounds, "parts": found}
    publish(report, form, output, lambda: print_parts(report, _print_lines))
    sys.exit(exit_code(report, strict))


def _print_lines(lines: Sequence[dict[str, Any]]) -> None:
    titles = ("what", "against", "baseline", "ours", "unit", "times less", "spread", "goal", "")
    left = {"what", "against", "unit", ""}
    rows = [
        (
            line["what"],
            line["against"],
            f"{line['baseline']:.3g}",
            f"{line['ours']:.3g}",
            line["unit"],
            f"{line['times']:.2f}",
            "-" if line["spread"] is None else "{:.2f}-{:.2f}".format(*line["spread"]),
            "-" if line["goal"] is None else f"{line['goal']:g}",
            {None: "", True: "met", False: "MISSED"}[line["met"]],
        )
        for line in lines
    ]
    columns = [Column(title, right=title not in left, folds=title in {"what", "against"}) for title in titles]
    print_table(columns, rows)


if __name__ == "__main__":
    main()
