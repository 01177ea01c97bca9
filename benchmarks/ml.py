"""Linear models against pyspark.ml's: right results, steps to the optimum, seconds to equal objectives.

    python -m benchmarks.ml --part a9a --data-dir FOLDER

docs/performance/linear.md says what is measured and how to read it.
"""

from __future__ import annotations

import click

from benchmarks.compared import Chosen, Parts
from benchmarks.frame import read_numbers
from benchmarks.ml_part import Asked

PARTS = Parts(
    names=("reference", "steps", "a9a", "news20", "large", "ftsgd", "gate", "averaging"),
    generated=("large", "ftsgd", "gate"),
)


@PARTS.command(
    "a9a.libsvm.gz, a9a.t.libsvm.gz and news20-bigram.train.libsvm.gz and .test.libsvm.gz",
    click.option("--features", default="1000000", metavar="N,...", help="Sizes of the part large."),
    click.option("--rows", type=click.IntRange(1000), default=200_000, help="Rows of the parts large and ftsgd."),
    click.option("--pyspark/--no-pyspark", "theirs", default=True, help="Let pyspark.ml train in the part large, too."),
    click.option(
        "--target",
        type=float,
        help="Objective to reach in the part large.  [default: pyspark.ml's after 20 iterations]",
    ),
    rounds=5,
    least_rounds=2,
    memory="6g",
    memory_help="Of Spark's JVM; pyspark.ml wants 18g for 60M features.",
)
def main(chosen: Chosen, features: str, rows: int, theirs: bool, target: float | None) -> None:
    """Compare linear models with pyspark.ml's; exit with 1 if one is not what it should be."""
    chosen.measure(
        "ml", Asked(chosen.rounds, chosen.data_dir, read_numbers(features), rows, theirs, target, chosen.memory), ()
    )


if __name__ == "__main__":
    main()
