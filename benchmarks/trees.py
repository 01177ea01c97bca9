"""Boosted trees against xgboost and LightGBM: seconds, AUC, bytes moved, and that trees are the same anywhere.

    python -m benchmarks.trees --part dense

docs/performance.md says what is measured and how to read it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyspark

from benchmarks.frame import ask_all, command, exit_code, machine, print_parts, publish, read_numbers
from benchmarks.trees_part import Asked
from benchmarks.trees_peers import PEERS
from ps2.cli.output import Column, print_table

# In the order in which they are measured.
PARTS = ("agaricus", "higgs", "same", "pulled", "features", "precision", "dense", "news20")
# What needs no files.
GENERATED = ("same", "pulled", "features", "precision", "dense")
DISTRIBUTIONS = ("xgboost-cpu", "xgboost", "lightgbm")


@command(
    click.option(
        "--part",
        "parts",
        type=click.Choice(PARTS),
        multiple=True,
        help="What to measure.  [default: all; without --data-dir those that need no files]",
    ),
    click.option(
        "--data-dir",
        type=click.Path(exists=True, file_okay=False, resolve_path=True),
        help="Folder of news20-bigram.train.libsvm.gz and .test.libsvm.gz, agaricus.train.libsvm.gz and "
        ".test.libsvm.gz, higgs7k.train.tsv.gz and .test.tsv.gz.",
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
    """Compare boosted trees with xgboost's and LightGBM's; exit with 1 if they are not what they should be."""
    parts = parts or (GENERATED if data_dir is None else PARTS)
    if data_dir is None and set(parts) - set(GENERATED):
        raise click.UsageError(f"--data-dir: the parts {', '.join(sorted(set(parts) - set(GENERATED)))} need it")
    asked = Asked(rounds, data_dir or "", peers, rows, read_numbers(features), seeds, memory)
    found = ask_all("trees", [part for part in PARTS if part in parts], asked)
    versions = {"pyspark": pyspark.__version__, "numpy": np.__version__, **_peers()}
    report: dict[str, Any] = {"machine": machine(**versions), "rounds": rounds, "parts": found}
    publish(report, form, output, lambda: _print(report))
    sys.exit(exit_code(report, strict))


def _peers() -> dict[str, str]:
    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _print(report: dict[str, Any]) -> None:
    print_parts(report, _print_lines)
    for part in report["parts"].values():
        if part["sizes"]:
            click.echo()
            titles = list(part["sizes"][0])
            print_table(
                [Column(title, right=True) for title in titles],
                [tuple(map(str, size.values())) for size in part["sizes"]],
            )


def _print_lines(lines: Sequence[dict[str, Any]]) -> None:
    titles = ("what", "against", "baseline", "ours", "unit", "times less", "spread", "goal", "")
    left = {"what", "against", "unit", ""}
    rows = [
        (
            line["what"],
            line["against"],
            _figure(line["baseline"], line["unit"]),
            _figure(line["ours"], line["unit"]),
            line["unit"],
            "-" if line["times"] is None else f"{line['times']:.2f}",
            "-" if line["spread"] is None else "{:.2f}-{:.2f}".format(*line["spread"]),
            "-" if line["goal"] is None else f"{line['goal']:g}",
            {None: "", True: "met", False: "MISSED"}[line["met"]],
        )
        for line in lines
    ]
    columns = [Column(title, right=title not in left, folds=title in {"what", "against"}) for title in titles]
    print_table(columns, rows)


def _figure(value: float, unit: str) -> str:
    return f"{value:.5f}" if unit == "AUC" else f"{value:,.3g}"


if __name__ == "__main__":
    main()
