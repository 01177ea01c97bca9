"""Matrix factorization: how good vectors are, seconds of fits, and ratings a second against the bare kernel and peers.

docs/performance/factors.md says how to read it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import scipy.sparse as sp

from benchmarks import frame
from benchmarks.frame import Benchmark, Check, Line, Part, option, take_turns, tell
from benchmarks.local_spark import DAEMON, WORKERS, cached, spark_and_servers
from ps2.algorithms.factors.dealing import Assignment, deal_ratings
from ps2.algorithms.factors.estimator import train
from ps2.algorithms.factors.grid import build_grid
from ps2.algorithms.factors.model import MatrixFactors
from ps2.algorithms.factors.plan import FactorizationPlan, FittedFactors
from ps2.algorithms.factors.ratings import RatingColumns, survey_ratings
from ps2.algorithms.factors.rows import SgdPlan
from ps2.algorithms.factors.settings import FactorizationSettings
from ps2.algorithms.factors.sgd import BlockDescent
from ps2.algorithms.factors.sgd_kernels import draw_rows
from ps2.algorithms.frame.settings import with_values
from ps2.algorithms.recommendation import MatrixFactorizationModel

Array = npt.NDArray[Any]
FILE = "ml-1m.ratings.txt.gz"
# -- of the part movielens: goals are what libmf comes to in 30 iterations with a penalty of .05, and less with biases.
WAYS = {
    "plain": (FactorizationSettings(rank=32, regParam=0.05, maxIter=12), 0.851),
    "biases": (FactorizationSettings(rank=32, regParam=0.05, maxIter=8, biases=True), 0.849),
}
# -- of generated ratings: users and items for each rating, and powers of their number with which shares fall.
USERS, ITEMS, USER_POWER, ITEM_POWER = 1 / 40, 1 / 200, 2, 3
PLANTED, RANK, ITERATIONS = 8, 64, 5
SETTINGS = FactorizationSettings(rank=RANK, regParam=0.05, maxIter=ITERATIONS, checkpointInterval=-1)
BARE_GOAL = 0.85
# -- of the part recommend: users and items; of the large one, the work is by user.
SIZES = {"MovieLens 1M": (6_040, 3_706), "500K x 100K, for 20,000 users": (20_000, 100_000)}
# Ratings that differ by less, relatively, may come in either order: sums are rounded in another order.
ROUNDING = 1e-5
Lists = Mapping[int, list[tuple[int, float]]]
K, RECOMMEND_GOAL = 10, 3.0
# -- of the part implicit: a click's confidence is 2 in all of them: implicit's alpha is the confidence itself.
LIKED, CLICKS_HELD_OUT, FIRST = 4, 0.2, 20
CLICKS = FactorizationSettings(rank=RANK, maxIter=15, solver="ccd", implicitPrefs=True, alpha=1.0)
# Of ours and pyspark.ml's, per click; and of implicit's, per vector.
PENALTIES, PENALTIES_OF_IMPLICIT = (0.03, 0.1, 0.2), (10.0, 30.0, 100.0)
# The recall may be lower by this; seconds in process; seconds of pyspark.ml's.
MARGIN, GOAL_IN_PROCESS, GOAL_PYSPARK = 0.002, 1 / 1.5, 4.0
Factors = tuple[Array, Array, float]


@dataclass(frozen=True)
class Args(frame.Args):
    ratings: int = option(20_000_000, "Generated ratings.", least=100_000)


@dataclass(frozen=True, eq=False)
class Ratings:
    """Ratings as arrays, and which are held out."""

    users: Array
    items: Array
    values: Array
    held: Array

    def frame(self, spark: Any) -> Any:
        """Return the ratings that are not held out as a cached DataFrame."""
        import pandas as pd

        used = ~self.held
        table = pd.DataFrame({"user": self.users[used], "item": self.items[used], "rating": self.values[used]})
        return cached(spark.createDataFrame(table))


def _started(args: Args) -> Any:
    return spark_and_servers("factors", args.memory, settings=DAEMON)


def fit(ps: Any, frame: Any, settings: FactorizationSettings) -> tuple[FittedFactors, float]:
    """Factorize; return the result, and the seconds that all took, from cached rows to vectors in the driver."""
    began_s = time.monotonic()
    plan = FactorizationPlan(settings=settings)
    survey = survey_ratings(frame, RatingColumns(), settings)
    deal = Assignment.from_counts(
        survey.user_counts, survey.item_counts, WORKERS, 1, 4 * SgdPlan(settings=settings, scale=1.0).width
    )
    result = train(ps, deal_ratings(frame, survey, deal, plan), survey, plan)
    return result, time.monotonic() - began_s


def rmse_of(found: FittedFactors, ratings: Ratings) -> float:
    """Return the RMSE of the held-out ratings of known users and items."""
    held = ratings.held
    users, items = found.users.find(pa.array(ratings.users[held])), found.items.find(pa.array(ratings.items[held]))
    known = (users >= 0) & (items >= 0)
    users, items = users[known], items[known]
    predicted = found.mean + np.einsum("nk,nk->n", found.user_factors[users], found.item_factors[items])
    if found.user_bias is not None and found.item_bias is not None:
        predicted = predicted + found.user_bias[users] + found.item_bias[items]
    return float(np.sqrt(np.mean((predicted - ratings.values[held][known]) ** 2)))


# -- parts -------------------------------------------------------------------------------------------------------------


def movielens(args: Args) -> Part:
    """Measure how well vectors predict a tenth of MovieLens' million ratings, and seconds of fits."""
    ratings, checks, rows = read(args.data_dir), [], []
    with _started(args) as (spark, ps):
        frame = ratings.frame(spark)
        fit(ps, frame, FactorizationSettings(rank=2, maxIter=1))  # Python workers start
        for variant, (settings, goal) in WAYS.items():
            turns = [fit(ps, frame, settings) for _ in range(args.rounds)]
            checks.append(Check(f"{variant}: RMSE of held-out rows", rmse_of(turns[0][0], ratings), goal))
            rows.append(
                {
                    "way": variant,
                    "iterations": settings.maxIter,
                    "s of fit": f"{np.median([seconds for _, seconds in turns]):.2f}",
                    "s of iterations": f"{np.median([sum(result.history.seconds) for result, _ in turns]):.2f}",
                }
            )
    return Part(checks=checks, facts={"ratings": len(ratings.users), "rank": 32}, table=rows)


def read(folder: str) -> Ratings:
    """Read the file; hold out rows at random."""
    rows = np.loadtxt(Path(folder) / FILE, dtype=np.int64, usecols=(0, 1, 2))
    held = np.random.default_rng(0).random(len(rows)) < 0.1
    return Ratings(rows[:, 0], rows[:, 1], rows[:, 2].astype(np.float64), held)


def generated(args: Args) -> Part:
    """Compare ratings a second of a fit with the same steps in one process: two threads, and arrays for servers."""
    ratings = generate(args.ratings)
    with _started(args) as (spark, ps):
        frame = ratings.frame(spark)
        variants = {"bare": lambda: bare(ratings), "ours": lambda: _rate(ps, frame, ratings)}
        rates = take_turns(variants, args.rounds, warm_ups=0)
    return Part(
        [Line(f"fit of rank {RANK}", "the bare kernel", "M ratings/s", BARE_GOAL, rates["bare"], rates["ours"])]
    )


def _rate(ps: Any, frame: Any, ratings: Ratings) -> float:
    """Return millions of ratings a second, without the first iteration, which learns the first numbers of vectors."""
    result, seconds = fit(ps, frame, SETTINGS)
    tell(f"{seconds:.1f} s of fit")
    return len(ratings.users) / float(np.median(result.history.seconds[1:-1])) / 1e6


def recommend(args: Args) -> Part:
    """Compare the best ten items for every user with pyspark.ml's of the same vectors: seconds, and equal lists."""
    lines, checks = [], []
    with _started(args):
        for name, sizes in SIZES.items():
            ours = model_of(*sizes)
            theirs = ours.toPyspark()
            for frame in (theirs.userFactors, theirs.itemFactors):
                frame.count()  # they are cached
            checks.append(Check(f"{name}: lists that differ", count_differing(lists_of(ours), lists_of(theirs)), 0))
            turns = take_turns(
                {"pyspark.ml": partial(seconds_of, theirs), "ours": partial(seconds_of, ours)}, args.rounds
            )
            lines.append(Line(f"{name}: top {K}", "pyspark.ml", "s", RECOMMEND_GOAL, *turns.values()))
    return Part(lines, checks, facts={"rank": RANK})


def implicit(args: Args) -> Part:
    """Compare implicit feedback on MovieLens' ratings of 4 and 5, as clicks, with implicit's and pyspark.ml's ALS.

    A fifth of the clicks is held out at random. Each program has the best of its penalties; recall@20 is the mean over
    users of the share of held-out items among the first 20 that a user has not clicked. pyspark.ml's ALS, which takes
    most of the time, is fitted once.
    """
    clicks = _clicks(args.data_dir)
    with _started(args) as (spark, ps):
        frame = clicks.frame(spark)
        fit(ps, frame, with_values(CLICKS, rank=4, maxIter=1))  # Python workers start

        def ours(penalty: float) -> Factors:
            result, seconds = fit(ps, frame, with_values(CLICKS, regParam=penalty))
            whole_s.append(seconds)
            sides = (clicks.users, result.users, result.user_factors), (clicks.items, result.items, result.item_factors)
            users, items = (_of_all(numbers, ids.values.to_numpy(), vectors) for numbers, ids, vectors in sides)
            return users, items, sum(result.history.seconds)

        whole_s: list[float] = []
        recall_s, penalty = _best("ours", ours, PENALTIES, clicks)
        their_recall, their_penalty = _best("implicit", partial(_implicit, clicks), PENALTIES_OF_IMPLICIT, clicks)
        variants = {"implicit": lambda: _implicit(clicks, their_penalty)[2], "ours": lambda: ours(penalty)[2]}
        seconds = take_turns(variants, args.rounds, warm_ups=0)
        pyspark_s = _pyspark(frame, penalty)
    lines = [
        Line("s of iterations", "implicit's ALS", "s", GOAL_IN_PROCESS, seconds["implicit"], seconds["ours"]),
        Line("s of fit", "pyspark.ml ALS", "s", GOAL_PYSPARK, [pyspark_s], whole_s[-args.rounds :]),
    ]
    checks = [Check("recall@20 that implicit's is above ours", their_recall - recall_s, MARGIN)]
    table = [
        {"program": name, "recall@20": f"{result:.4f}", "penalty": best}
        for name, result, best in (("ours", recall_s, penalty), ("implicit", their_recall, their_penalty))
    ]
    return Part(lines, checks, {"clicks": int((~clicks.held).sum()), "rank": RANK}, table)


# -- generated ratings, and libmf --------------------------------------------------------------------------------------


def generate(count: int) -> Ratings:
    """Generate ratings of planted vectors, with noise."""
    rng = np.random.default_rng(0)
    many, items = int(count * USERS), int(count * ITEMS)
    u = (many * rng.random(count) ** USER_POWER).astype(np.int64)
    i = (items * rng.random(count) ** ITEM_POWER).astype(np.int64)
    p, q = (rng.normal(size=(n, PLANTED)).astype(np.float32) for n in (many, items))
    values = np.empty(count)
    for begin in range(0, count, 1 << 20):
        some = slice(begin, begin + (1 << 20))
        values[some] = np.einsum("nk,nk->n", p[u[some]], q[i[some]])
    return Ratings(u, i, values + rng.normal(size=count), np.zeros(count, np.bool_))


def bare(ratings: Ratings) -> float:
    """Return millions of ratings a second in one process: a thread a worker, and arrays for servers."""
    count, plan = len(ratings.users), SgdPlan(settings=SETTINGS, scale=1.0)
    deal = Assignment.from_counts(np.bincount(ratings.users), np.bincount(ratings.items), WORKERS, 1, 4 * plan.width)
    layout = deal.layout
    users, items = (np.empty((n, plan.width), np.float32) for n in (layout.users, layout.items))
    for rows, seed in ((users, 1), (items, 2)):
        draw_rows(np.arange(len(rows)), np.uint64(seed), RANK, -0.05, 0.05, rows)
    positions = deal.user_positions[ratings.users], deal.item_positions[ratings.items]
    descents = []
    for rank in range(WORKERS):
        begin, end = (int(bound) for bound in layout.user_bounds(rank)[[0, -1]])
        mine = (positions[0] >= begin) & (positions[0] < end)
        values = ratings.values[mine].astype(np.float32)
        inputs = (positions[0][mine] - np.int32(begin), positions[1][mine], values, np.empty(0, np.float32))
        descents.append(BlockDescent(build_grid(layout, (begin, end - begin), inputs), plan, rank, users[begin:end]))
    seconds = []

    def take(rank: int, block: int, iteration: int) -> None:
        bounds = layout.item_bounds(block)
        for piece in descents[rank].shuffled_strata(block, iteration):
            descents[rank].train_stratum(block, piece, iteration, items[bounds[0] : bounds[-1]], None)

    with ThreadPoolExecutor(WORKERS) as threads:
        for iteration in range(1, ITERATIONS + 1):
            began_s = time.monotonic()
            turns = np.stack([layout.rotation.worker_blocks(0, iteration, rank) for rank in range(WORKERS)], axis=1)
            for turn in turns.tolist():
                list(threads.map(take, range(WORKERS), turn, [iteration] * WORKERS))
            seconds.append(time.monotonic() - began_s)
    return count / float(np.median(seconds[1:])) / 1e6


# -- recommendations, and clicks ---------------------------------------------------------------------------------------


def model_of(users: int, items: int) -> MatrixFactorizationModel:
    """Return a model of random vectors."""
    rng = np.random.default_rng(1)
    p, q = (rng.normal(size=(n, RANK)).astype(np.float32) for n in (users, items))
    return MatrixFactorizationModel._of(
        MatrixFactors(np.arange(users, dtype=np.int32), np.arange(items, dtype=np.int32), p, q)
    )


def seconds_of(model: Any) -> float:
    """Return the seconds in which Spark computes all lists."""
    began_s = time.monotonic()
    model.recommendForAllUsers(K).write.format("noop").mode("overwrite").save()
    return time.monotonic() - began_s


def lists_of(model: Any) -> Lists:
    """Return the items and ratings of each user."""
    result = model.recommendForAllUsers(K).collect()
    return {row[0]: [(item, rating) for item, rating in row[1]] for row in result}


def count_differing(ours: Lists, theirs: Lists) -> int:
    """Return for how many users the lists differ by more than the order of ratings that are equal but for rounding."""
    differing = 0
    for user, result in ours.items():
        ratings = np.array([[rating for _, rating in each] for each in (result, theirs[user])])
        apart = [one[0] != other[0] for one, other in zip(result, theirs[user], strict=True)]
        # An item in another place has to have a neighbour with the same rating.
        allowed = ROUNDING * np.abs(ratings[0])
        gaps = np.abs(np.diff(ratings[0], append=-np.inf))
        # The last one may have changed places with the first one that is left out.
        gaps[-1] = 0.0
        near = np.minimum(gaps, np.append(np.inf, gaps[:-1])) < allowed
        differing += bool((np.abs(ratings[0] - ratings[1]) > allowed).any() or (apart & ~near).any())
    return differing


def _clicks(folder: str) -> Ratings:
    """Return clicks, with numbers without gaps for users and items."""
    ratings = read(folder)
    liked = ratings.values >= LIKED
    users, items = (np.unique(ids[liked], return_inverse=True)[1] for ids in (ratings.users, ratings.items))
    held = np.random.default_rng(7).random(len(users)) < CLICKS_HELD_OUT
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
    expected = np.zeros(scores.shape, np.bool_)
    expected[clicks.users[held], clicks.items[held]] = True
    counts = expected.sum(axis=1)
    some = counts > 0
    hits = np.take_along_axis(expected, first, axis=1).sum(axis=1)
    return float(np.mean(hits[some] / np.minimum(counts[some], FIRST)))


def _of_all(numbers: Array, ids: Array, vectors: Array) -> Array:
    """Return the vectors of all numbers; those that are held out whole have zeros."""
    rows = np.zeros((int(numbers.max()) + 1, RANK), np.float32)
    rows[ids] = vectors
    return rows


def _implicit(clicks: Ratings, penalty: float) -> Factors:
    """Return the vectors of implicit's ALS, and the seconds of its fit in this process."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as it asks for
    import implicit

    used = ~clicks.held
    shape = int(clicks.users.max()) + 1, int(clicks.items.max()) + 1
    cells = sp.csr_matrix((np.ones(int(used.sum()), np.float32), (clicks.users[used], clicks.items[used])), shape)
    model = implicit.als.AlternatingLeastSquares(
        factors=RANK,
        regularization=penalty,
        alpha=2.0,
        iterations=CLICKS.maxIter,
        num_threads=WORKERS,
        random_state=1,
    )
    began_s = time.monotonic()
    model.fit(cells, show_progress=False)
    return model.user_factors, model.item_factors, time.monotonic() - began_s


def _pyspark(frame: Any, penalty: float) -> float:
    """Return the seconds of the fit of pyspark.ml's ALS."""
    from pyspark.ml.recommendation import ALS

    als = ALS(rank=RANK, maxIter=CLICKS.maxIter, regParam=penalty, implicitPrefs=True, alpha=CLICKS.alpha, seed=0)
    began_s = time.monotonic()
    als.fit(frame).itemFactors.count()
    return time.monotonic() - began_s


PARTS = {
    "movielens": movielens, "implicit": implicit, "generated": generated, "recommend": recommend
}  # fmt: skip
BENCHMARK = Benchmark("factors", Args, PARTS, dict.fromkeys(("movielens", "implicit"), FILE))

if __name__ == "__main__":
    BENCHMARK.main()
