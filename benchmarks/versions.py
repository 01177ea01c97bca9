"""Fits of this checkout against those of an earlier commit, in turns: what a change costs, or saves.

Each side has a driver, a Spark and a fleet. The earlier commit compiles its kernels in the first fits, which takes
minutes. docs/performance/small.md says how to read it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks import frame
from benchmarks.frame import Benchmark, Line, Part, SkippedError, option, tell
from benchmarks.versions_driver import FITS

ROOT = Path(__file__).resolve().parents[1]
WARM_UPS = 3


@dataclass(frozen=True)
class Args(frame.Args):
    rounds: int = option(7, "Turns that the medians are of.", least=2)
    before: str = option("", "The earlier commit, of this repository.")
    fits: tuple[str, ...] = option(tuple(FITS), "What to fit.", choices=tuple(FITS))
    rows: int = option(5_000, "Rows of each fit.", least=1_000)
    goal: float = option(0.95, "How many times as fast a fit is to be, at least.")


def fits(args: Args) -> Part:
    """Fit in turns."""
    if not args.before:
        raise SkippedError("--before COMMIT is needed")
    lines = []
    with ExitStack() as opened:
        folders = [opened.enter_context(_package(args.before)), ROOT]
        drivers = [opened.enter_context(_driver(folder, args.rows)) for folder in folders]
        for name in args.fits:
            turns = [[_fit_s(driver, name) for driver in drivers] for _ in range(WARM_UPS + args.rounds)]
            before, now = zip(*turns[WARM_UPS:], strict=True)
            tell(f"{name}: before {median(before):.3f} s, now {median(now):.3f} s")
            lines.append(Line(name, args.before, "s", args.goal, before, now))
    return Part(lines)


@contextmanager
def _package(commit: str) -> Iterator[Path]:
    """Write the package of a commit to a folder."""
    with tempfile.TemporaryDirectory(prefix="ps2-before-") as folder:
        packed = subprocess.run(["git", "-C", str(ROOT), "archive", commit, "ps2"], check=True, capture_output=True)
        subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)
        yield Path(folder)


@contextmanager
def _driver(folder: Path, rows: int) -> Iterator[subprocess.Popen[str]]:
    """Start a driver with the ``ps2`` of a folder."""
    own = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    env = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", **own}
    command, pipe = [sys.executable, "-m", "benchmarks.versions_driver", str(rows)], subprocess.PIPE
    with subprocess.Popen(command, env=env, cwd=folder, stdin=pipe, stdout=pipe, text=True) as driver:
        yield driver


def _fit_s(driver: subprocess.Popen[str], name: str) -> float:
    assert driver.stdin is not None
    assert driver.stdout is not None
    driver.stdin.write(f"{name}\n")
    driver.stdin.flush()
    return float(driver.stdout.readline())


BENCHMARK = Benchmark("versions", Args, {"fits": fits})

if __name__ == "__main__":
    BENCHMARK.main()
