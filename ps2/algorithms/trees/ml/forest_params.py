"""The params of random forests: pyspark.ml's, and how all of them become ``ForestOptions``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from pyspark.ml.param import TypeConverters
from pyspark.ml.tree import _RandomForestParams

from ps2.algorithms.estimators.params import (
    COUNT,
    NOT_NEGATIVE,
    RANGES,
    Check,
    FleetParams,
    getter,
    own_param,
    setter,
)
from ps2.algorithms.estimators.via import VIA, HasVia
from ps2.algorithms.trees.ml.ensemble_setters import EnsembleSetters
from ps2.algorithms.trees.ml.params import MAX_BINS, SHARE_ABOVE_0, TreeParams
from ps2.algorithms.trees.problem import MAX_DEPTH

P = TypeVar("P", bound="ForestParams")

MAX_TREES = 100_000


class ForestParams(HasVia, FleetParams, _RandomForestParams):
    """How random forests grow."""

    _RANGES: Mapping[str, Check] = {
        **RANGES,
        **VIA,
        "numTrees": (lambda value: 1 <= value <= MAX_TREES, f"a number in [1, {MAX_TREES:,}]"),
        "maxDepth": (lambda value: 0 <= value <= MAX_DEPTH, f"a number in [0, {MAX_DEPTH}]"),
        "maxBins": (lambda value: 2 <= value <= MAX_BINS, f"a number in [2, {MAX_BINS}]"),
        "minInstancesPerNode": COUNT,
        "minInfoGain": NOT_NEGATIVE,
        "minWeightFractionPerNode": (lambda value: 0 <= value < 0.5, "a number in [0, 0.5)"),
        "subsamplingRate": SHARE_ABOVE_0,
    }

    absentAsMissing = own_param(
        "absentAsMissing", TreeParams.absentAsMissing.doc, TreeParams.absentAsMissing.typeConverter
    )

    oobScore = own_param(
        "oobScore",
        "score the forest by the trees that have not drawn a row: one more job, and summary.oobScore",
        TypeConverters.toBoolean,
    )

    def _set_defaults(self) -> None:
        super()._set_defaults()
        self._setDefault(seed=0, absentAsMissing=False, oobScore=False)

    getAbsentAsMissing = getter(absentAsMissing)
    getOobScore = getter(oobScore)


class ForestSetters(ForestParams, EnsembleSetters):
    """Setters of how random forests grow."""

    setNumTrees = setter(_RandomForestParams.numTrees)
    setBootstrap = setter(_RandomForestParams.bootstrap)
    setAbsentAsMissing = setter(ForestParams.absentAsMissing)
    setOobScore = setter(ForestParams.oobScore)

    def setMaxMemoryInMB(self: P, value: int) -> P:
        """Set what has no effect here: histograms take a share of the servers' memory, or one worker's."""
        return self._set(maxMemoryInMB=value)
