"""Recovery of lost servers, and what preparing for it costs pushes (paper, section 5.3).

    python -m benchmarks.recovery --megabytes 1000

docs/performance/failures.md says what is measured and how to read it.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import click
import grpc
import numpy as np

from benchmarks.frame import command, facts, machine, publish
from benchmarks.push_overhead import of_checkpoints, of_ids, of_replicas
from benchmarks.ratio import print_lines
from benchmarks.recovery_times import measure, print_times

# In the order in which they are measured.
PARTS = ("times", "ids", "replicas", "checkpoints")


@command(
    click.option("--megabytes", type=click.IntRange(1), default=1000, help="Of a server's shards, in MB."),
    click.option("--rounds", type=click.IntRange(1), default=3, help="How often a server is lost in each way."),
    click.option("--repeats", type=click.IntRange(7), default=15, help="Turns that the medians of pushes are of."),
    click.option("--seconds", type=float, default=61.0, help="Shortest run with checkpoints every 30 s."),
    click.option(
        "--folder", type=click.Path(path_type=Path, file_okay=False), help="For checkpoints.  [default: /tmp's]"
    ),
    click.option("--part", "parts", type=click.Choice(PARTS), multiple=True, default=PARTS, help="What to measure."),
)
def main(
    megabytes: int,
    rounds: int,
    repeats: int,
    seconds: float,
    folder: Path | None,
    parts: tuple[str, ...],
    form: str,
    output: Path | None,
) -> None:
    """Measure how fast lost servers are recovered, and what ids, replicas and checkpoints cost pushes."""
    logging.getLogger("ps2").setLevel(logging.ERROR)  # each lost server is a warning
    report: dict[str, Any] = {"megabytes": megabytes, "rounds": rounds, "repeats": repeats, "seconds": seconds}
    lines = []
    for part in (part for part in PARTS if part in parts):
        click.echo(f"measuring: {part}", err=True)
        if part == "times":
            times = measure(megabytes, rounds, folder)
            report |= {"times": times.lines(), "checkpoint": times.checkpoint()}
        elif part == "ids":
            lines += of_ids(repeats)
        elif part == "replicas":
            lines += of_replicas(repeats)
        else:
            lines.append(of_checkpoints(seconds, megabytes, folder))
    report["machine"] = machine(numpy=np.__version__, grpcio=grpc.__version__)
    report["lines"] = [line.as_json() for line in lines]
    publish(report, form, output, lambda: _print(report))


def _print(report: dict[str, Any]) -> None:
    click.echo(facts(report["machine"]))
    if "times" in report:
        click.echo(f"\nmedians of {report['rounds']}:")
        print_times(report["times"], report["checkpoint"])
    if report["lines"]:
        click.echo(f"\nmedians of {report['repeats']} turns; with checkpoints, of long runs:")
        print_lines(report["lines"])


if __name__ == "__main__":
    main()
