"""Rankings like those of MSLR: NDCG of held-out queries and seconds of ``fit``, beside LightGBM's and xgboost's.

Queries have 100 rows of 136 features. A row's relevance, 0 to 4 and mostly 0, comes from a score of some features, of
which a part counts within its query only, and of noise.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.frame import Part, answer, tell
from benchmarks.ml_part import Line
from benchmarks.trees_data import FEW, PARTITIONS, Array
from benchmarks.trees_fit import OURS, Fitted, Settings, alone, take_turns
from benchmarks.trees_part import WORKERS, Asked, Score, spark_and_servers
from benchmarks.trees_peers import THREADS, is_installed

FEATURES, GROUP = 136, 100
SETTINGS = Settings(trees=100, depth=6, bins=255, rate=0.1, reg_lambda=0.0, min_rows=20, min_hessian=1e-3)
TRUNCATION = 30
AT = 10
# How much less NDCG@10 than LightGBM's is allowed, and by which factor PS2 may be slower than SparkXGBRanker.
LESS, SLOWER = 0.003, 1.5
# Rows of the part, and of the queries held out, of those that the part dense has.
SHARE = 10
HELD_OUT = 100_000


def generated(rows: int, seed: int) -> tuple[Array, Array, Array]:
    """Return features (float32), relevances and queries of rows; the number of rows is one of whole queries."""
    rng = np.random.default_rng(seed)
    queries = rows // GROUP
    query = np.repeat(np.arange(queries), GROUP)
    x = rng.normal(size=(queries * GROUP, FEATURES)).astype(np.float32)
    # Some features are counts, and some are about alike for the rows of a query.
    x[:, :40] = np.floor(np.exp(x[:, :40]))
    x[:, 40:80] += 2 * np.repeat(rng.normal(size=(queries, 40)), GROUP, axis=0).astype(np.float32)
    of_query = rng.normal(size=(queries, 1)).repeat(GROUP, axis=0)[:, 0]
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


def measure(asked: Asked) -> Part:
    x, y, query = generated(asked.rows // SHARE, seed=0)
    x_test, y_test, _ = generated(HELD_OUT, seed=1)
    with spark_and_servers(asked, "ranking") as spark:
        flat = pa.ListArray.from_arrays(np.arange(0, x.size + 1, FEATURES, dtype=np.int32), pa.array(x.reshape(-1)))
        table = pa.table({"label": y, "query": query, "features": flat})
        frame = spark.createDataFrame(table).repartition(PARTITIONS, "query").cache()
        few = frame.limit(FEW).cache()
        tell(f"{frame.count():,} rows of {len(y) // GROUP:,} queries, {few.count()} of them to warm up")
        others = {name: partial(fit, frame, few, x, y) for name, fit in _PEERS.items()}
        others = {name: fit for name, fit in others.items() if name in asked.peers and is_installed(name)}
        found = take_turns(partial(_ours, frame, few), others, asked.rounds)
    scores = {name: ndcg(turns[-1].margins(x_test).reshape(-1), y_test) for name, turns in found.items()}
    seconds = {name: [fitted.seconds for fitted in turns] for name, turns in found.items()}
    for name, score in scores.items():
        tell(f"{name}: {median(seconds[name]):.2f} s, NDCG@{AT} {score:.5f}")
    lines: list[Line | Score] = []
    for name in others:
        goal = 1 / SLOWER if name == "xgboost.spark" else None
        lines.append(Line("ranking: seconds of fit", name, "s", goal, seconds[name], seconds[OURS]))
        least = scores[name] - LESS if name == "lightgbm" else None
        lines.append(Score("ranking: queries held out", name, f"NDCG@{AT}", least, scores[name], scores[OURS]))
    lines = lines or [Score("ranking: queries held out", OURS, f"NDCG@{AT}", None, scores[OURS], scores[OURS])]
    return Part(lines, facts={"rows": f"{len(y):,}", "features": FEATURES, "rows a query": GROUP})


def _ours(frame: Any, few: Any) -> Fitted:
    from ps2.algorithms import GBTRanker

    params = {**SETTINGS.ours(), "groupCol": "query", "lambdarankNumPairPerSample": TRUNCATION}
    GBTRanker(**{**params, "maxIter": 1}).fit(few)
    began_s = time.monotonic()
    model = GBTRanker(**params).fit(frame)
    return Fitted(time.monotonic() - began_s, alone(model).margins)


def _lightgbm(frame: Any, few: Any, x: Array, y: Array) -> Fitted:
    import lightgbm

    params = {
        "objective": "lambdarank",
        "learning_rate": SETTINGS.rate,
        "num_leaves": 1 << SETTINGS.depth,
        "max_depth": SETTINGS.depth,
        "max_bin": SETTINGS.bins,
        "lambda_l2": SETTINGS.reg_lambda,
        "min_data_in_leaf": SETTINGS.min_rows,
        "min_sum_hessian_in_leaf": SETTINGS.min_hessian,
        "lambdarank_truncation_level": TRUNCATION,
        "num_threads": THREADS,
        "verbosity": -1,
    }
    began_s = time.monotonic()
    data = lightgbm.Dataset(x, y, group=np.full(len(y) // GROUP, GROUP))
    booster = lightgbm.train(params, data, SETTINGS.trees)
    return Fitted(time.monotonic() - began_s, booster.predict)


def _xgboost_spark(frame: Any, few: Any, x: Array, y: Array) -> Fitted:
    from xgboost.spark import SparkXGBRanker

    logging.getLogger("XGBoost-PySpark").setLevel(logging.WARNING)
    params: dict[str, Any] = {
        "objective": "rank:ndcg",
        "tree_method": "hist",
        "learning_rate": SETTINGS.rate,
        "max_depth": SETTINGS.depth,
        "max_bin": SETTINGS.bins,
        "reg_lambda": 1.0,
        "lambdarank_pair_method": "topk",
        "lambdarank_num_pair_per_sample": TRUNCATION,
        "qid_col": "query",
        "num_workers": WORKERS,
        "verbose": False,
    }
    SparkXGBRanker(n_estimators=1, **params).fit(few)
    began_s = time.monotonic()
    model = SparkXGBRanker(n_estimators=SETTINGS.trees, **params).fit(frame)
    return Fitted(time.monotonic() - began_s, partial(_margins_of_xgboost, model.get_booster()))


def _margins_of_xgboost(booster: Any, x: Any) -> Array:
    import xgboost

    margins: Array = booster.predict(xgboost.DMatrix(x), output_margin=True)
    return margins


_PEERS: dict[str, Callable[..., Fitted]] = {"lightgbm": _lightgbm, "xgboost.spark": _xgboost_spark}

if __name__ == "__main__":
    answer(Asked, measure)
