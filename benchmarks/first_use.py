"""The first use in a fresh driver against pyspark.ml's: a context and a first small fit, phase by phase.

    python -m benchmarks.first_use --rounds 5

docs/performance/small.md says what is measured and how to read it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
import pyspark

from benchmarks.frame import command, exit_code, facts, machine, publish, tell
from benchmarks.ml_part import Line
from ps2.algorithms.spark_session import LOG_SETTINGS

SIDES = ("pyspark.ml", "ours")
PHASES = ("python", "session", "read", "imports", "context", "first fit", "second fit")
GOAL = 1.5
# What the goal counts: from when the SparkSession is there, and from the start of the process.
COUNTED = {
    "first use, SparkSession excluded": ("read", "imports", "context", "first fit"),
    "first use, SparkSession included": ("python", "session", "read", "imports", "context", "first fit"),
    "second fit": ("second fit",),
}
# Of the generated rows: those of a9a.
ROWS, FEATURES, FIELDS = 32_561, 123, 14


@command(
    click.option("--rounds", type=click.IntRange(1), default=5, help="Drivers of each side, in turns."),
    click.option("--data", type=click.Path(exists=True, path_type=Path), help="A file of LIBSVM instead of our rows."),
    click.option("--features", type=click.IntRange(1), default=FEATURES, help="Features of that file."),
    click.option("--strict", is_flag=True, help="Exit with 1 if a goal is missed."),
)
def main(rounds: int, data: Path | None, features: int, strict: bool, form: str, output: Path | None) -> None:
    """Compare first uses in fresh drivers, in turns."""
    with tempfile.TemporaryDirectory(prefix="first-use-") as folder:
        path = generated(Path(folder) / "rows.libsvm") if data is None else data.resolve()
        found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
        for turn in range(rounds + 1):  # the first one fills the system's cache of files
            for side in SIDES:
                seconds = first_use(side, path, features)
                tell(f"{side}: {facts({phase: f'{value:.2f}' for phase, value in seconds.items()})}")
                if turn:
                    found[side].append(seconds)
    lines = [
        Line(
            what,
            *SIDES[:1],
            "s",
            GOAL,
            *([sum(one[phase] for phase in phases) for one in found[side]] for side in SIDES),
        )
        for what, phases in COUNTED.items()
    ]
    medians = [
        {"phase": phase, **{f"{side}, s": round(median(one[phase] for one in found[side]), 3) for side in SIDES}}
        for phase in PHASES
    ]
    part = {"facts": {"data": path.name}, "lines": [line.as_json() for line in lines], "checks": [], "sizes": medians}
    versions = machine(numpy=np.__version__, pyspark=pyspark.__version__)
    report: dict[str, Any] = {"machine": versions, "rounds": rounds, "parts": {"first_use": part}}
    publish(report, form, output, lambda: show(report))
    sys.exit(exit_code(report, strict))


def first_use(side: str, path: Path, features: int) -> dict[str, float]:
    """Run one driver to its end; return its seconds by phase."""
    arguments = [side, repr(time.monotonic()), path.as_uri(), str(features), LOG_SETTINGS.as_uri()]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.first_use_part", *arguments], stdout=subprocess.PIPE, check=True
    )
    seconds: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return seconds


def generated(path: Path) -> Path:
    """Write rows like those of a9a: fields of one value each, and labels that follow from them."""
    rng = np.random.default_rng(1)
    weight = rng.normal(size=FEATURES)
    bounds = np.linspace(0, FEATURES, FIELDS + 1).astype(int)
    keys = np.stack([rng.integers(low, high, ROWS) for low, high in pairwise(bounds)], axis=1)
    labels = rng.random(ROWS) < 1 / (1 + np.exp(-weight[keys].sum(axis=1)))
    lines = (
        f"{int(label)} " + " ".join(f"{key + 1}:1" for key in row) for label, row in zip(labels, keys, strict=True)
    )
    path.write_text("\n".join(lines) + "\n")
    return path


def show(report: dict[str, Any]) -> None:
    click.echo(facts(report["machine"]))
    click.echo(f"medians of {report['rounds']} drivers of each side, in turns; local[2], two servers\n")
    part = report["parts"]["first_use"]
    width = max(map(len, COUNTED)) + 2
    click.echo(f"{'':{width}}" + "".join(f"{side + ', s':>16}" for side in SIDES))
    for row in part["sizes"]:
        click.echo(f"{row['phase']:{width}}" + "".join(f"{row[f'{side}, s']:>16.3f}" for side in SIDES))
    click.echo()
    for line in part["lines"]:
        click.echo(json.dumps(line))


if __name__ == "__main__":
    main()
