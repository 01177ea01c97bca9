"""Against pyspark.ml's ALS on MovieLens' million ratings: seconds of ``fit`` to the RMSE that ALS comes to."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from click import ClickException

from benchmarks.factors_movielens import read
from benchmarks.factors_part import Asked, Ratings, fit, rmse_of, spark_and_servers
from benchmarks.frame import Part, answer, tell
from benchmarks.ml_part import Line
from ps2.algorithms.factors.options import FactorOptions

RANK, ALS_ITERATIONS = 32, 10
PENALTIES = (0.05, 0.06, 0.07, 0.08)
# Iterations that ours tries until its RMSE is as low.
TRIED = range(4, 31)
GOAL = 6.0


def measure(asked: Asked) -> Part:
    ratings = read(asked.data_dir)
    with spark_and_servers(asked, "als") as (spark, ps):
        frame, held = ratings.frame(spark), _held_out(spark, ratings)
        _als(frame, PENALTIES[0], rank=2, iterations=1)
        tried = [(_als_rmse(_als(frame, penalty)[0], held), penalty) for penalty in PENALTIES]
        target, penalty = min(tried)
        tell(f"ALS: RMSE {target:.4f} with a penalty of {penalty}")
        fit(ps, frame, FactorOptions(rank=2, iterations=1))  # Python workers start
        options = _shortest(ps, frame, ratings, target)
        theirs, ours = [], []
        for _ in range(asked.rounds):
            theirs.append(_als(frame, penalty)[1])
            ours.append(fit(ps, frame, options)[1])
            tell(f"ALS {theirs[-1]:.2f} s, ours {ours[-1]:.2f} s")
    line = Line(f"s of fit to RMSE {target:.4f}", "pyspark.ml ALS", "s", GOAL, theirs, ours)
    sizes = [{"iterations": options.iterations, "ALS's": ALS_ITERATIONS, "ALS's penalty": penalty}]
    return Part([line], facts={"ratings": f"{len(ratings.users):,}", "rank": RANK}, sizes=sizes)


def _shortest(ps: Any, frame: Any, ratings: Ratings, target: float) -> FactorOptions:
    """Return the options of the shortest training that is as good."""
    for iterations in TRIED:
        options = FactorOptions(rank=RANK, reg=0.05, iterations=iterations)
        rmse = rmse_of(fit(ps, frame, options)[0], ratings)
        tell(f"ours, {iterations} iterations: {rmse:.4f}")
        if rmse <= target:
            return options
    raise ClickException(f"{rmse:.4f} is above ALS's {target:.4f} after {iterations} iterations")


def _held_out(spark: Any, ratings: Ratings) -> Any:
    """Return the held-out ratings as a cached DataFrame."""
    return Ratings(ratings.users, ratings.items, ratings.values, ~ratings.held).frame(spark)


def _als(frame: Any, penalty: float, rank: int = RANK, iterations: int = ALS_ITERATIONS) -> tuple[Any, float]:
    """Return pyspark.ml's model, and the seconds of its fit."""
    from pyspark.ml.recommendation import ALS

    als = ALS(rank=rank, maxIter=iterations, regParam=penalty, coldStartStrategy="drop", seed=0)
    began_s = time.monotonic()
    model = als.fit(frame)
    model.itemFactors.count()
    return model, time.monotonic() - began_s


def _als_rmse(model: Any, held: Any) -> float:
    found = model.transform(held).selectExpr("avg(pow(prediction - rating, 2)) as mse").first()
    return float(np.sqrt(found["mse"]))


if __name__ == "__main__":
    answer(Asked, measure)
