"""Warm fits of small data against pyspark.ml's: seconds of ``fit``, and how many Spark jobs each starts.

    python -m benchmarks.small --data-dir FOLDER

docs/performance/small.md says what is measured and how to read it.
"""

from __future__ import annotations

import click

from benchmarks.compared import Chosen, Parts
from benchmarks.small_part import Asked

PARTS = Parts(names=("linear", "trees", "others"), generated=())


@PARTS.command(
    "a9a.libsvm.gz and agaricus.train.libsvm.gz",
    click.option("--only", default="", metavar="TEXT", help="Measure the fits whose names have this text."),
    rounds=5,
    least_rounds=2,
)
def main(chosen: Chosen, only: str) -> None:
    """Compare warm fits of small data with pyspark.ml's."""
    if not chosen.parts:
        raise click.UsageError("--data-dir: all parts need it")
    chosen.measure("small", Asked(chosen.rounds, chosen.data_dir, chosen.memory, only), ())


if __name__ == "__main__":
    main()
