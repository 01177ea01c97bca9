"""Boosted trees and forests beside xgboost, LightGBM, pyspark.ml and scikit-learn: seconds, AUC, NDCG.

docs/performance/trees.md says how to read it.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from statistics import mean, median
from typing import Any

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
from pyspark.ml.functions import array_to_vector

from benchmarks import frame, ml_data
from benchmarks.frame import Benchmark, Check, Line, Part, Score, option, take_turns, tell, timed
from benchmarks.local_spark import WORKERS, cached, spark_and_servers
from benchmarks.ml_data import FEW, NEWS20, PARTITIONS, Array, auc, collected, file_in, read_libsvm
from ps2.data.rows import number_columns

OURS = "ours"
# Packages of each library to compare with, which has as many threads as there are workers.
PEERS = {"lightgbm": ("lightgbm",), "xgboost.spark": ("xgboost", "sklearn"), "xgboost": ("xgboost",)}
# -- of generated data like HIGGS: number of the detector's features, and of features computed from them.
# Generated data like HIGGS: number of the detector's features, and of features computed from them.
RAW, MADE = 21, 7
SCHEMA = "label double, features array<float>"
BATCH = 10_000
HELD_OUT = 200_000
# -- of the part features
FEATURES_ROWS, MAX_RATIO = 100_000, 3.0
# -- of the part forests
FOREST: dict[str, Any] = {"numTrees": 50, "maxDepth": 10, "maxBins": 128, "featureSubsetStrategy": "sqrt"}
SEEDS = (0, 1, 2)
MIN_TIMES, GAP = 3.0, 0.002
FOREST_ROWS, FOREST_HELD_OUT = 200_000, 100_000
# -- of the part ranking: how much less NDCG@10 than LightGBM's is allowed, and by which factor PS2 may be slower than
# SparkXGBRanker.
RANKING_FEATURES, GROUP, TRUNCATION, AT = 136, 100, 30, 10
LESS, SLOWER = 0.003, 1.5


@dataclass(frozen=True)
class Args(frame.Args):
    peers: tuple[str, ...] = option(
        tuple(PEERS), "Libraries that train beside ours, if installed.", choices=tuple(PEERS)
    )
    rows: int = option(1_000_000, "Rows of the part dense; ranking has a tenth.", least=1000)
    features: tuple[int, ...] = option((10_000, 100_000, 1_690_000), "Sizes of the part features.", least=100)


@dataclass(frozen=True)
class Settings:
    """Settings of all libraries, translated into each one's parameters.

    Attributes:
        trees, depth, bins, rate: number of trees, splits above a leaf, bins of a feature, learning rate.
        reg_lambda: L2 penalty on leaves.
        min_rows, min_hessian: minimum of a leaf.
        via: PS2's, where trees grow.
    """

    trees: int
    depth: int
    bins: int
    rate: float = 0.1
    reg_lambda: float = 1.0
    min_rows: int = 1
    min_hessian: float = 1.0
    via: str = "auto"

    def ours(self) -> dict[str, Any]:
        return {
            "defaults": "xgboost",
            "maxIter": self.trees,
            "maxDepth": self.depth,
            "maxBins": self.bins,
            "stepSize": self.rate,
            "regLambda": self.reg_lambda,
            "minInstancesPerNode": self.min_rows,
            "minChildWeight": self.min_hessian,
            "via": self.via,
        }


@dataclass(frozen=True, eq=False)
class Fitted:
    """A training.

    Attributes:
        seconds: of ``fit``, or from a matrix in memory to a model.
        margins: returns scores of rows that grow with the probability.
    """

    seconds: float
    margins: Callable[[Any], Array]


Training = Callable[[], Fitted]


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of one data set.

    Attributes:
        frame: cached DataFrame of ``label`` and ``features``; few: a small part of it, cached too.
        x: float32, shape (n, features), NumPy or scipy CSR; y: float64, shape (n,).
    """

    frame: Any
    few: Any
    x: Any
    y: Array


def fit(rows: Rows, settings: Settings) -> Fitted:
    """Train with PS2.

    Spark ends Python workers that idle for a minute, and new ones begin with imports. So a training of a few rows
    precedes.
    """
    from ps2.algorithms import GBTClassifier

    GBTClassifier(**{**settings.ours(), "maxIter": 1}).fit(rows.few)
    began_s = time.monotonic()
    model = GBTClassifier(**settings.ours()).fit(rows.frame)
    return Fitted(time.monotonic() - began_s, alone(model).margins)


def alone(model: Any) -> Any:
    """Return a model of PS2 as a ``GBTModel``, which needs no Spark."""
    from ps2.algorithms import GBTModel

    with tempfile.TemporaryDirectory() as folder:
        model.write().overwrite().save(f"{folder}/model")
        return GBTModel.load(f"{folder}/model")


def compared(
    what: str, rows: Rows, settings: Settings, args: Args, test: tuple[Any, Array], goals: Mapping[str, float]
) -> Part:
    """Compare PS2 with each other library, in turns: seconds, and AUC on held-out rows.

    Args:
        test: features and labels of held-out rows.
        goals: by which factor PS2 should take less time, by name; for ``OURS``, the AUC to reach.
    """
    variants: dict[str, Training] = {OURS: partial(fit, rows, settings), **peers(rows, settings, args)}
    result = take_turns(variants, args.rounds, warm_ups=0)
    x, y = test
    seconds = {name: [fitted.seconds for fitted in turns] for name, turns in result.items()}
    scores = {name: auc(turns[-1].margins(x).reshape(-1), y) for name, turns in result.items()}
    goal = goals.get(OURS)
    lines: list[Line | Score] = []
    for name in [name for name in variants if name != OURS] or [OURS]:
        faster = goals.get(name) if name != OURS else None
        lines.append(Line(f"{what}: seconds of fit", name, "s", faster, seconds[name], seconds[OURS]))
        lines.append(Score(f"{what}: rows held out", name, "AUC", goal, scores[name], scores[OURS]))
    return Part(lines, facts={"rows": len(rows.y), "features": rows.x.shape[1]})


# -- parts -------------------------------------------------------------------------------------------------------------


def dense(args: Args) -> Part:
    """Compare few dense features: many rows like those of HIGGS."""
    with spark_and_servers("trees_dense", args.memory) as (spark, _):
        test = generated(HELD_OUT, seed=0, number=PARTITIONS)
        rows = generated_rows(spark, args.rows)
        return compared("dense", rows, Settings(trees=50, depth=6, bins=256), args, test, {"xgboost.spark": 1.0})


def news20(args: Args) -> Part:
    """Compare many sparse features: news20-bigram."""
    goals = {"xgboost": 3.3, "xgboost.spark": 1.3, "lightgbm": 1.3, OURS: 0.888}
    with spark_and_servers("trees_news20", args.memory) as (spark, _):
        train, test = NEWS20.load(spark, args.data_dir), NEWS20.load_test(spark, args.data_dir)
        test.frame.unpersist()
        rows = Rows(train.frame, train.few, _full(train), train.y)
        settings = Settings(trees=10, depth=7, bins=100)
        return compared("news20-bigram", rows, settings, args, (_full(test), test.y), goals)


def features(args: Args) -> Part:
    """Compare seconds a tree for growing numbers of features and a constant number of entries."""
    from ps2.algorithms import GBTClassifier

    settings = Settings(trees=6, depth=7, bins=100, via="servers")
    with spark_and_servers("trees_features", args.memory) as (spark, _):
        tables = {count: ml_data.generate(spark, FEATURES_ROWS, count) for count in args.features}

        def tree_s(count: int) -> float:
            return median(GBTClassifier(**settings.ours()).fit(tables[count].frame).summary.stepSeconds[1:])

        turns = take_turns({count: partial(tree_s, count) for count in tables}, args.rounds)
    small, large = min(turns), max(turns)
    what = f"a tree of {large:,} features"
    line = Line(what, f"of {small:,}, the same entries", "s", 1 / MAX_RATIO, turns[small], turns[large])
    rows = [
        {"features": count, "used": len(tables[count].keys), "s a tree": f"{median(seconds):.3f}"}
        for count, seconds in turns.items()
    ]
    return Part([line], facts={"rows": FEATURES_ROWS, "entries": FEATURES_ROWS * ml_data.ENTRIES}, table=rows)


def forests(args: Args) -> Part:
    """Compare random forests: seconds of ``fit`` with pyspark.ml's, AUC on held-out rows with scikit-learn's."""
    lines: list[Line | Score] = []
    checks: list[Check] = []
    with spark_and_servers("trees_forests", args.memory) as (spark, _):
        for name, (frame, x, y, test) in (("a9a", _a9a(spark, args)), ("generated", _forest_rows(spark))):
            theirs, ours = _forest_turns(frame, args.rounds)
            lines.append(Line(f"{name}: fit of a random forest", "pyspark.ml", "s", MIN_TIMES, theirs, ours))
            if find_spec("sklearn") is None:
                continue
            score, their_score = (
                float(mean(auc(train(seed)(test[0]), test[1]) for seed in SEEDS))
                for train in (partial(_forest, frame), partial(_peer, x, y))
            )
            what = f"{name}: AUC of {len(SEEDS)} seeds"
            lines.append(Score(what, "scikit-learn", "AUC", None, their_score, score))
            checks.append(Check(f"{what}: below scikit-learn's", their_score - score, GAP))
    return Part(lines, checks, FOREST)


def ranking(args: Args) -> Part:
    """Compare rankings like those of MSLR: NDCG of held-out queries and seconds of ``fit``.

    Queries have 100 rows of 136 features. A row's relevance, 0 to 4 and mostly 0, comes from a score of some features,
    of which a part counts within its query only, and of noise.
    """
    settings = Settings(trees=100, depth=6, bins=255, reg_lambda=0.0, min_rows=20, min_hessian=1e-3)
    x, y, query = queries(args.rows // 10, seed=0)
    x_test, y_test, _ = queries(100_000, seed=1)
    with spark_and_servers("trees_ranking", args.memory) as (spark, _):
        ends = np.arange(0, x.size + 1, RANKING_FEATURES, dtype=np.int32)
        flat = pa.ListArray.from_arrays(ends, pa.array(x.reshape(-1)))
        table = pa.table({"label": y, "query": query, "features": flat})
        frame = spark.createDataFrame(table).repartition(PARTITIONS, "query").cache()
        rows = Rows(cached(frame, None), cached(frame.limit(FEW), None), x, y)
        fits = {OURS: _rank, "lightgbm": _lightgbm_rank, "xgboost.spark": _xgboost_rank}
        variants = {
            name: partial(train, rows, settings) for name, train in fits.items() if name == OURS or is_used(name, args)
        }
        result = take_turns(variants, args.rounds, warm_ups=0)
    scores = {name: ndcg(turns[-1].margins(x_test).reshape(-1), y_test) for name, turns in result.items()}
    seconds = {name: [fitted.seconds for fitted in turns] for name, turns in result.items()}
    lines: list[Line | Score] = []
    for name in [name for name in variants if name != OURS] or [OURS]:
        goal = 1 / SLOWER if name == "xgboost.spark" else None
        lines.append(Line("seconds of fit", name, "s", goal, seconds[name], seconds[OURS]))
        least = scores[name] - LESS if name == "lightgbm" else None
        lines.append(Score("queries held out", name, f"NDCG@{AT}", least, scores[name], scores[OURS]))
    return Part(lines, facts={"rows": len(y), "rows a query": GROUP})


# -- rows --------------------------------------------------------------------------------------------------------------


def _full(data: ml_data.Data) -> sp.csr_matrix:
    """Return features with the column numbers of the file: (n, all features)."""
    indices = data.keys.astype(np.int32)[data.x.indices]
    full = (data.x.data.astype(np.float32), indices, data.x.indptr.astype(np.int32))
    return sp.csr_matrix(full, shape=(data.rows, data.features))


def generated_rows(spark: Any, rows: int, seed: int = 0) -> Rows:
    """Generate rows like HIGGS, by partition in Spark and all of them in the driver."""
    count = rows // PARTITIONS

    def batches(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                x, y = generated(count, seed, number)
                for begin in range(0, count, BATCH):
                    part = slice(begin, begin + BATCH)
                    yield pa.RecordBatch.from_arrays([pa.array(y[part]), _lists(x[part])], ["label", "features"])

    frame = spark.range(0, PARTITIONS, 1, PARTITIONS).mapInArrow(batches, SCHEMA)
    parts = [generated(count, seed, number) for number in range(PARTITIONS)]
    return _cached(frame, np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts]))


def _lists(x: Array) -> pa.Array:
    """Return each row as a list."""
    return pa.FixedSizeListArray.from_arrays(x.ravel(), x.shape[1]).cast(pa.list_(pa.float32()))


def generated(rows: int, seed: int, number: int) -> tuple[Array, Array]:
    """Return features, float32, shape (rows, 28), and labels.

    As in HIGGS, 21 features are momenta, angles and tags, and 7 are like masses computed from them. Labels depend on
    products and windows of these, so that no linear model separates the classes, and no model separates them well.
    """
    rng = np.random.default_rng([11, seed, number])
    x = rng.standard_normal((rows, RAW))
    momenta, angles, tags = x[:, :7], x[:, 7:17], x[:, 17:]
    np.exp(0.5 * momenta, out=momenta)
    tags[:] = np.digitize(tags, [0.3, 1.2]) * 1.086
    first, second = momenta[:, :MADE], momenta[:, (np.arange(MADE) + 1) % MADE]
    masses = np.sqrt(first * second * (np.cosh(0.5 * (angles[:, :MADE] - angles[:, 3:])) - np.cos(angles[:, :MADE])))
    seen = masses * np.exp(0.1 * rng.standard_normal(masses.shape))
    window = np.exp(-(((masses - 1.0) / 0.35) ** 2))
    margin = 1.8 * (window[:, 0] + window[:, 3] * (tags[:, 0] > 0) + window[:, 5]) - 1.2 * np.tanh(masses[:, 1])
    margin += 0.6 * angles[:, 0] * angles[:, 4] + 0.5 * np.sin(2.0 * angles[:, 8]) * momenta[:, 6] - 0.5
    y = (rng.random(rows) < 1.0 / (1.0 + np.exp(-2.0 * margin))).astype(np.float64)
    return np.concatenate([x, seen], axis=1).astype(np.float32), y


def _cached(frame: Any, x: Any, y: Array) -> Rows:
    frame = cached(frame, None)
    return Rows(frame, cached(frame.limit(FEW), PARTITIONS), x, y)


def _matrix(frame: Any, features: int) -> tuple[Any, Array]:
    """Return features and labels of a DataFrame as a matrix, and an array."""
    rows = collected(frame)
    assert rows.y is not None
    keys, positions = number_columns(rows.x.indices)
    entries = (rows.x.data, keys.astype(np.int32)[positions], rows.x.indptr)
    return sp.csr_matrix(entries, shape=(len(rows.y), features)), rows.y


def _a9a(spark: Any, args: Args) -> tuple[Any, Any, Array, tuple[Any, Array]]:
    """Return rows of a9a as a DataFrame and as a matrix with labels; and rows held out."""
    frame, held = (
        read_libsvm(spark, file_in(args.data_dir, name), 123) for name in ("a9a.libsvm.gz", "a9a.t.libsvm.gz")
    )
    return (cached(frame.withColumnRenamed("features", "vector")), *_matrix(frame, 123), _matrix(held, 123))


def _forest_rows(spark: Any) -> tuple[Any, Any, Array, tuple[Any, Array]]:

    rows = generated_rows(spark, FOREST_ROWS)
    vectors = array_to_vector(rows.frame["features"].cast("array<double>")).alias("vector")
    frame = cached(rows.frame.select("label", vectors), None)
    return frame, rows.x, rows.y, generated(FOREST_HELD_OUT, 0, PARTITIONS)


def queries(rows: int, seed: int) -> tuple[Array, Array, Array]:
    """Return features (float32), relevances and queries of rows; the number of rows is one of whole queries."""
    rng = np.random.default_rng(seed)
    count = rows // GROUP
    query = np.repeat(np.arange(count), GROUP)
    x = rng.normal(size=(count * GROUP, RANKING_FEATURES)).astype(np.float32)
    # Some features are counts, and some are about alike for the rows of a query.
    x[:, :40] = np.floor(np.exp(x[:, :40]))
    x[:, 40:80] += 2 * np.repeat(rng.normal(size=(count, 40)), GROUP, axis=0).astype(np.float32)
    of_query = rng.normal(size=(count, 1)).repeat(GROUP, axis=0)[:, 0]
    score = (
        np.log1p(x[:, :8]).sum(axis=1) + 0.7 * x[:, 90] * (x[:, 91] > 0) - np.abs(x[:, 92]) + x[:, 93] * x[:, 94] / 2
    )
    score = score + 0.5 * x[:, 40:44].sum(axis=1) + of_query + 1.5 * rng.normal(size=len(query))
    bounds = np.quantile(score, (0.52, 0.84, 0.97, 0.993))
    return x, np.searchsorted(bounds, score).astype(np.float64), query


def ndcg(margins: Array, y: Array) -> float:
    """Return the mean NDCG@10 of queries of ``GROUP`` rows each, which lie side by side; 1 without a relevant row."""
    gains, scores = 2.0 ** y.reshape(-1, GROUP) - 1, margins.reshape(-1, GROUP)
    discounts = 1 / np.log2(np.arange(2, AT + 2))
    ranked = np.take_along_axis(gains, np.argsort(-scores, axis=1, kind="stable"), axis=1)[:, :AT] @ discounts
    best = -np.sort(-gains, axis=1)[:, :AT] @ discounts
    return float(np.where(best > 0, ranked / np.maximum(best, 1e-300), 1.0).mean())


# -- other libraries ---------------------------------------------------------------------------------------------------


def is_used(name: str, args: Args) -> bool:
    """Return True if a library of ``PEERS`` is asked for and installed; print a note if it is not installed."""
    lacking = [package for package in PEERS[name] if find_spec(package) is None]
    if lacking:
        tell(f"{name} is left out: no {', '.join(lacking)}; python -m pip install -r benchmarks/requirements.txt")
    return name in args.peers and not lacking


def peers(rows: Rows, settings: Settings, args: Args) -> dict[str, Training]:
    """Return the trainings of the requested libraries that are installed."""
    fits = {"lightgbm": _lightgbm, "xgboost.spark": _xgboost_spark, "xgboost": _xgboost}
    return {name: partial(train, rows, settings) for name, train in fits.items() if is_used(name, args)}


def _of_lightgbm(settings: Settings) -> dict[str, Any]:
    """Return params of trees that grow leaf by leaf with as many leaves as the depth allows, for comparable trees."""
    return {
        "objective": "binary",
        "learning_rate": settings.rate,
        "num_leaves": 1 << settings.depth,
        "max_depth": settings.depth,
        "max_bin": settings.bins,
        "lambda_l2": settings.reg_lambda,
        "min_data_in_leaf": settings.min_rows,
        "min_sum_hessian_in_leaf": settings.min_hessian,
        "num_threads": WORKERS,
        "verbosity": -1,
    }


def _lightgbm(rows: Rows, settings: Settings) -> Fitted:
    import lightgbm

    booster, seconds = timed(
        lambda: lightgbm.train(_of_lightgbm(settings), lightgbm.Dataset(rows.x, rows.y), settings.trees)
    )
    return Fitted(seconds, lambda x: np.asarray(booster.predict(x, raw_score=True)))


def _lightgbm_rank(rows: Rows, settings: Settings) -> Fitted:
    import lightgbm

    params = {**_of_lightgbm(settings), "objective": "lambdarank", "lambdarank_truncation_level": TRUNCATION}
    group = np.full(len(rows.y) // GROUP, GROUP)
    booster, seconds = timed(
        lambda: lightgbm.train(params, lightgbm.Dataset(rows.x, rows.y, group=group), settings.trees)
    )
    return Fitted(seconds, booster.predict)


def _of_xgboost(settings: Settings) -> dict[str, Any]:
    return {
        "tree_method": "hist",
        "learning_rate": settings.rate,
        "max_depth": settings.depth,
        "max_bin": settings.bins,
        "reg_lambda": settings.reg_lambda,
        "min_child_weight": settings.min_hessian,
    }


def _xgboost(rows: Rows, settings: Settings) -> Fitted:
    import xgboost

    params = {**_of_xgboost(settings), "objective": "binary:logistic", "nthread": WORKERS}
    began_s = time.monotonic()
    data = xgboost.QuantileDMatrix(rows.x, rows.y, max_bin=settings.bins, nthread=WORKERS)
    binned_s = time.monotonic() - began_s
    booster = xgboost.train(params, data, settings.trees)
    seconds = time.monotonic() - began_s
    tell(f"xgboost: of {seconds:.2f} s binning took {binned_s:.2f} s")
    return Fitted(seconds, partial(_margins_of_xgboost, booster))


def _spark_xgboost(estimator: Any, rows: Rows, settings: Settings, params: dict[str, Any]) -> Fitted:
    """Train in Spark, after a training of a few rows that starts the Python workers, as for PS2."""
    logging.getLogger("XGBoost-PySpark").setLevel(logging.WARNING)
    params = {**_of_xgboost(settings), "num_workers": WORKERS, "verbose": False, **params}
    estimator(n_estimators=1, **params).fit(rows.few)
    model, seconds = timed(estimator(n_estimators=settings.trees, **params).fit, rows.frame)
    return Fitted(seconds, partial(_margins_of_xgboost, model.get_booster()))


def _xgboost_spark(rows: Rows, settings: Settings) -> Fitted:
    from xgboost.spark import SparkXGBClassifier

    # Sparse vectors stay sparse only if absent entries mean missing values, as in a scipy matrix.
    params = {"enable_sparse_data_optim": True, "missing": 0.0} if sp.issparse(rows.x) else {}
    return _spark_xgboost(SparkXGBClassifier, rows, settings, params)


def _xgboost_rank(rows: Rows, settings: Settings) -> Fitted:
    from xgboost.spark import SparkXGBRanker

    pairs = {"lambdarank_pair_method": "topk", "lambdarank_num_pair_per_sample": TRUNCATION, "qid_col": "query"}
    params = {**pairs, "objective": "rank:ndcg", "reg_lambda": 1.0, "min_child_weight": 1.0}
    return _spark_xgboost(SparkXGBRanker, rows, settings, params)


def _margins_of_xgboost(booster: Any, x: Any) -> Array:
    import xgboost

    margins: Array = booster.predict(xgboost.DMatrix(x), output_margin=True)
    return margins


# -- forests and rankings ----------------------------------------------------------------------------------------------


def _rank(rows: Rows, settings: Settings) -> Fitted:
    from ps2.algorithms import GBTRanker

    params = {**settings.ours(), "groupCol": "query", "lambdarankNumPairPerSample": TRUNCATION}
    GBTRanker(**{**params, "maxIter": 1}).fit(rows.few)
    model, seconds = timed(GBTRanker(**params).fit, rows.frame)
    return Fitted(seconds, alone(model).margins)


def _forest_turns(frame: Any, rounds: int) -> tuple[list[float], list[float]]:
    """Fit pyspark.ml's forest and ours in turns, each turn with its seed; return the seconds of both."""
    from pyspark.ml import classification as theirs

    from ps2.algorithms import classification as ours

    seconds: tuple[list[float], list[float]] = ([], [])
    for seed in range(rounds + 1):
        params: dict[str, Any] = {**FOREST, "featuresCol": "vector", "seed": seed, **({} if seed else {"numTrees": 2})}
        for taken, module in zip(seconds, (theirs, ours), strict=True):
            model, fit_s = timed(module.RandomForestClassifier(**params).fit, frame)
            tell(f"{module.__name__.split('.')[0]}: {fit_s:.2f} s, {model.totalNumNodes:,} nodes")
            if seed:
                taken.append(fit_s)
    return seconds


def _forest(frame: Any, seed: int) -> Callable[[Any], Array]:
    from ps2.algorithms import classification

    model = classification.RandomForestClassifier(featuresCol="vector", **FOREST, seed=seed).fit(frame)
    return lambda x: np.asarray(model._trained.predictProbability(x))[:, 1]


def _peer(x: Any, y: Array, seed: int) -> Callable[[Any], Array]:
    from sklearn.ensemble import RandomForestClassifier

    depth, trees = FOREST["maxDepth"], FOREST["numTrees"]
    sample = int(np.ceil(np.sqrt(x.shape[1])))
    model = RandomForestClassifier(trees, max_depth=depth, max_features=sample, n_jobs=2, random_state=seed).fit(x, y)
    return lambda rows: np.asarray(model.predict_proba(rows)[:, 1])


PARTS = {"dense": dense, "features": features, "forests": forests, "ranking": ranking, "news20": news20}
FILES = {
    "forests": "a9a.libsvm.gz and a9a.t.libsvm.gz",
    "news20": "news20-bigram.train.libsvm.gz and .test.libsvm.gz",
}
BENCHMARK = Benchmark("trees", Args, PARTS, FILES, packages=("xgboost-cpu", "xgboost", "lightgbm"))

if __name__ == "__main__":
    BENCHMARK.main()
