"""Boosted trees compared with xgboost and LightGBM: seconds, AUC, traffic, and equal trees on any cluster.

    python -m benchmarks.trees --part dense

docs/performance/trees.md says what is measured and how to read it.
"""

from __future__ import annotations

import click

from benchmarks.compared import Chosen, Parts
from benchmarks.frame import read_numbers
from benchmarks.trees_part import Asked
from benchmarks.trees_peers import PEERS

PARTS = Parts(
    names=("agaricus", "higgs", "same", "pulled", "features", "precision", "dense", "forests", "ranking", "news20"),
    generated=("same", "pulled", "features", "precision", "dense", "ranking"),
)
DISTRIBUTIONS = ("xgboost-cpu", "xgboost", "lightgbm")


@PARTS.command(
    "news20-bigram.train.libsvm.gz and .test.libsvm.gz, agaricus.train.libsvm.gz and .test.libsvm.gz, "
    "higgs7k.train.tsv.gz and .test.tsv.gz, a9a.libsvm.gz and a9a.t.libsvm.gz",
    click.option(
        "--peer",
        "peers",
        type=click.Choice(tuple(PEERS)),
        multiple=True,
        default=tuple(PEERS),
        help="Who trains beside ours, if it is installed.",
    ),
    click.option(
        "--rows", type=click.IntRange(1000), default=1_000_000, help="Rows of the part dense; ranking has a tenth."
    ),
    click.option("--features", default="10000,100000,1690000", metavar="N,...", help="Sizes of the part features."),
    click.option("--seeds", type=click.IntRange(2), default=4, help="Sets of rows of the part precision."),
)
def main(chosen: Chosen, peers: tuple[str, ...], rows: int, features: str, seeds: int) -> None:
    """Compare boosted trees with xgboost's and LightGBM's; exit with 1 if a check fails."""
    chosen.measure(
        "trees",
        Asked(chosen.rounds, chosen.data_dir, peers, rows, read_numbers(features), seeds, chosen.memory),
        DISTRIBUTIONS,
    )


if __name__ == "__main__":
    main()
