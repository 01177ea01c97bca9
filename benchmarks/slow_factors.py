"""Factorization with slow workers: RMSE of held-out ratings over time, by rotation, SSP and averaging."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.factors_copies import Copies, CopiesProgram, train_copies
from benchmarks.factors_generated import generate
from benchmarks.factors_part import Ratings
from benchmarks.frame import Part, answer, tell
from benchmarks.local_spark import start_spark
from benchmarks.slow_part import CONTROLLED, PLAIN, SLOWNESS, Asked, Curve, compared, slowly
from ps2 import PS2Context
from ps2.algorithms.factors import sgd, sgd_solver, trainer
from ps2.algorithms.factors.dealing import Deal, deal_ratings
from ps2.algorithms.factors.grid import Grid, Layout
from ps2.algorithms.factors.options import FactorOptions
from ps2.algorithms.factors.ratings import RatingColumns, RatingsSurvey, survey_ratings
from ps2.algorithms.training.balance import deal_by_cost

RATINGS, HELD_OUT, RANK = 4_000_000, 0.05, 64
SERVERS, WORKERS = 2, len(SLOWNESS)
OPTIONS = FactorOptions(rank=RANK, reg=0.2, iterations=8, save_interval=0)
# With time control an iteration has a part of the ratings. The fixed budget is what the first worker needs for a block.
FIXED_S = 0.03
ROTATIONS = {
    PLAIN: OPTIONS,
    "rotation, fixed budget": replace(OPTIONS, iterations=40, budget_s=FIXED_S),
    CONTROLLED: replace(OPTIONS, iterations=40, budget_s="auto"),
}
BY_SPEED = "rotation, users dealt by speed"
COPIES = {
    "ssp": (Copies(clocks=8, staleness=3), replace(OPTIONS, iterations=9)),
    "averaging": (Copies(clocks=1, averages=True), replace(OPTIONS, iterations=9)),
}


class SlowRotation(sgd.SgdProgram):
    """A worker that sleeps after all steps, as long as its rank says."""

    def __call__(self, worker: Any, grid: Grid) -> None:
        with slowly(sgd.BlockDescent, "take", worker.rank):
            super().__call__(worker, grid)


class SlowCopies(CopiesProgram):
    """Likewise."""

    def __call__(self, worker: Any, grid: Grid) -> None:
        with slowly(sgd.BlockDescent, "take", worker.rank):
            super().__call__(worker, grid)


def measure(asked: Asked) -> Part:
    """Let the ways alternate; each trains until it is as good as rotation without control at its end."""
    ratings = generate(RATINGS)
    held = np.random.default_rng(1).random(RATINGS) < HELD_OUT
    ways = [*ROTATIONS, BY_SPEED, *COPIES]
    curves: dict[str, list[Curve]] = {way: [] for way in ways}
    with _spark_and_servers(asked) as (spark, ps), patch.object(sgd_solver, "SgdProgram", SlowRotation):
        frame = _frame(spark, ratings, held)
        _rotate(ps, frame, replace(OPTIONS, iterations=1))  # Python workers start
        for _ in range(asked.rounds):
            for way in ways:
                if way in COPIES:
                    copies, options = COPIES[way]
                    survey, deal = _dealt(frame, options)
                    curve = train_copies(
                        ps, deal_ratings(frame, survey, deal, options), survey, options, copies, SlowCopies
                    )
                    survey.release()
                else:
                    curve = _rotate(ps, frame, ROTATIONS.get(way, OPTIONS), way == BY_SPEED)
                curves[way].append(curve)
                tell(f"{way}: {curve.seconds[-1]:.1f} s, RMSE {curve.losses[-1]:.4f}, {curve.losses.round(4).tolist()}")
    return compared(curves, "RMSE", {"ratings": f"{RATINGS:,}", "rank": RANK})


def _rotate(ps: Any, frame: Any, options: FactorOptions, by_speed: bool = False) -> Curve:
    survey, deal = _dealt(frame, options)
    if by_speed:
        deal = deal_users_by_speed(survey, deal)
    history = trainer.train(ps, deal_ratings(frame, survey, deal, options), survey, options).history
    return Curve(np.cumsum(history.seconds), np.array(history.validation))


def _dealt(frame: Any, options: FactorOptions) -> tuple[RatingsSurvey, Deal]:
    survey = survey_ratings(frame, RatingColumns(validation="held"), options)
    return survey, Deal.of(survey, WORKERS, 1, 4 * sgd.SgdSettings(options, 1.0).width)


def deal_users_by_speed(survey: RatingsSurvey, deal: Deal) -> Deal:
    """Deal users so that all workers would need equal times: what dealing anew could come to at best."""
    speeds = np.rint(30 / np.array(SLOWNESS)).astype(np.int64)
    part = deal_by_cost(survey.user_counts, int(speeds.sum()))
    worker = np.repeat(np.arange(WORKERS), speeds)[part]
    places = np.empty(len(worker), np.int32)
    places[np.argsort(worker, kind="stable")] = np.arange(len(worker), dtype=np.int32)
    begins = np.append(0, np.cumsum(np.bincount(worker, minlength=WORKERS)))
    layout = deal.layout
    return Deal(Layout(layout.ring, layout.groups, begins, layout.item_begins), places, deal.item_places)


def _frame(spark: Any, ratings: Ratings, held: Any) -> Any:
    import pandas as pd

    table = pd.DataFrame({"user": ratings.users, "item": ratings.items, "rating": ratings.values, "held": held})
    frame = spark.createDataFrame(table).repartition(WORKERS).cache()
    frame.count()
    return frame


@contextmanager
def _spark_and_servers(asked: Asked) -> Iterator[tuple[Any, PS2Context]]:
    settings = {
        "spark.driver.memory": asked.memory,
        "spark.driver.maxResultSize": "0",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.shuffle.partitions": str(WORKERS),
        "spark.python.daemon.module": "ps2.run.daemon",
    }
    spark = start_spark(f"local[{WORKERS}]", "benchmarks.slow_factors", settings)
    try:
        with PS2Context.getOrCreate(spark, servers=SERVERS) as ps:
            yield spark, ps
    finally:
        spark.stop()


if __name__ == "__main__":
    answer(Asked, measure)
