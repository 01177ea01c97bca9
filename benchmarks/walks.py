"""Random walks through a generated graph: steps a second, with the graph on workers and on servers.

    python -m benchmarks.walks --edges 50000000 --vertices 2500000 --way servers

docs/performance/embeddings.md says what is measured and how to read it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numba
import pyspark

from benchmarks.frame import ask, command, exit_code, machine, print_parts, publish
from benchmarks.walks_part import Asked
from ps2.cli.output import print_table
from ps2.text_tables import Column

WAYS = ("workers", "servers")


@command(
    click.option("--way", "ways", type=click.Choice(WAYS), multiple=True, default=WAYS, help="Where the graph lies."),
    click.option("--edges", type=click.IntRange(1), default=5_000_000, help="Of the graph, each of one direction."),
    click.option("--vertices", type=click.IntRange(1), default=500_000, help="Of the graph; one walk from each."),
    click.option("--length", type=click.IntRange(2), default=40, help="Vertices of a walk."),
    click.option("--rounds", type=click.IntRange(1), default=3, help="Turns that the medians are of."),
    click.option("--weighted", is_flag=True, help="Let edges have weights."),
    click.option("--strict", is_flag=True, help="Exit with 1 if a goal is missed."),
)
def main(
    ways: tuple[str, ...],
    edges: int,
    vertices: int,
    length: int,
    rounds: int,
    weighted: bool,
    strict: bool,
    form: str,
    output: Path | None,
) -> None:
    """Measure the speed of walks."""
    found = {
        way: ask(
            way,
            "benchmarks.walks_part",
            json.dumps(asdict(Asked(way, edges, vertices, length, rounds, weighted))),
        )
        for way in WAYS
        if way in ways
    }
    versions = {"pyspark": pyspark.__version__, "numba": numba.__version__}
    report: dict[str, Any] = {"machine": machine(**versions), "rounds": rounds, "parts": found}
    publish(report, form, output, lambda: print_parts(report, _print_lines))
    sys.exit(exit_code(report, strict))


def _print_lines(lines: Sequence[dict[str, Any]]) -> None:
    rows = [
        (line["what"], f"{line['median'] / 1e6:.2f}", "-" if line["goal"] is None else f"{line['goal'] / 1e6:g}")
        for line in lines
    ]
    print_table([Column("walks"), Column("M steps/s", right=True), Column("goal", right=True)], rows)


if __name__ == "__main__":
    main()
