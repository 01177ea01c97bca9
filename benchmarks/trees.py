"""Boosted trees compared with xgboost and LightGBM: seconds, AUC, traffic, and equal trees on any cluster.

    python -m benchmarks.trees --part dense

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
from benchmarks.frame import ask_all, command, exit_code, machine, print_parts, publish, read_numbers
from benchmarks.trees_part import Asked
from benchmarks.trees_peers import PEERS

PARTS = Parts(
    names=("agaricus", "higgs", "same", "pulled", "features", "precision", "dense", "news20"),
    generated=("same", "pulled", "features", "precision", "dense"),
)
DISTRIBUTIONS = ("xgboost-cpu", "xgboost", "lightgbm")


@command(
    *PARTS.options(
        "news20-bigram.train.libsvm.gz and .test.libsvm.gz, agaricus.train.libsvm.gz and .test.libsvm.gz, "
        "higgs7k.train.tsv.gz and .test.tsv.gz"
    ),
    click.option(
        "--peer",
        "peers",
        type=click.Choice(tuple(PEERS)),
        multiple=True,
        default=tuple(PEERS),
        help="Who trains beside ours, if it is installed.",
    ),
    click.option("--rounds", type=click.IntRange(1), default=3, help="Turns that the medians are of."),
    click.option("--rows", type=click.IntRange(1000), default=1_000_000, help="Rows of the part dense."),
    click.option("--features", default="10000,100000,1690000", metavar="N,...", help="Sizes of the part features."),
    click.option("--seeds", type=click.IntRange(2), default=4, help="Sets of rows of the part precision."),
    click.option("--memory", default="4g", metavar="SIZE", help="Of Spark's JVM."),
    click.option("--strict", is_flag=True, help="Exit with 1 if a goal is missed, too."),
)
def main(
    parts: tuple[str, ...],
    data_dir: str | None,
    peers: tuple[str, ...],
    rounds: int,
    rows: int,
    features: str,
    seeds: int,
    memory: str,
    strict: bool,
    form: str,
    output: Path | None,
) -> None:
    """Compare boosted trees with xgboost's and LightGBM's; exit with 1 if a check fails."""
    chosen = PARTS.chosen(parts, data_dir)
    asked = Asked(rounds, data_dir or "", peers, rows, read_numbers(features), seeds, memory)
    found = ask_all("trees", chosen, asked)
    of = machine(pyspark=pyspark.__version__, numpy=np.__version__, **versions(DISTRIBUTIONS))
    report: dict[str, Any] = {"machine": of, "rounds": rounds, "parts": found}
    publish(report, form, output, lambda: _print(report))
    sys.exit(exit_code(report, strict))


def _print(report: dict[str, Any]) -> None:
    print_parts(report, print_compared)
    print_sizes(report)


if __name__ == "__main__":
    main()
