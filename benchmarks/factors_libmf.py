"""Against libmf on generated ratings: ratings a second. ``LIBMF`` names a folder with its built ``mf-train``."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
from click import ClickException

from benchmarks.factors_generated import ITERATIONS, OPTIONS, RANK, generate
from benchmarks.factors_part import WORKERS, Asked, Ratings, fit, spark_and_servers
from benchmarks.frame import Part, answer, tell
from benchmarks.trees_part import Score

GOAL = 0.6


def measure(asked: Asked) -> Part:
    program = Path(os.environ.get("LIBMF", "")) / "mf-train"
    if not program.is_file():
        tell("no libmf: LIBMF names a folder with its built mf-train")
        return Part()
    ratings = generate(asked.ratings)
    theirs, ours = [], []
    with tempfile.TemporaryDirectory() as folder, spark_and_servers(asked, "libmf") as (spark, ps):
        lines = Path(folder) / "ratings"
        write(ratings, lines)
        frame = ratings.frame(spark)
        for _ in range(asked.rounds):
            theirs.append(libmf(program, lines))
            found, _ = fit(ps, frame, OPTIONS)
            # The first iteration learns the first numbers of each vector only, theirs as well.
            ours.append(float(np.median(found.history.seconds[1:-1])))
            tell(
                f"M ratings/s: libmf {asked.ratings / theirs[-1] / 1e6:.1f}, ours {asked.ratings / ours[-1] / 1e6:.1f}"
            )
    rates = [asked.ratings / float(np.median(seconds)) / 1e6 for seconds in (theirs, ours)]
    line = Score(f"M ratings/s, rank {RANK}", f"libmf, {WORKERS} threads", "M/s", GOAL * rates[0], *rates)
    return Part([line], facts={"ratings": f"{asked.ratings:,}", "workers": WORKERS})


def write(ratings: Ratings, path: Path) -> None:
    """Write lines 'user item rating'."""
    table = pa.table({"u": ratings.users, "i": ratings.items, "r": ratings.values.astype(np.float32)})
    options = pyarrow.csv.WriteOptions(include_header=False, delimiter=" ")
    pyarrow.csv.write_csv(table, path, options)


def libmf(program: Path, lines: Path) -> float:
    """Return the median seconds of an iteration, without the first and the last."""
    asked = [
        str(program),
        "-s",
        str(WORKERS),
        "-k",
        str(RANK),
        "-l2",
        "0.05",
        "-t",
        str(ITERATIONS),
        str(lines),
        os.devnull,
    ]
    ends = []
    with subprocess.Popen(asked, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if line.split()[:1] and line.split()[0].isdigit():
                ends.append(time.monotonic())
    if running.returncode or len(ends) != ITERATIONS:
        raise ClickException(f"{program}: expected {ITERATIONS} iterations, got {len(ends)}; code {running.returncode}")
    return float(np.median(np.diff(ends)[:-1]))


if __name__ == "__main__":
    answer(Asked, measure)
