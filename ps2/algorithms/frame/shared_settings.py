"""Parameters that many families have. Those of pyspark.ml keep its names and types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ps2.algorithms.frame.settings import Flexible, Setting, Settings, getter, param, setter


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
    """Where a model lies whose training may do without servers."""

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
