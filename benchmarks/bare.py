"""The first fits in a bare environment, where no kernel is compiled yet: seconds, and how many of them are compiling.

Builds the wheel and installs it in a new environment. Each estimator then fits 5,000 rows twice in a fresh driver with
an empty home and an empty cache of kernels, and twice in another one that finds the kernels. docs/performance/small.md
says how to read it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks import frame
from benchmarks.bare_driver import ESTIMATORS
from benchmarks.frame import Benchmark, Part, option, tell, within

ROOT = Path(__file__).resolve().parents[1]
DRIVER = ROOT / "benchmarks" / "bare_driver.py"
MAX_S = 15.0
Phases = dict[str, float]


@dataclass(frozen=True)
class Args(frame.Args):
    rounds: int = option(1, "Cold drivers, and warm ones, that the medians are of.", least=1)
    estimators: tuple[str, ...] = option(tuple(ESTIMATORS), "Estimators to fit.", choices=tuple(ESTIMATORS))
    python: str = option("", "A Python of an environment that has ps2's wheel; default: a new environment.")


def bare(args: Args) -> Part:
    """Fit in drivers without compiled kernels, and with them."""
    lines, rows = [], []
    with tempfile.TemporaryDirectory(prefix="ps2-bare-") as name:
        folder = Path(name)
        python = args.python or environment(folder)
        for estimator in args.estimators:
            turns = [_cold_and_warm(python, estimator, folder) for _ in range(args.rounds)]
            cold, warm = ({phase: median(turn[side][phase] for turn in turns) for phase in turns[0][side]}
                          for side in (0, 1))  # fmt: skip
            first_s = cold["imports"] + cold["first fit"]
            row = {
                "Spark's start": cold["Spark's start"],
                "first fit": first_s,
                "of it compiling": max(0.0, first_s - warm["imports"] - warm["first fit"]),
                "second fit": cold["second fit"],
                "first fit, kernels compiled": warm["imports"] + warm["first fit"],
            }
            tell(f"{estimator}: {frame.facts(row)}")
            rows.append({"estimator, s": estimator, **{title: f"{value:.1f}" for title, value in row.items()}})
            lines.append(within(f"first fit of {estimator}", "s", MAX_S, [first_s]))
    return Part(lines, table=rows)


def environment(folder: Path) -> str:
    """Build the wheel, and install it in a new environment, with bytecode, as pip does; return its Python."""
    tell("building the wheel, and an environment for it")
    build = [*("-m", "pip", "wheel", "-q", "--disable-pip-version-check", "--no-deps", "--no-build-isolation")]
    uv, python = str(Path(sys.executable).with_name("uv")), folder / "venv" / "bin" / "python"
    for command in (
        [sys.executable, *build, "--wheel-dir", str(folder), str(ROOT)],
        [uv, "venv", "-q", "--python", sys.executable, str(folder / "venv")],
    ):
        subprocess.run(command, check=True, stdout=sys.stderr)
    (wheel,) = folder.glob("*.whl")
    install = [uv, "pip", "install", "-q", "--compile-bytecode", "--python", str(python), str(wheel)]
    subprocess.run(install, check=True, stdout=sys.stderr)
    return str(python)


def _cold_and_warm(python: str, estimator: str, folder: Path) -> tuple[Phases, Phases]:
    """Return the phases of a driver that compiles kernels, and those of another one after it."""
    with tempfile.TemporaryDirectory(dir=folder) as home:
        env = {
            **{name: value for name, value in os.environ.items() if name in ("PATH", "JAVA_HOME", "LANG", "TMPDIR")},
            "HOME": home,
            "NUMBA_CACHE_DIR": f"{home}/kernels",
            "PYSPARK_PYTHON": python,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        cold, warm = (_driver([python, str(DRIVER), estimator], env, home) for _ in range(2))
    return cold, warm


def _driver(command: list[str], env: dict[str, str], folder: str) -> Phases:
    finished = subprocess.run(command, env=env, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    phases: Phases = json.loads(finished.stdout.splitlines()[-1])
    return phases


BENCHMARK = Benchmark("bare", Args, {"bare": bare})

if __name__ == "__main__":
    BENCHMARK.main()
