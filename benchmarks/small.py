"""Warm fits of small data against pyspark.ml's: seconds of ``fit``, and how many Spark jobs each starts.

docs/performance/small.md says how to read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import pyspark

from benchmarks import frame
from benchmarks.frame import Benchmark, Check, Line, Part, option, take_turns, tell, timed, within
from benchmarks.local_spark import DAEMON, cached, spark_and_servers
from benchmarks.ml_data import read_libsvm
from ps2.algorithms.classification import LogisticRegression

# Turns before the ones that count: Java compiles its code, Spark's Python workers import and compile theirs.
WARM_UPS = 3
MAX_S = 2.0
# Fits in as many threads take at most this fraction of the time of the fits one after the other.
THREADS, MAX_PARALLEL = 4, 0.6
PENALTIES = [0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0]
# Seconds of sleep in a fit of the part ``parallel``.
READING_S = 2.0
PYSPARK_DATA = Path(pyspark.__file__).parent / "data" / "mllib"
FILES = {"a9a": ("a9a.libsvm.gz", 123), "agaricus": ("agaricus.train.libsvm.gz", 127)}
# Sentences: the numbers of the features of so many rows of a9a are words.
SENTENCES = 4000
LDA: dict[str, Any] = {"k": 10, "maxIter": 20, "seed": 1}
VECTORS: dict[str, Any] = {"vectorSize": 100, "minCount": 1, "seed": 1, "inputCol": "words"}
RATINGS: dict[str, Any] = {
    "userCol": "user", "itemCol": "item", "ratingCol": "rating", "rank": 10, "maxIter": 10, "seed": 1
}  # fmt: skip


@dataclass(frozen=True)
class Args(frame.Args):
    rounds: int = option(5, "Turns that the medians are of.", least=2)
    only: str = option("", "Measure the fits whose names have this text.")


@dataclass(frozen=True)
class Fit:
    """A fit: module of an estimator, its name (pyspark.ml's, where that is another one), its data and params."""

    module: str
    name: str
    data: str
    params: dict[str, Any] = field(default_factory=dict)
    their_name: str = ""

    def __str__(self) -> str:
        own = "".join(f", {key} {value}" for key, value in self.params.items()) if len(self.params) < 3 else ""
        return f"{self.name}, {self.data}{own}"

    def estimators(self) -> tuple[Any, Any]:
        """Return pyspark.ml's estimator, and ours."""
        theirs = getattr(import_module(f"pyspark.ml.{self.module}"), self.their_name or self.name)
        return theirs(**self.params), getattr(import_module(f"ps2.algorithms.{self.module}"), self.name)(**self.params)


def linear(args: Args) -> Part:
    """Compare linear models and factorization machines, with pyspark.ml's defaults."""
    fits = [
        Fit("regression" if name == "LinearRegression" else "classification", name, data)
        for name in ("LogisticRegression", "LinearSVC", "LinearRegression")
        for data in ("a9a", "agaricus", "iris")
        if (name, data) != ("LinearSVC", "iris")
    ]
    more = [
        Fit("classification", "LogisticRegression", "a9a", {"regParam": 0.01, "elasticNetParam": 1.0}),
        Fit("classification", "LogisticRegression", "iris", {"regParam": 0.01}),
        Fit("regression", "LinearRegression", "a9a", {"solver": "l-bfgs", "regParam": 0.01}),
        Fit("regression", "LinearRegression", "a9a", {"regParam": 0.01, "elasticNetParam": 0.5}),
        Fit("regression", "LinearRegression", "iris", {"loss": "huber"}),
        Fit("classification", "FMClassifier", "a9a"),
        Fit("classification", "FMClassifier", "agaricus"),
        Fit("regression", "FMRegressor", "iris"),
    ]
    return _compared(args, fits + more)


def trees(args: Args) -> Part:
    """Compare boosted trees and random forests, with pyspark.ml's defaults."""
    fits = [
        Fit("classification", "GBTClassifier", "a9a"),
        Fit("classification", "GBTClassifier", "agaricus"),
        Fit("regression", "GBTRegressor", "iris"),
        Fit("classification", "RandomForestClassifier", "a9a"),
    ]
    return _compared(args, fits)


def others(args: Args) -> Part:
    """Compare topics, embeddings, factors and clusters."""
    fits = [
        Fit("clustering", "LDA", "agaricus", LDA),
        Fit("feature", "Word2Vec", "sentences", VECTORS),
        Fit("recommendation", "MatrixFactorization", "ratings", RATINGS, "ALS"),
        Fit("clustering", "KMeans", "a9a", {"k": 10, "seed": 1}),
    ]
    return _compared(args, fits)


def parallel(args: Args) -> Part:
    """Compare fits in four threads, as in CrossValidator(parallelism=4), with the same fits one after the other."""
    with spark_and_servers("small", args.memory, workers=THREADS, settings=DAEMON) as (spark, _):
        # Idle cores are simulated: reading the rows sleeps, so fits wait without using this machine's cores.
        rows = cached(_read(spark, args, "a9a"), 1)
        last = rows.count() - 1
        sleep = f"java_method('java.lang.Thread', 'sleep', {int(1000 * READING_S)}L) IS NOT NULL"
        frame = rows.where(f"CASE WHEN monotonically_increasing_id() = {last} THEN {sleep} ELSE true END")
        estimator = LogisticRegression(maxIter=10)
        grid = [{estimator.regParam: value} for value in PENALTIES]
        weights: dict[int, list[list[float]]] = {}

        def fit_all(threads: int) -> float:
            fits = [partial(estimator.fit, frame, params) for params in grid]
            with ThreadPoolExecutor(threads) as pool:
                models, seconds = timed(lambda: list(pool.map(lambda fit: fit(), fits)))
            weights[threads] = [model.coefficients.tolist() for model in models]
            return seconds

        seconds = take_turns({threads: partial(fit_all, threads) for threads in (1, THREADS)}, args.rounds)
    what = f"{len(grid)} fits of a9a in {THREADS} threads"
    lines = [Line(what, "one after the other", "s", 1 / MAX_PARALLEL, seconds[1], seconds[THREADS])]
    differences = sum(one != other for one, other in zip(weights[1], weights[THREADS], strict=True))
    return Part(lines, [Check("models that differ in a bit", differences, 0)])


def _compared(args: Args, fits: Sequence[Fit]) -> Part:
    """Fit in turns."""
    lines, rows = [], []
    fits = [fit for fit in fits if args.only in str(fit)]
    with spark_and_servers("small", args.memory, settings=DAEMON) as (spark, _):
        scheduler = spark.sparkContext._jsc.sc().dagScheduler()
        frames = {data: cached(_read(spark, args, data)) for data in {fit.data for fit in fits}}
        for fit in fits:
            seconds: tuple[list[float], list[float]] = ([], [])
            jobs = [0, 0]
            for _ in range(WARM_UPS + args.rounds):
                for side, estimator in enumerate(fit.estimators()):
                    before = scheduler.numTotalJobs()
                    seconds[side].append(timed(estimator.fit, frames[fit.data])[1])
                    jobs[side] = scheduler.numTotalJobs() - before
            theirs, ours = (taken[WARM_UPS:] for taken in seconds)
            tell(f"{fit}: pyspark.ml {median(theirs):.2f} s, ours {median(ours):.2f} s, {jobs[1]} jobs")
            lines.append(Line(str(fit), "pyspark.ml", "s", 1.0, theirs, ours))
            rows.append({"fit": str(fit), "Spark jobs": jobs[1], "pyspark.ml's": jobs[0]})
    slowest = max(median(line.ours) for line in lines)
    lines.append(within("the slowest of these fits", "s", MAX_S, [slowest]))
    return Part(lines, table=rows)


def _read(spark: Any, args: Args, data: str) -> Any:
    """Return a data set: of LIBSVM's, labels 0 and 1; iris (three classes) and ratings from pyspark; or sentences."""
    if data == "iris":
        return spark.read.format("libsvm").load((PYSPARK_DATA / "sample_multiclass_classification_data.txt").as_uri())
    if data == "ratings":
        lines = (PYSPARK_DATA / "als" / "sample_movielens_ratings.txt").read_text().split()
        rows = [line.split("::")[:3] for line in lines]
        ratings = [(int(user), int(item), float(stars)) for user, item, stars in rows]
        return spark.createDataFrame(ratings, ["user", "item", "rating"])
    if data == "sentences":
        some = _read(spark, args, "a9a").limit(SENTENCES).select("features").collect()
        return spark.createDataFrame([([str(i) for i in row.features.indices],) for row in some], ["words"])
    file, features = FILES[data]
    return read_libsvm(spark, Path(args.data_dir) / file, features)


FOLDER = " and ".join(name for name, _ in FILES.values())
PARTS = {"linear": linear, "trees": trees, "others": others, "parallel": parallel}
BENCHMARK = Benchmark("small", Args, PARTS, dict.fromkeys(PARTS, FOLDER))

if __name__ == "__main__":
    BENCHMARK.main()
