"""Random forests: seconds of ``fit`` beside pyspark.ml's, and AUC on held-out rows beside scikit-learn's."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from statistics import mean, median
from typing import Any

import numpy as np
import scipy.sparse as sp
from pyspark.ml.functions import array_to_vector

from benchmarks import libsvm, trees_data
from benchmarks.frame import Check, Part, answer, tell
from benchmarks.ml_part import Line
from benchmarks.ml_sets import auc
from benchmarks.small_part import kept
from benchmarks.trees_data import Array, file_in
from benchmarks.trees_part import Asked, Score, spark_and_servers
from ps2.data.rows import number_columns

PARAMS: dict[str, Any] = {"numTrees": 50, "maxDepth": 10, "maxBins": 128, "featureSubsetStrategy": "sqrt"}
ROWS, HELD_OUT = 200_000, 100_000
SEEDS = (0, 1, 2)
MIN_TIMES, GAP = 3.0, 0.002


def measure(asked: Asked) -> Part:
    lines: list[Line | Score] = []
    checks: list[Check] = []
    with spark_and_servers(asked, "forests") as spark:
        for name, (frame, x, y, test) in (("a9a", _a9a(spark, asked)), ("generated", _generated(spark))):
            ours, theirs = _turns(frame, asked.rounds)
            tell(f"{name}: ours {median(ours):.2f} s, pyspark.ml {median(theirs):.2f} s")
            lines.append(Line(f"{name}: fit of a random forest", "pyspark.ml", "s", MIN_TIMES, theirs, ours))
            scores = {"ours": _mean_auc(partial(_fitted, frame), test)}
            if find_spec("sklearn") is not None:
                scores["scikit-learn"] = _mean_auc(partial(_peer, x, y), test)
            tell(f"{name}: AUC {scores}")
            if "scikit-learn" in scores:
                told = f"{name}: AUC of {len(SEEDS)} seeds"
                lines.append(Score(told, "scikit-learn", "AUC", None, scores["scikit-learn"], scores["ours"]))
                checks.append(Check(f"{told}: below scikit-learn's", scores["scikit-learn"] - scores["ours"], GAP))
    return Part(lines, checks, {**PARAMS, "rows generated": f"{ROWS:,}"})


def _turns(frame: Any, rounds: int) -> tuple[list[float], list[float]]:
    """Fit ours and pyspark.ml's in turns; return seconds of both. A small forest precedes."""
    from pyspark.ml import classification as theirs_classification

    from ps2.algorithms import classification

    vectors = frame.select("label", "vector").persist()
    vectors.count()
    ours: list[float] = []
    theirs: list[float] = []
    for round_ in range(rounds + 1):
        params: dict[str, Any] = {**PARAMS, "seed": round_, **({} if round_ else {"numTrees": 2})}
        for found, estimator in (
            (ours, classification.RandomForestClassifier(featuresCol="vector", **params)),
            (theirs, theirs_classification.RandomForestClassifier(featuresCol="vector", **params)),
        ):
            began_s = time.monotonic()
            made = estimator.fit(vectors)
            if round_:
                found.append(time.monotonic() - began_s)
                tell(f"{type(estimator).__module__.split('.')[0]}: {found[-1]:.2f} s, {made.totalNumNodes:,} nodes")
    vectors.unpersist()
    return ours, theirs


def _mean_auc(train: Callable[[int], Callable[[Any], Array]], test: tuple[Any, Array]) -> float:
    return float(mean(auc(train(seed)(test[0]), test[1]) for seed in SEEDS))


def _fitted(frame: Any, seed: int) -> Callable[[Any], Array]:
    from ps2.algorithms import classification

    model = classification.RandomForestClassifier(featuresCol="vector", **PARAMS, seed=seed).fit(frame)
    return lambda x: np.asarray(model._trained.predictProbability(x))[:, 1]


def _peer(x: Any, y: Array, seed: int) -> Callable[[Any], Array]:
    from sklearn.ensemble import RandomForestClassifier

    depth, trees = PARAMS["maxDepth"], PARAMS["numTrees"]
    drawn = int(np.ceil(np.sqrt(x.shape[1])))
    model = RandomForestClassifier(trees, max_depth=depth, max_features=drawn, n_jobs=2, random_state=seed).fit(x, y)
    return lambda rows: np.asarray(model.predict_proba(rows)[:, 1])


def _a9a(spark: Any, asked: Asked) -> tuple[Any, Any, Array, tuple[Any, Array]]:
    """Return rows of a9a as a DataFrame and as a matrix with labels; and rows held out."""
    parts = []
    for name in ("a9a.libsvm.gz", "a9a.t.libsvm.gz"):
        frame = libsvm.read(spark, file_in(asked.data_dir, name), 123)
        data = libsvm.collected(frame)
        assert data.y is not None
        keys, places = number_columns(data.x.indices)
        held = (data.x.data, keys.astype(np.int32)[places], data.x.indptr)
        parts.append((frame, sp.csr_matrix(held, shape=(len(data.y), 123)), data.y))
    (frame, x, y), (_, x_test, y_test) = parts
    return kept(frame.withColumnRenamed("features", "vector")), x, y, (x_test, y_test)


def _generated(spark: Any) -> tuple[Any, Any, Array, tuple[Any, Array]]:
    rows = trees_data.dense(spark, ROWS)
    frame = rows.frame.select("label", array_to_vector(rows.frame["features"].cast("array<double>")).alias("vector"))
    return frame, rows.x, rows.y, trees_data.generated(HELD_OUT, 0, trees_data.PARTITIONS)


if __name__ == "__main__":
    answer(Asked, measure)
