"""Parameters that several families have. Params of pyspark.ml keep their names and types."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ps2.algorithms.frame.settings import Check, Flexible, Setting, Settings, getter, param, setter

# The check of the seconds of a turn, see ``seconds_or_auto``.
TURN_SECONDS: Check = (
    lambda value: value == "auto" or (not isinstance(value, str) and 0 < value < math.inf),
    "a finite positive number of seconds, or 'auto'",
)

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = Sequence[float] | npt.NDArray[Any]


def are_thresholds(values: Sequence[float]) -> bool:
    """Return whether no value is negative and at most one is 0."""
    return all(0 <= value < math.inf for value in values) and sum(value == 0 for value in values) <= 1


class FleetSettings(Settings):
    """The size of a training."""

    numWorkers: Setting[int | None] = param(
        None,
        "the number of tasks that train; not set: one for each partition, but no more than there are task slots; one "
        "where via chooses that",
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
    """Where to train a model whose training can run without servers."""

    via: Setting[str] = param(
        "auto",
        "what works on the model between clocks: 'servers', 'local' (one worker has all rows and the model, with the "
        "same result), or 'auto' (the faster one by a cost model; 'servers' if numWorkers is above 1)",
        one_of=("auto", "local", "servers"),
    )

    getVia, setVia = getter(via), setter(via)


class WeightSettings(Settings):
    """The column of rows' weights."""

    weightCol: Setting[str | None] = param(
        None, "the column of the rows' weights; not set or empty: all weights are 1", type=str, option=None
    )

    getWeightCol, setWeightCol = getter(weightCol), setter(weightCol)


class LabelSettings(Settings):
    """The columns of labels and predictions."""

    labelCol: Setting[str] = param("label", "the column of the labels", option=None)
    predictionCol: Setting[str] = param(
        "prediction", "the column for predictions; empty: none", option=None, in_model=True
    )

    getLabelCol, setLabelCol = getter(labelCol), setter(labelCol)
    getPredictionCol, setPredictionCol = getter(predictionCol), setter(predictionCol)


class ClassifierSettings(LabelSettings):
    """The columns of a classifier."""

    rawPredictionCol: Setting[str] = param(
        "rawPrediction", "the column for raw predictions, one for each class; empty: none", option=None, in_model=True
    )

    getRawPredictionCol, setRawPredictionCol = getter(rawPredictionCol), setter(rawPredictionCol)


class ProbabilitySettings(ClassifierSettings):
    """The columns of a classifier with probabilities, and the thresholds of these."""

    probabilityCol: Setting[str] = param(
        "probability", "the column for the probability of each class; empty: none", option=None, in_model=True
    )
    thresholds: Flexible[Any, Floats] = param(
        None,
        "one threshold for each class, of which one may be 0: the prediction is the class whose probability, divided "
        "by its threshold, is the largest; not set: the class of the largest probability",
        check=(are_thresholds, "positive numbers, of which one may be 0"),
        type=list[float],
        option=None,
        in_model=True,
    )

    getProbabilityCol, setProbabilityCol = getter(probabilityCol), setter(probabilityCol)
    getThresholds, setThresholds = getter(thresholds), setter(thresholds)


def seconds_or_auto(value: Any) -> float | str:
    """Return seconds as a float, which can be given as text, or "auto", which can be in any case."""
    from pyspark.ml.param import TypeConverters

    try:
        return float(value) if isinstance(value, str) else TypeConverters.toFloat(value)
    except ValueError:
        return str(value).lower()
