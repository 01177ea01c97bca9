"""The parameters by which boosted trees sample rows and features."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ps2.algorithms.frame.settings import Flexible, Setting, Settings, getter, param, setter

if TYPE_CHECKING:
    from ps2.algorithms.frame.shared_settings import Floats

SAMPLE_STRATEGIES = ("bagging", "goss")


def _are_weights(values: Sequence[float]) -> bool:
    return all(0 <= value < math.inf for value in values) and any(values)


class SamplingSettings(Settings):
    """The parameters of samples: rows by gradients, and features by tree and level."""

    dataSampleStrategy: Setting[str] = param(
        "bagging",
        "how trees sample rows: bagging (subsamplingRate of them) or goss (by their gradients, as in LightGBM)",
        one_of=SAMPLE_STRATEGIES,
    )
    topRate: Setting[float] = param(
        0.2, "with goss: the fraction of the rows, those of the largest gradients, that are kept", above=0, below=1
    )
    otherRate: Setting[float] = param(
        0.1, "with goss: the fraction of the rows that are sampled from the other ones", above=0, below=1
    )
    colsampleBytree: Setting[float] = param(
        1.0, "the fraction of the features that each tree samples, in (0, 1]", above=0, at_most=1
    )
    colsampleBylevel: Setting[float] = param(
        1.0, "the fraction of its tree's features that each level of a tree samples, in (0, 1]", above=0, at_most=1
    )
    featureWeights: Flexible[list[float] | None, Floats] = param(
        None,
        "one weight per feature, by which trees, levels and nodes sample features; 0: never",
        check=(_are_weights, "finite numbers that are not negative, of which some are above 0"),
        type=list[float],
        option=None,
    )

    getDataSampleStrategy, setDataSampleStrategy = getter(dataSampleStrategy), setter(dataSampleStrategy)
    getTopRate, setTopRate = getter(topRate), setter(topRate)
    getOtherRate, setOtherRate = getter(otherRate), setter(otherRate)
    getColsampleBytree, setColsampleBytree = getter(colsampleBytree), setter(colsampleBytree)
    getColsampleBylevel, setColsampleBylevel = getter(colsampleBylevel), setter(colsampleBylevel)
    getFeatureWeights, setFeatureWeights = getter(featureWeights), setter(featureWeights)
