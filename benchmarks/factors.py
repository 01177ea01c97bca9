"""Matrix factorization: how good vectors are, seconds of fits, and ratings a second against the bare kernel.

    python -m benchmarks.factors --data-dir FOLDER

docs/performance/factors.md says what is measured and how to read it.
"""

from __future__ import annotations

import click

from benchmarks.compared import Chosen, Parts
from benchmarks.factors_part import Asked

PARTS = Parts(
    names=("movielens", "als", "implicit", "generated", "libmf", "recommend"),
    generated=("generated", "libmf", "recommend"),
)


@PARTS.command(
    "ml-1m.ratings.txt.gz: lines 'user item rating'",
    click.option("--ratings", type=click.IntRange(100_000), default=20_000_000, help="Of the part generated."),
)
def main(chosen: Chosen, ratings: int) -> None:
    """Factorize ratings; exit with 1 if vectors predict worse than they should."""
    chosen.measure("factors", Asked(chosen.rounds, chosen.data_dir, ratings, chosen.memory), ())


if __name__ == "__main__":
    main()
