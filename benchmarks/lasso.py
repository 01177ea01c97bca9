"""Lasso by coordinate descent on a schedule: against other schedules, OWL-QN, scikit-learn and celer.

    python -m benchmarks.lasso --part news20 --data-dir FOLDER

docs/performance.md says what is measured and how to read it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from benchmarks.compared import Parts, print_compared, versions
from benchmarks.frame import ask_all, command, exit_code, machine, print_parts, publish
from benchmarks.lasso_part import Asked

PARTS = Parts(names=("correlated", "news20", "path"), generated=("correlated", "path"))
RATIO = click.FloatRange(0.0, 1.0, min_open=True, max_open=True)


@command(
    *PARTS.options("news20-bigram.train.libsvm.gz"),
    click.option("--rounds", type=click.IntRange(2), default=3, help="Turns that the medians are of."),
    click.option("--rows", type=click.IntRange(1000), default=100_000, help="Of the generated rows."),
    click.option("--features", type=click.IntRange(1000), default=20_000, help="Of the generated rows."),
    click.option(
        "--ratio", type=RATIO, default=0.05, help="Strength, or a path's last one, as a part of the largest one."
    ),
    click.option("--models", type=click.IntRange(2), default=50, help="Of a path."),
    click.option("--most-s", type=float, default=20.0, help="When a training is given up."),
    click.option("--memory", default="4g", metavar="SIZE", help="Of Spark's JVM."),
    click.option("--strict", is_flag=True, help="Exit with 1 if a goal is missed, too."),
)
def main(
    parts: tuple[str, ...],
    data_dir: str | None,
    rounds: int,
    rows: int,
    features: int,
    ratio: float,
    models: int,
    most_s: float,
    memory: str,
    strict: bool,
    form: str,
    output: Path | None,
) -> None:
    """Compare ways of training lasso; exit with 1 if an optimum is not what it should be."""
    chosen = PARTS.chosen(parts, data_dir)
    asked = Asked(rounds, data_dir or "", rows, features, ratio, models, most_s, memory)
    found = ask_all("lasso", chosen, asked)
    about = machine(**versions(("pyspark", "numpy", "scikit-learn", "celer")))
    report: dict[str, Any] = {"machine": about, "rounds": rounds, "parts": found}
    publish(report, form, output, lambda: print_parts(report, print_compared))
    sys.exit(exit_code(report, strict))


if __name__ == "__main__":
    main()
