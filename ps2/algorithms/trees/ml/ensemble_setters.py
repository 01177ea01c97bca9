"""Setters that boosted trees and random forests share."""

from __future__ import annotations

from typing import TypeVar

from pyspark.ml.tree import _TreeEnsembleParams

from ps2.algorithms.estimators.params import FleetSetters, setter

P = TypeVar("P", bound="EnsembleSetters")


class EnsembleSetters(FleetSetters, _TreeEnsembleParams):
    """Setters of pyspark.ml's params of several trees."""

    setMaxDepth = setter(_TreeEnsembleParams.maxDepth)
    setMaxBins = setter(_TreeEnsembleParams.maxBins)
    setMinInstancesPerNode = setter(_TreeEnsembleParams.minInstancesPerNode)
    setMinInfoGain = setter(_TreeEnsembleParams.minInfoGain)
    setMinWeightFractionPerNode = setter(_TreeEnsembleParams.minWeightFractionPerNode)
    setSubsamplingRate = setter(_TreeEnsembleParams.subsamplingRate)
    setFeatureSubsetStrategy = setter(_TreeEnsembleParams.featureSubsetStrategy)

    def setCacheNodeIds(self: P, value: bool) -> P:
        """Set what has no effect here: workers know where their rows are."""
        return self._set(cacheNodeIds=value)

    def setCheckpointInterval(self: P, value: int) -> P:
        """Set what has no effect here: the fleet makes checkpoints, if it is told to."""
        return self._set(checkpointInterval=value)
