"""The libraries that ``benchmarks.trees`` compares with, if installed: ``benchmarks/requirements.txt``."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import scipy.sparse as sp

from benchmarks.frame import tell
from benchmarks.trees_data import Array, Rows
from benchmarks.trees_fit import Fitted, Settings
from benchmarks.trees_part import WORKERS

# Packages of each library.
PEERS = {"lightgbm": ("lightgbm",), "xgboost.spark": ("xgboost", "sklearn"), "xgboost": ("xgboost",)}
# Threads of libraries without Spark: as many as there are workers.
THREADS = WORKERS


def peers(asked: Iterable[str], rows: Rows, settings: Settings) -> dict[str, Callable[[], Fitted]]:
    """Return the trainings of the requested libraries that are installed."""
    fits = {"lightgbm": _lightgbm, "xgboost.spark": _xgboost_spark, "xgboost": _xgboost}
    return {name: partial(fits[name], rows, settings) for name in asked if is_installed(name)}


def is_installed(name: str) -> bool:
    """Return True if a library of ``PEERS`` is installed; print a note if it is not."""
    if lacking := [package for package in PEERS[name] if find_spec(package) is None]:
        tell(f"{name} is left out: no {', '.join(lacking)}; python -m pip install -r benchmarks/requirements.txt")
    return not lacking


def _lightgbm(rows: Rows, settings: Settings) -> Fitted:
    """Train leaf by leaf with as many leaves as the depth allows, for comparable trees."""
    import lightgbm

    params = {
        "objective": "binary",
        "learning_rate": settings.rate,
        "num_leaves": settings.leaves or 1 << settings.depth,
        "max_depth": -1 if settings.leaves else settings.depth,
        "max_bin": settings.bins,
        "lambda_l2": settings.reg_lambda,
        "min_data_in_leaf": settings.min_rows,
        "min_sum_hessian_in_leaf": settings.min_hessian,
        "num_threads": THREADS,
        "verbosity": -1,
    }
    began_s = time.monotonic()
    booster = lightgbm.train(params, lightgbm.Dataset(rows.x, rows.y), settings.trees)
    return Fitted(time.monotonic() - began_s, lambda x: np.asarray(booster.predict(x, raw_score=True)))


def _of_xgboost(settings: Settings) -> dict[str, Any]:
    by_leaf = {"grow_policy": "lossguide", "max_leaves": settings.leaves}
    return {
        "tree_method": "hist",
        "learning_rate": settings.rate,
        "max_depth": settings.depth,
        "max_bin": settings.bins,
        "reg_lambda": settings.reg_lambda,
        "min_child_weight": settings.min_hessian,
        **(by_leaf if settings.leaves else {}),
    }


def _xgboost(rows: Rows, settings: Settings) -> Fitted:
    import xgboost

    params = {**_of_xgboost(settings), "objective": "binary:logistic", "nthread": THREADS}
    began_s = time.monotonic()
    data = xgboost.QuantileDMatrix(rows.x, rows.y, max_bin=settings.bins, nthread=THREADS)
    binned_s = time.monotonic() - began_s
    booster = xgboost.train(params, data, settings.trees)
    seconds = time.monotonic() - began_s
    tell(f"xgboost: of {seconds:.2f} s binning took {binned_s:.2f} s")
    return Fitted(seconds, partial(_margins_of_xgboost, booster))


def _xgboost_spark(rows: Rows, settings: Settings) -> Fitted:
    """Train in Spark, after a training of a few rows that starts the Python workers, as for PS2."""
    from xgboost.spark import SparkXGBClassifier

    logging.getLogger("XGBoost-PySpark").setLevel(logging.WARNING)
    # Sparse vectors stay sparse only if absent entries mean missing values, as in a scipy matrix.
    sparse = {"enable_sparse_data_optim": True, "missing": 0.0} if sp.issparse(rows.x) else {}
    given = {**_of_xgboost(settings), **sparse, "num_workers": WORKERS, "verbose": False}
    SparkXGBClassifier(n_estimators=1, **given).fit(rows.few)
    began_s = time.monotonic()
    model = SparkXGBClassifier(n_estimators=settings.trees, **given).fit(rows.frame)
    return Fitted(time.monotonic() - began_s, partial(_margins_of_xgboost, model.get_booster()))


def _margins_of_xgboost(booster: Any, x: Any) -> Array:
    import xgboost

    margins: Array = booster.predict(xgboost.DMatrix(x), output_margin=True)
    return margins
