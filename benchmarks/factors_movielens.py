"""MovieLens' million ratings, a tenth held out at random: how well vectors predict, and seconds of fits."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.factors_part import Asked, Ratings, fit, rmse_of, spark_and_servers
from benchmarks.frame import Check, Part, answer, tell
from ps2.algorithms.factors.options import FactorOptions

FILE = "ml-1m.ratings.txt.gz"
HELD_OUT = 0.1
# What libmf comes to in 30 iterations with a penalty of .05; with biases the goal is lower.
GOAL, GOAL_WITH_BIASES = 0.851, 0.849
WAYS = {
    "plain": (FactorOptions(rank=32, reg=0.05, iterations=12), GOAL),
    "biases": (FactorOptions(rank=32, reg=0.05, iterations=8, biases=True), GOAL_WITH_BIASES),
}


def read(folder: str) -> Ratings:
    """Read the file; hold out rows at random."""
    rows = np.loadtxt(Path(folder) / FILE, dtype=np.int64, usecols=(0, 1, 2))
    held = np.random.default_rng(0).random(len(rows)) < HELD_OUT
    return Ratings(rows[:, 0], rows[:, 1], rows[:, 2].astype(np.float64), held)


def measure(asked: Asked) -> Part:
    ratings, checks, sizes = read(asked.data_dir), [], []
    with spark_and_servers(asked, "movielens") as (spark, ps):
        frame = ratings.frame(spark)
        fit(ps, frame, FactorOptions(rank=2, iterations=1))  # Python workers start
        for way, (options, goal) in WAYS.items():
            turns = [fit(ps, frame, options) for _ in range(asked.rounds)]
            rmse = rmse_of(turns[0][0], ratings)
            tell(f"{way}: {rmse:.4f}")
            checks.append(Check(f"{way}: RMSE of held-out rows", rmse, goal))
            sizes.append(
                {
                    "way": way,
                    "iterations": options.iterations,
                    "s of fit": f"{float(np.median([seconds for _, seconds in turns])):.2f}",
                    "s of iterations": f"{float(np.median([sum(found.history.seconds) for found, _ in turns])):.2f}",
                }
            )
    return Part(checks=checks, facts={"ratings": f"{len(ratings.users):,}", "rank": 32}, sizes=sizes)


if __name__ == "__main__":
    answer(Asked, measure)
