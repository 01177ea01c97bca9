"""The best ten items for every user, against pyspark.ml's ALSModel with the same vectors: seconds, and equal lists."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.factors_part import Asked, spark_and_servers
from benchmarks.frame import Check, Part, answer, tell
from benchmarks.ml_part import Line
from ps2.algorithms.factors.model import MatrixFactors
from ps2.algorithms.recommendation import MatrixFactorizationModel

K, RANK = 10, 64
# Users and items. Of the large one, pyspark.ml would take hours for all 500,000 users; the work is by user.
SIZES = {"MovieLens 1M": (6_040, 3_706), "500K x 100K, for 20,000 users": (20_000, 100_000)}
GOAL = 3.0
# Ratings that differ by less, relatively, may come in either order: sums are rounded in another order.
ROUNDING = 1e-5

Lists = Mapping[int, list[tuple[int, float]]]


def model_of(users: int, items: int) -> MatrixFactorizationModel:
    """Return a model of random vectors."""
    rng = np.random.default_rng(1)
    p, q = (rng.normal(size=(n, RANK)).astype(np.float32) for n in (users, items))
    return MatrixFactorizationModel(
        MatrixFactors(np.arange(users, dtype=np.int32), np.arange(items, dtype=np.int32), p, q)
    )


def seconds_of(model: Any) -> float:
    """Return the seconds in which Spark computes all lists."""
    began_s = time.monotonic()
    model.recommendForAllUsers(K).write.format("noop").mode("overwrite").save()
    return time.monotonic() - began_s


def lists_of(model: Any) -> Lists:
    """Return the items and ratings of each user."""
    found = model.recommendForAllUsers(K).collect()
    return {row[0]: [(item, rating) for item, rating in row[1]] for row in found}


def count_differing(ours: Lists, theirs: Lists) -> int:
    """Return for how many users the lists differ by more than the order of ratings that are equal but for rounding."""
    differing = 0
    for user, found in ours.items():
        ratings = np.array([[rating for _, rating in each] for each in (found, theirs[user])])
        apart = [one[0] != other[0] for one, other in zip(found, theirs[user], strict=True)]
        # An item in another place has to have a neighbour with the same rating.
        allowed = ROUNDING * np.abs(ratings[0])
        gaps = np.abs(np.diff(ratings[0], append=-np.inf))
        # The last one may have changed places with the first one that is left out.
        gaps[-1] = 0.0
        near = np.minimum(gaps, np.append(np.inf, gaps[:-1])) < allowed
        differing += bool((np.abs(ratings[0] - ratings[1]) > allowed).any() or (apart & ~near).any())
    return differing


def measure(asked: Asked) -> Part:
    lines, checks = [], []
    with spark_and_servers(asked, "recommend") as (spark, _):
        del spark
        for name, sizes in SIZES.items():
            ours = model_of(*sizes)
            theirs = ours.toPyspark()
            for frame in (theirs.userFactors, theirs.itemFactors):
                frame.count()  # they are cached
            checks.append(Check(f"{name}: lists that differ", count_differing(lists_of(ours), lists_of(theirs)), 0))
            turns = [(seconds_of(theirs), seconds_of(ours)) for _ in range(asked.rounds)]
            for baseline, taken in turns:
                tell(f"{name}: pyspark.ml {baseline:.2f} s, ours {taken:.2f} s")
            sides = [[turn[side] for turn in turns] for side in (0, 1)]
            lines.append(Line(f"{name}: top {K}", "pyspark.ml", "s", GOAL, *sides))
    return Part(lines, checks, facts={"rank": RANK, "k": K})


if __name__ == "__main__":
    answer(Asked, measure)
