"""The first use in a fresh driver against pyspark.ml's: a context and a first small fit, phase by phase.

docs/performance/small.md says how to read it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks import frame
from benchmarks.frame import Benchmark, Line, Part, option, take_turns
from ps2.run.spark.session import LOG_SETTINGS

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


@dataclass(frozen=True)
class Args(frame.Args):
    rounds: int = option(5, "Drivers of each side, in turns.", least=1)


def drivers(args: Args) -> Part:
    """Compare first uses in fresh drivers, in turns."""
    with tempfile.TemporaryDirectory(prefix="first-use-") as folder:
        path = generated(Path(folder) / "rows.libsvm")
        turns = take_turns({side: partial(first_use, side, path) for side in SIDES}, args.rounds)
    lines = []
    for what, phases in COUNTED.items():
        theirs, ours = ([sum(one[phase] for phase in phases) for one in turns[side]] for side in SIDES)
        lines.append(Line(what, SIDES[0], "s", 1 / GOAL, theirs, ours))
    medians = [
        {"phase": phase, **{f"{side}, s": median(one[phase] for one in turns[side]) for side in SIDES}}
        for phase in PHASES
    ]
    return Part(lines, table=medians)


def first_use(side: str, path: Path) -> dict[str, float]:
    """Run one driver to its end; return its seconds by phase."""
    arguments = [side, repr(time.monotonic()), path.as_uri(), str(FEATURES), LOG_SETTINGS.as_uri()]
    finished = subprocess.run(
        [sys.executable, "-m", "benchmarks.first_use_driver", *arguments], stdout=subprocess.PIPE, check=True
    )
    seconds: dict[str, float] = json.loads(finished.stdout.splitlines()[-1])
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


BENCHMARK = Benchmark("first_use", Args, {"drivers": drivers})

if __name__ == "__main__":
    BENCHMARK.main()
