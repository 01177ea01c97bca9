"""Topic models against tomotopy and pyspark.ml's LDA: likelihood, perplexity, seconds, memory.

    python -m benchmarks.topics --data-dir FOLDER

docs/performance.md says what is measured and how to read it.
"""

from __future__ import annotations

import click

from benchmarks.compared import Chosen, Parts
from benchmarks.topics_part import Asked

PARTS = Parts(names=("likelihood", "process", "tomotopy", "pyspark", "large"), generated=())


@PARTS.command(
    "docword.kos.txt.gz",
    click.option("--tokens", type=click.IntRange(1_000_000), default=100_000_000, help="Of the part large."),
)
def main(chosen: Chosen, tokens: int) -> None:
    """Compare topics with tomotopy's and pyspark.ml's; exit with 1 if they are less likely than they should be."""
    chosen.measure("topics", Asked(chosen.rounds, chosen.data_dir, tokens, chosen.memory), ("tomotopy",))


if __name__ == "__main__":
    main()
