"""Parameters that several families share. Params of pyspark.ml keep their names and types."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ps2.algorithms.frame.settings import Check, Flexible, Setting, Settings, getter, param, setter
from ps2.data.spilling import SPILL

# The check of a turn's duration; ``seconds_or_auto`` converts the value before.
TURN_SECONDS: Check = (
    lambda value: value == "auto" or (not isinstance(value, str) and 0 < value < math.inf),
    "a finite positive number of seconds, or 'auto'",
)

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = Sequence[float] | npt.NDArray[Any]


def are_thresholds(values: Sequence[float]) -> bool:
    """Return whether values can be thresholds of classes: none is negative, and at most one is 0."""
    return all(0 <= value < math.inf for value in values) and sum(value == 0 for value in values) <= 1


class FleetSettings(Settings):
    """The number of workers and servers of a training."""

    numWorkers: Setting[int | None] = param(
        None,
        "the number of workers, which are Spark tasks; not set: one for each partition, at most one for each task "
        "slot, or a single worker if the training runs without servers (via)",
        at_least=1,
        type=int,
        option=None,
    )
    numServers: Setting[int | None] = param(
        None,
        "the number of servers of the fleet that fit starts if no PS2Context is active",
        at_least=1,
        type=int,
        option=None,
    )

    getNumWorkers, setNumWorkers = getter(numWorkers), setter(numWorkers)
    getNumServers, setNumServers = getter(numServers), setter(numServers)


class FeatureSettings(FleetSettings):
    """Features in one column of vectors, or in several columns of numbers."""

    featuresCol: Flexible[str, str | Sequence[str]] = param(
        "features",
        "the column of the features, vectors; or the names of columns of numbers",
        option=None,
        in_model=True,
    )
    featuresCols: Setting[Any] = param(
        None,
        "numeric columns that are the features, instead of featuresCol; coefficients are in their order",
        type=list[str],
        option=None,
        in_model=True,
    )

    getFeaturesCol, setFeaturesCol = getter(featuresCol), setter(featuresCol)
    getFeaturesCols, setFeaturesCols = getter(featuresCols), setter(featuresCols)


class ViaSettings(FleetSettings):
    """The choice between servers and the only worker, for trainings that can run without servers."""

    via: Setting[str] = param(
        "auto",
        "where to train: on 'servers', 'local' (a single worker has all rows and the model, with the same result), or "
        "'auto' (by predicted time; 'servers' if numWorkers is above 1)",
        one_of=("auto", "local", "servers"),
    )

    getVia, setVia = getter(via), setter(via)


class SpillSettings(Settings):
    """The choice between memory and files for workers' rows."""

    spill: Setting[str] = param(
        "auto",
        "whether workers keep rows in files on Spark's local disks: 'auto' (rows that exceed a quarter of a worker's "
        "memory), 'always' or 'never'; with 'auto', solvers that cannot read files keep rows in memory",
        one_of=SPILL,
    )

    getSpill, setSpill = getter(spill), setter(spill)


class WeightSettings(Settings):
    """The column of rows' weights."""

    weightCol: Setting[str | None] = param(
        None, "the column of the rows' weights; not set or empty: all weights are 1", type=str, option=None
    )

    getWeightCol, setWeightCol = getter(weightCol), setter(weightCol)


class HeldOutSettings(Settings):
    """The rows to hold out of the training, whose loss chooses the best pass over the other rows."""

    validationIndicatorCol: Setting[str | None] = param(
        None,
        "the boolean column that is true for rows to hold out of the training; not set or empty: no rows are held out",
        type=str,
        option=None,
    )
    validationTol: Setting[float] = param(
        0.0,
        "the smallest relative decrease of the held-out rows' loss that counts as progress",
        at_least=0,
        below=1,
        option=None,
    )
    patience: Setting[int] = param(
        3,
        "stop after this many passes without progress on the held-out rows, and return the best pass's model; 0: run "
        "all passes, and return the last one's model",
        at_least=0,
    )

    getValidationIndicatorCol = getter(validationIndicatorCol)
    setValidationIndicatorCol = setter(validationIndicatorCol)
    getValidationTol, setValidationTol = getter(validationTol), setter(validationTol)
    getPatience, setPatience = getter(patience), setter(patience)


class LabelSettings(Settings):
    """The columns of labels and predictions."""

    labelCol: Setting[str] = param("label", "the column of the labels", option=None)
    predictionCol: Setting[str] = param(
        "prediction", "the new column of predictions; empty: not added", option=None, in_model=True
    )

    getLabelCol, setLabelCol = getter(labelCol), setter(labelCol)
    getPredictionCol, setPredictionCol = getter(predictionCol), setter(predictionCol)


class ClassifierSettings(LabelSettings):
    """The columns of a classifier."""

    rawPredictionCol: Setting[str] = param(
        "rawPrediction", "the new column of raw predictions of each class; empty: not added", option=None, in_model=True
    )

    getRawPredictionCol, setRawPredictionCol = getter(rawPredictionCol), setter(rawPredictionCol)


class ProbabilitySettings(ClassifierSettings):
    """The columns of a classifier with probabilities, and the thresholds of the classes."""

    probabilityCol: Setting[str] = param(
        "probability", "the new column of probabilities of each class; empty: not added", option=None, in_model=True
    )
    thresholds: Flexible[Any, Floats] = param(
        None,
        "one threshold for each class, of which one may be 0: the prediction is the class with the largest probability "
        "divided by its threshold; not set: the class with the largest probability",
        check=(are_thresholds, "positive numbers, of which one may be 0"),
        type=list[float],
        option=None,
        in_model=True,
    )

    getProbabilityCol, setProbabilityCol = getter(probabilityCol), setter(probabilityCol)
    getThresholds, setThresholds = getter(thresholds), setter(thresholds)


def seconds_or_auto(value: Any) -> float | str:
    """Convert a number of seconds, or its text, to a float, and "auto" in upper or lower case to "auto"."""
    from pyspark.ml.param import TypeConverters

    try:
        return float(value) if isinstance(value, str) else TypeConverters.toFloat(value)
    except ValueError:
        return str(value).lower()
