"""Params of KMeans: pyspark.ml's, and their conversion to options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast, get_args

from pyspark.ml.clustering import _KMeansParams
from pyspark.ml.param import Param
from pyspark.ml.param.shared import HasDistanceMeasure, HasTol

from ps2.algorithms.clusters.options import DistanceName, KMeansOptions, StartName
from ps2.algorithms.estimators.params import (
    COUNT,
    NOT_NEGATIVE,
    RANGES,
    Check,
    FleetParams,
    FleetSetters,
    choice,
    described,
    one_of,
    setter,
)
from ps2.algorithms.estimators.via import VIA, HasVia


class KMeansParams(HasVia, FleetParams, _KMeansParams):
    """Params of the training; ``solver`` and ``maxBlockSizeInMB`` of pyspark.ml change nothing here."""

    _RANGES: Mapping[str, Check] = {
        **RANGES,
        **VIA,
        "k": COUNT,
        "initMode": one_of(get_args(StartName)),
        "initSteps": COUNT,
        "tol": NOT_NEGATIVE,
        "distanceMeasure": one_of(get_args(DistanceName)),
    }

    k: Param[int] = described(_KMeansParams.k, "the number of clusters (>= 1); fewer if there are fewer different rows")
    initMode: Param[str] = choice(_KMeansParams.initMode, get_args(StartName))
    distanceMeasure: Param[str] = choice(HasDistanceMeasure.distanceMeasure, get_args(DistanceName))

    def _set_defaults(self) -> None:
        super()._set_defaults()
        self._setDefault(seed=0)

    @property
    def _weight_column(self) -> str | None:
        """Name of the column of weights; None: all rows weigh 1."""
        return self.getOrDefault("weightCol") or None if self.isSet("weightCol") else None


class KMeansSetters(FleetSetters):
    """Setters of the estimator."""

    setK = setter(KMeansParams.k)
    setInitMode = setter(KMeansParams.initMode)
    setInitSteps = setter(KMeansParams.initSteps)
    setTol = setter(HasTol.tol)
    setDistanceMeasure = setter(KMeansParams.distanceMeasure)


def options_of(params: Any, name: str) -> KMeansOptions:
    """Return the options that params ask for, as far as the rows are not needed."""
    return KMeansOptions(
        clusters=params.getK(),
        start=cast(StartName, params.getInitMode()),
        rounds=params.getInitSteps(),
        iterations=params.getMaxIter(),
        tolerance=params.getTol(),
        distance=cast(DistanceName, params.getDistanceMeasure()),
        seed=params._seed,
        name=name,
    )
