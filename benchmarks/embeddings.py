"""Vectors of words and vertices, compared with gensim and pyspark.ml: tokens a second, F1 of labels, link prediction.

    python -m benchmarks.embeddings --data-dir FOLDER

docs/performance/embeddings.md says what is measured and how to read it.
"""

from __future__ import annotations

import click

from benchmarks.compared import Chosen, Parts
from benchmarks.embeddings_part import Asked

PARTS = Parts(names=("word2vec", "deepwalk", "node2vec", "links", "memory", "line"), generated=("memory", "line"))


@PARTS.command(
    "blogcatalog.edges.txt.gz and blogcatalog.labels.txt.gz",
    click.option("--walks", type=click.IntRange(1), default=80, help="From each vertex, of deepwalk and node2vec."),
    click.option("--via", default="local,rows,servers", help="Ways, of deepwalk."),
    click.option("--vertices", type=click.IntRange(1), default=20_000_000, help="Vectors of a table, of memory."),
)
def main(chosen: Chosen, walks: int, via: str, vertices: int) -> None:
    """Compare vectors with those of gensim and pyspark.ml, and with DeepWalk's published results."""
    chosen.measure(
        "embeddings",
        Asked(chosen.rounds, chosen.data_dir, walks, tuple(via.split(",")), chosen.memory, vertices),
        ("gensim", "scikit-learn"),
    )


if __name__ == "__main__":
    main()
