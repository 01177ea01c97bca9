"""Topic models against tomotopy, gensim and pyspark.ml's LDA: likelihood, perplexity, seconds, memory.

    python -m benchmarks.topics --data-dir FOLDER

docs/performance/topics.md says what is measured and how to read it.
"""

from __future__ import annotations

import click

from benchmarks.compared import Chosen, Parts
from benchmarks.topics_part import Asked

PARTS = Parts(names=("likelihood", "process", "tomotopy", "pyspark", "large", "averaging"), generated=("averaging",))


@PARTS.command(
    "docword.kos.txt.gz",
    click.option("--tokens", type=click.IntRange(1_000_000), default=100_000_000, help="Of the part large."),
    click.option("--documents", type=click.IntRange(1_000), default=20_000, help="Of the part averaging."),
)
def main(chosen: Chosen, tokens: int, documents: int) -> None:
    """Compare topics with tomotopy's, gensim's, pyspark.ml's; exit with 1 if one is less likely than it should be."""
    asked = Asked(chosen.rounds, chosen.data_dir, tokens, documents, chosen.memory)
    chosen.measure("topics", asked, ("tomotopy", "gensim"))


if __name__ == "__main__":
    main()
