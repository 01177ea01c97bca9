"""Trainings of ``benchmarks.ml``, ours and pyspark.ml's, with the clock running from ``fit`` to its return."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.local_spark import start_spark
from benchmarks.ml_data import Data
from benchmarks.ml_part import Asked
from ps2 import PS2Context

Array = npt.NDArray[Any]
SERVERS = 2


@contextmanager
def spark_and_servers(asked: Asked, part: str) -> Iterator[Any]:
    """Start Spark with two task slots and two servers; yield the SparkSession."""
    settings = {"spark.driver.memory": asked.memory, "spark.driver.maxResultSize": "0"}
    spark = start_spark("local[2]", f"benchmarks.ml_{part}", settings)
    try:
        with PS2Context.getOrCreate(spark, servers=SERVERS):
            yield spark
    finally:
        spark.stop()


def plain(strength: float, **params: Any) -> dict[str, Any]:
    """Return params for the objective that the reference values are of: no intercept, features as they are."""
    return {"regParam": strength, "fitIntercept": False, "standardization": False, **params}


@dataclass(frozen=True, eq=False)
class Fitted:
    """A model of ours.

    Attributes:
        seconds: of ``fit``.
        w: float64, shape (k,): weights at the data's keys.
        objectives: as ``model.summary`` has them.
        step_s: seconds of each step.
    """

    seconds: float
    w: Array
    objectives: tuple[float, ...]
    step_s: tuple[float, ...]


@dataclass(frozen=True)
class Reached:
    """A training of pyspark.ml's.

    Attributes:
        seconds: of ``fit``.
        objectives: before the first iteration and after each one.
        model: what came of it.
    """

    seconds: float
    objectives: tuple[float, ...]
    model: Any

    @property
    def iterations(self) -> int:
        return len(self.objectives) - 1


def fit(data: Data, params: dict[str, Any], estimator: str = "LogisticRegression", warm: bool = True) -> Fitted:
    """Train with ours.

    Args:
        warm: let Spark's Python workers train on a few rows first: Spark ends those that idle for a minute, and new
            ones begin with imports.
    """
    from ps2 import algorithms

    cls = getattr(algorithms, estimator)
    if warm:
        _free(cls(**{**params, "maxIter": 2}).fit(data.few))
    began_s = time.monotonic()
    model = cls(**params).fit(data.frame)
    seconds = time.monotonic() - began_s
    w = weights_at(model, data.keys)
    found = Fitted(seconds, w, tuple(model.summary.objectiveHistory), tuple(model.summary.stepSeconds))
    _free(model)
    return found


def fit_pyspark(data: Data, params: dict[str, Any]) -> Reached:
    """Train with pyspark.ml's L-BFGS."""
    from pyspark.ml.classification import LogisticRegression

    began_s = time.monotonic()
    model = LogisticRegression(**params).fit(data.frame)
    seconds = time.monotonic() - began_s
    return Reached(seconds, tuple(model.summary.objectiveHistory), model)


def weights_at(model: Any, keys: Array) -> Array:
    """Return a model's weights at some features, wherever it has them."""
    if _is_on_fleet(model):
        return np.asarray(model.weightVector.pull(keys), np.float64)
    return np.asarray(model.coefficients.toArray()[keys])


def steps_to(data: Data, params: dict[str, Any], target: float, most: int) -> int | None:
    """Return the smallest ``maxIter`` with which logistic regression gets to an objective; None: more than ``most``.

    Trainings that differ in ``maxIter`` alone take the same steps, and tell their objective after each one.
    """
    objectives = fit(data, {**params, "maxIter": most}).objectives
    return next((step for step, value in enumerate(objectives) if value <= target), None)


def _is_on_fleet(model: Any) -> bool:
    from ps2.algorithms.linear.weights import MAX_IN_DRIVER

    return int(model.numFeatures) > MAX_IN_DRIVER


def _free(model: Any) -> None:
    if _is_on_fleet(model):
        model.weightVector.free()
