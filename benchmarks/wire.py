"""The data plane compared with the machine without PS2: raw sockets, a bare gRPC call, the kernel in process.

    python -m benchmarks.wire --repeats 15

docs/performance/wire.md says what is measured and how to read it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click
import grpc
import numba
import numpy as np

from benchmarks.frame import ask, command, facts, machine, publish
from benchmarks.ratio import print_lines

UNIX_SOCKETS_VARIABLE = "PS2_UNIX_SOCKETS"
# Parts in the order of the table; those of TCP keep PS2 from using Unix sockets.
PARTS = ("tcp", "unix", "blocks", "small", "small-tcp", "calls", "adam")


@command(
    click.option("--repeats", type=click.IntRange(7), default=15, help="Turns that the medians are of."),
    click.option("--part", "parts", type=click.Choice(PARTS), multiple=True, default=PARTS, help="What to measure."),
    click.option("--strict", is_flag=True, help="Exit with 1 if a target is missed."),
)
def main(repeats: int, parts: tuple[str, ...], strict: bool, form: str, output: Path | None) -> None:
    """Measure how close PS2's data plane comes to raw sockets and bare calls."""
    measured = [_measure(part, repeats) for part in PARTS if part in parts]
    versions = {"numpy": np.__version__, "numba": numba.__version__, "grpcio": grpc.__version__}
    lines = [line for part in measured for line in part["lines"]]
    report: dict[str, Any] = {
        "machine": machine(**versions),
        "repeats": repeats,
        "sockets": {part["part"]: part["sockets"] for part in measured},
        "lines": lines,
    }
    publish(report, form, output, lambda: _print(report))
    sys.exit(1 if strict and any(line["met"] is False for line in lines) else 0)


def _measure(part: str, repeats: int) -> dict[str, Any]:
    """Run a part in a process of its own, whose servers and clients inherit its environment."""
    environment = {name: value for name, value in os.environ.items() if name != UNIX_SOCKETS_VARIABLE}
    if part in ("tcp", "small-tcp"):
        environment[UNIX_SOCKETS_VARIABLE] = "0"
    return ask(part, "benchmarks.wire_parts", part, str(repeats), env=environment)


def _print(report: dict[str, Any]) -> None:
    sockets = ", ".join(f"{kind} in {part}" for part, kind in report["sockets"].items())
    click.echo(facts(report["machine"]))
    click.echo(f"medians of {report['repeats']} turns; PS2's own data went over {sockets}\n")
    print_lines(report["lines"])


if __name__ == "__main__":
    main()
