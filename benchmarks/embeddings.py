"""Vectors of words and vertices, compared with gensim and pyspark.ml: tokens a second, F1 of labels, link prediction.

    python -m benchmarks.embeddings --data-dir FOLDER

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
from benchmarks.embeddings_part import Asked
from benchmarks.frame import ask_all, command, exit_code, machine, print_parts, publish

PARTS = Parts(names=("word2vec", "deepwalk", "node2vec", "links", "memory", "line"), generated=("memory", "line"))


@command(
    *PARTS.options("blogcatalog.edges.txt.gz and blogcatalog.labels.txt.gz"),
    click.option("--rounds", type=click.IntRange(1), default=3, help="Turns that the medians are of."),
    click.option("--walks", type=click.IntRange(1), default=80, help="From each vertex, of deepwalk and node2vec."),
    click.option("--via", default="local,rows,servers", help="Ways, of deepwalk."),
    click.option("--vertices", type=click.IntRange(1), default=20_000_000, help="Vectors of a table, of memory."),
    click.option("--memory", default="4g", metavar="SIZE", help="Of Spark's JVM."),
    click.option("--strict", is_flag=True, help="Exit with 1 if a goal is missed, too."),
)
def main(
    parts: tuple[str, ...],
    data_dir: str | None,
    rounds: int,
    walks: int,
    via: str,
    vertices: int,
    memory: str,
    strict: bool,
    form: str,
    output: Path | None,
) -> None:
    """Compare vectors with those of gensim and pyspark.ml, and with DeepWalk's published results."""
    chosen = PARTS.chosen(parts, data_dir)
    found = ask_all("embeddings", chosen, Asked(rounds, data_dir or "", walks, tuple(via.split(",")), memory, vertices))
    of = machine(pyspark=pyspark.__version__, numpy=np.__version__, **versions(("gensim", "scikit-learn")))
    report: dict[str, Any] = {"machine": of, "rounds": rounds, "parts": found}
    publish(report, form, output, lambda: _print(report))
    sys.exit(exit_code(report, strict))


def _print(report: dict[str, Any]) -> None:
    print_parts(report, print_compared)
    print_sizes(report)


if __name__ == "__main__":
    main()
