"""Factorization over slow links: rotation of blocks of items, and copies of all items under BSP and SSP."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.factors_copies import Copies, train_copies
from benchmarks.factors_generated import generate
from benchmarks.frame import Part, answer, tell
from benchmarks.links_part import BSP, ROTATION, WORKERS, Asked, compared, spark_and_fleet
from benchmarks.slow_part import Curve
from ps2.algorithms.factors import sgd, trainer
from ps2.algorithms.factors.dealing import Deal, deal_ratings
from ps2.algorithms.factors.options import FactorOptions
from ps2.algorithms.factors.ratings import RatingColumns, survey_ratings

RATINGS, RANK = 1_000_000, 64
HELD_OUT = 0.05
GOAL = 1.8
OPTIONS = FactorOptions(rank=RANK, reg=0.2, iterations=8, save_interval=0)
# BSP and SSP with one clock an iteration have the traffic of a rotation; with four, fresher copies.
COPIES = {
    BSP: Copies(clocks=1),
    "bsp, 4 clocks": Copies(clocks=4),
    "bsp, averaging": Copies(clocks=1, averages=True),
    "ssp": Copies(clocks=1, staleness=1),
    "ssp, 4 clocks": Copies(clocks=4, staleness=3),
}


def measure(asked: Asked) -> Part:
    import pandas as pd

    ratings = generate(RATINGS)
    held = np.random.default_rng(1).random(RATINGS) < HELD_OUT
    curves: dict[str, list[Curve]] = {way: [] for way in (ROTATION, *COPIES)}
    with spark_and_fleet(asked, "factors") as (spark, ps):
        table = {"user": ratings.users, "item": ratings.items, "rating": ratings.values, "held": held}
        frame = spark.createDataFrame(pd.DataFrame(table)).repartition(WORKERS).cache()
        frame.count()
        trained = frame.where("not held").cache()
        trained.count()
        _train(ps, frame, replace(OPTIONS, iterations=1), None)  # Python workers start
        for _ in range(asked.rounds):
            for way, turns in curves.items():
                seconds, losses = (_train(ps, some, OPTIONS, COPIES.get(way)) for some in (trained, frame))
                turns.append(Curve(_regular(seconds), losses.losses))
                tell(f"{way}: {turns[-1].seconds[-1]:.1f} s, RMSE {turns[-1].losses.round(4).tolist()}")
    facts = {"ratings": f"{RATINGS:,}", "items": f"{ratings.items.max() + 1:,}", "rank": RANK, "links": asked.rate}
    return compared(curves, "RMSE", GOAL, facts)


def _regular(curve: Curve) -> Any:
    """Return the seconds at the ends of iterations that all take the median time.

    A training without held-out rows tells it: evaluations take a part of the links. Of rotation, the first and the last
    iteration also bring users' vectors from and to the servers; the programs with copies do not.
    """
    return np.arange(1, len(curve.seconds) + 1) * float(np.median(np.diff(curve.seconds)[:-1]))


def _train(ps: Any, frame: Any, options: FactorOptions, copies: Copies | None) -> Curve:
    """Train, and evaluate held-out rows if the frame has any."""
    survey = survey_ratings(frame, RatingColumns(validation="held"), options)
    deal = Deal.of(survey, WORKERS, 1, 4 * sgd.SgdSettings(options, 1.0).width)
    dealt = deal_ratings(frame, survey, deal, options)
    if copies is None:
        history = trainer.train(ps, dealt, survey, options).history
        return Curve(np.cumsum(history.seconds), np.array(history.validation))
    try:
        return train_copies(ps, dealt, survey, options, copies)
    finally:
        survey.release()


if __name__ == "__main__":
    answer(Asked, measure)
