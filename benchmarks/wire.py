"""The data plane against what the machine does without PS2: raw sockets, a bare gRPC call, the kernel in process.

    python -m benchmarks.wire --repeats 15

docs/performance.md says what is measured and how to read it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import grpc
import numba
import numpy as np

from benchmarks.ratio import print_lines
from benchmarks.report import facts, machine, write_json

UNIX_SOCKETS_VARIABLE = "PS2_UNIX_SOCKETS"
# In the order of the table. Only the first keeps PS2 from using Unix sockets.
PARTS = ("tcp", "unix", "calls", "adam")


@click.command(context_settings={"show_default": True})
@click.option("--repeats", type=click.IntRange(7), default=15, help="Turns that the medians are of.")
@click.option("--part", "parts", type=click.Choice(PARTS), multiple=True, default=PARTS, help="What to measure.")
@click.option("--strict", is_flag=True, help="Exit with 1 if a target is missed.")
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table", help="What to print.")
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the JSON to a file too.")
def main(repeats: int, parts: tuple[str, ...], strict: bool, form: str, output: Path | None) -> None:
    """Measure how close PS2's data plane comes to raw sockets and bare calls."""
    load_before = os.getloadavg()[0]
    measured = [_measure(part, repeats) for part in PARTS if part in parts]
    versions = {"numpy": np.__version__, "numba": numba.__version__, "grpcio": grpc.__version__}
    lines = [line for part in measured for line in part["lines"]]
    report: dict[str, Any] = {
        "machine": machine(load_before, **versions),
        "repeats": repeats,
        "sockets": {part["part"]: part["sockets"] for part in measured},
        "lines": lines,
    }
    text = json.dumps(report, indent=2)
    if output is not None:
        write_json(output, text)
    if form == "json":
        click.echo(text)
    else:
        click.echo(facts(report["machine"]))
        click.echo(f"medians of {repeats} turns; PS2's own data went over {_by_part(report['sockets'])}")
        click.echo()
        print_lines(lines)
    sys.exit(1 if strict and any(line["met"] is False for line in lines) else 0)


def _measure(part: str, repeats: int) -> dict[str, Any]:
    """Run a part in a process of its own, whose servers and clients inherit its environment."""
    click.echo(f"measuring: {part}", err=True)
    environment = {name: value for name, value in os.environ.items() if name != UNIX_SOCKETS_VARIABLE}
    if part == "tcp":
        environment[UNIX_SOCKETS_VARIABLE] = "0"
    command = [sys.executable, "-m", "benchmarks.wire_parts", part, str(repeats)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise click.ClickException(f"the part {part!r} ended with {done.returncode}; what it said is above")
    return json.loads(done.stdout)


def _by_part(sockets: dict[str, str]) -> str:
    return ", ".join(f"{kind} in {part}" for part, kind in sockets.items())


if __name__ == "__main__":
    main()
