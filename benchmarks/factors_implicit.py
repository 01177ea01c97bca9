"""Implicit feedback on MovieLens' ratings of 4 and 5, as clicks: against implicit's and pyspark.ml's ALS.

A fifth of the clicks is held out at random. Each program has the best of its penalties; recall@20 is the mean over
users of the share of held-out items among the first 20 that a user has not clicked. pyspark.ml's ALS, which takes most
of the time, is fitted once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from benchmarks.factors_movielens import read
from benchmarks.factors_part import WORKERS, Asked, Ratings, fit, spark_and_servers
from benchmarks.frame import Check, Part, answer, tell
from benchmarks.ml_part import Line
from ps2.algorithms.factors.options import FactorOptions

LIKED, HELD_OUT, RANK, ITERATIONS, FIRST = 4, 0.2, 64, 15, 20
# A click's confidence is 2 in all of them: implicit's alpha is the confidence itself.
OPTIONS = FactorOptions(rank=RANK, iterations=ITERATIONS, solver="ccd", implicit=True, alpha=1.0)
# Of ours and pyspark.ml's, per click; and of implicit's, per vector.
PENALTIES, PENALTIES_OF_IMPLICIT = (0.03, 0.1, 0.2), (10.0, 30.0, 100.0)
# The recall may be lower by this; seconds in process; seconds of pyspark.ml's.
MARGIN, GOAL_IN_PROCESS, GOAL_PYSPARK = 0.002, 1 / 1.5, 4.0

Array = npt.NDArray[Any]
Factors = tuple[Array, Array, float]


def measure(asked: Asked) -> Part:
    clicks = _clicks(asked.data_dir)
    with spark_and_servers(asked, "implicit") as (spark, ps):
        frame = clicks.frame(spark)
        fit(ps, frame, replace(OPTIONS, rank=4, iterations=1))  # Python workers start

        def ours(penalty: float) -> Factors:
            found, _ = fit(ps, frame, replace(OPTIONS, reg=penalty))
            vectors = _of_all(clicks, found.users.values.to_numpy(), found.items.values.to_numpy())
            return (*vectors(found.user_factors, found.item_factors), sum(found.history.seconds))

        def theirs(penalty: float) -> Factors:
            return _implicit(clicks, penalty)

        best = {
            name: _best(name, way, penalties, clicks)
            for name, way, penalties in (("ours", ours, PENALTIES), ("implicit", theirs, PENALTIES_OF_IMPLICIT))
        }
        seconds: dict[str, list[float]] = {"ours": [], "implicit": [], "fit": [], "pyspark": []}
        for _ in range(asked.rounds):
            seconds["implicit"].append(theirs(best["implicit"][1])[2])
            found, whole_s = fit(ps, frame, replace(OPTIONS, reg=best["ours"][1]))
            seconds["ours"].append(sum(found.history.seconds))
            seconds["fit"].append(whole_s)
            tell(", ".join(f"{name} {turns[-1]:.2f} s" for name, turns in seconds.items() if turns))
        seconds["pyspark"].append(_pyspark(frame, best["ours"][1]))
        tell(f"pyspark.ml {seconds['pyspark'][-1]:.2f} s")
    lines = [
        Line("s of iterations", "implicit's ALS", "s", GOAL_IN_PROCESS, seconds["implicit"], seconds["ours"]),
        Line("s of fit", "pyspark.ml ALS", "s", GOAL_PYSPARK, seconds["pyspark"], seconds["fit"]),
    ]
    checks = [Check("recall@20 that implicit's is above ours", best["implicit"][0] - best["ours"][0], MARGIN)]
    sizes = [{"program": name, "recall@20": f"{recall:.4f}", "penalty": at} for name, (recall, at) in best.items()]
    facts = {"clicks": f"{int((~clicks.held).sum()):,}", "rank": RANK, "iterations": ITERATIONS}
    return Part(lines, checks=checks, facts=facts, sizes=sizes)


def _clicks(folder: str) -> Ratings:
    """Return clicks, with numbers without gaps for users and items."""
    ratings = read(folder)
    liked = ratings.values >= LIKED
    users, items = (np.unique(ids[liked], return_inverse=True)[1] for ids in (ratings.users, ratings.items))
    held = np.random.default_rng(7).random(len(users)) < HELD_OUT
    return Ratings(users, items, np.ones(len(users)), held)


def _best(
    name: str, way: Callable[[float], Factors], penalties: tuple[float, ...], clicks: Ratings
) -> tuple[float, float]:
    """Return the highest recall, and its penalty."""
    tried = []
    for penalty in penalties:
        users, items, _ = way(penalty)
        tried.append((recall(users, items, clicks), penalty))
        tell(f"{name}, penalty {penalty}: recall {tried[-1][0]:.4f}")
    return max(tried)


def recall(users: Array, items: Array, clicks: Ratings) -> float:
    """Return the recall of held-out clicks among the first ``FIRST`` items that a user has not clicked."""
    scores = users @ items.T
    used, held = ~clicks.held, clicks.held
    scores[clicks.users[used], clicks.items[used]] = -np.inf
    first = np.argpartition(-scores, FIRST, axis=1)[:, :FIRST]
    wanted = np.zeros(scores.shape, np.bool_)
    wanted[clicks.users[held], clicks.items[held]] = True
    counts = wanted.sum(axis=1)
    some = counts > 0
    hits = np.take_along_axis(wanted, first, axis=1).sum(axis=1)
    return float(np.mean(hits[some] / np.minimum(counts[some], FIRST)))


def _of_all(clicks: Ratings, users: Array, items: Array) -> Callable[[Array, Array], tuple[Array, Array]]:
    """Return a function that puts vectors in the order of all users and items; those that are held out whole have 0."""

    def placed(of_users: Array, of_items: Array) -> tuple[Array, Array]:
        found = []
        for numbers, ids, vectors in ((clicks.users, users, of_users), (clicks.items, items, of_items)):
            rows = np.zeros((int(numbers.max()) + 1, RANK), np.float32)
            rows[ids] = vectors
            found.append(rows)
        return found[0], found[1]

    return placed


def _implicit(clicks: Ratings, penalty: float) -> Factors:
    """Return the vectors of implicit's ALS, and the seconds of its fit in this process."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as it asks for
    import implicit

    used = ~clicks.held
    shape = int(clicks.users.max()) + 1, int(clicks.items.max()) + 1
    cells = sp.csr_matrix((np.ones(int(used.sum()), np.float32), (clicks.users[used], clicks.items[used])), shape)
    model = implicit.als.AlternatingLeastSquares(
        factors=RANK, regularization=penalty, alpha=2.0, iterations=ITERATIONS, num_threads=WORKERS, random_state=1
    )
    began_s = time.monotonic()
    model.fit(cells, show_progress=False)
    return model.user_factors, model.item_factors, time.monotonic() - began_s


def _pyspark(frame: Any, penalty: float, rank: int = RANK, iterations: int = ITERATIONS) -> float:
    """Return the seconds of the fit of pyspark.ml's ALS."""
    from pyspark.ml.recommendation import ALS

    als = ALS(rank=rank, maxIter=iterations, regParam=penalty, implicitPrefs=True, alpha=OPTIONS.alpha, seed=0)
    began_s = time.monotonic()
    als.fit(frame).itemFactors.count()
    return time.monotonic() - began_s


if __name__ == "__main__":
    answer(Asked, measure)
