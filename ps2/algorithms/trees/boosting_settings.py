"""The parameters by which boosted trees sample rows and features, and use categories."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ps2.algorithms.frame.settings import Flexible, Setting, Settings, getter, param, setter

if TYPE_CHECKING:
    from ps2.algorithms.frame.shared_settings import Floats

SAMPLE_STRATEGIES = ("bagging", "goss")
BOOSTING_TYPES = ("gbdt", "dart")
# Params that have an effect only with one value of another param.
ONLY_WITH = {
    **dict.fromkeys(("topRate", "otherRate"), ("dataSampleStrategy", "goss")),
    **dict.fromkeys(("dropRate", "skipDrop", "maxDrop", "uniformDrop"), ("boostingType", "dart")),
}
MAX_COMPLEXITY = 16


def _are_weights(values: Sequence[float]) -> bool:
    return all(0 <= value < math.inf for value in values) and any(values)


class SamplingSettings(Settings):
    """The parameters of samples: rows by gradients, features by tree and level, and dropped trees."""

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

    boostingType: Setting[str] = param(
        "gbdt",
        "the kind of boosting: gbdt, or dart, with which a round's gradients lack the trees of some earlier rounds",
        one_of=BOOSTING_TYPES,
    )
    dropRate: Setting[float] = param(
        0.1, "with dart: the fraction of the earlier rounds that a round drops, in [0, 1]", at_least=0, at_most=1
    )
    skipDrop: Setting[float] = param(
        0.5, "with dart: the probability that a round drops nothing, in [0, 1]", at_least=0, at_most=1
    )
    maxDrop: Setting[int] = param(
        50, "with dart: the maximum number of rounds that a round drops; 0: no limit", at_least=0
    )
    uniformDrop: Setting[bool] = param(
        False, "with dart: whether all rounds are equally likely to be dropped, instead of by the weight of their trees"
    )

    getDataSampleStrategy, setDataSampleStrategy = getter(dataSampleStrategy), setter(dataSampleStrategy)
    getTopRate, setTopRate = getter(topRate), setter(topRate)
    getOtherRate, setOtherRate = getter(otherRate), setter(otherRate)
    getColsampleBytree, setColsampleBytree = getter(colsampleBytree), setter(colsampleBytree)
    getColsampleBylevel, setColsampleBylevel = getter(colsampleBylevel), setter(colsampleBylevel)
    getFeatureWeights, setFeatureWeights = getter(featureWeights), setter(featureWeights)
    getBoostingType, setBoostingType = getter(boostingType), setter(boostingType)
    getDropRate, setDropRate = getter(dropRate), setter(dropRate)
    getSkipDrop, setSkipDrop = getter(skipDrop), setter(skipDrop)
    getMaxDrop, setMaxDrop = getter(maxDrop), setter(maxDrop)
    getUniformDrop, setUniformDrop = getter(uniformDrop), setter(uniformDrop)


class CategorySettings(Settings):
    """The parameters of categorical features."""

    catSmooth: Setting[float] = param(
        10.0,
        "categories are sorted by gradient / (hessian + this), so that rare ones are in the middle; one of fewer rows "
        "than this goes right",
        at_least=0,
    )
    catL2: Setting[float] = param(
        10.0, "the L2 penalty on both sides of a split by categories, in addition to regLambda", at_least=0
    )
    maxCatThreshold: Setting[int] = param(
        32, "the maximum number of categories on the smaller side of a split", at_least=1
    )
    maxCatToOnehot: Setting[int] = param(
        4,
        "a feature of at most this many categories is split into one category and the others, without catSmooth, catL2 "
        "and minDataPerGroup",
        at_least=0,
    )
    minDataPerGroup: Setting[int | None] = param(
        None,
        "the minimum number of rows on each side of a split by categories; not set: 100, or a twentieth of all rows if "
        "that is less; two classes with defaults='pyspark', if no feature has more than maxBins categories: 1",
        at_least=1,
        type=int,
    )
    maxCtrComplexity: Setting[int | None] = param(
        None,
        "replace features of many categories by target statistics (CatBoost's CTRs) of combinations of at most this "
        "many such features; 0: no statistics; not set: 0, or with defaults='catboost' up to 3, as long as there are "
        "at most 200 combinations",
        at_least=0,
        at_most=MAX_COMPLEXITY,
        type=int,
    )
    minCtrCategories: Setting[int] = param(
        64, "the minimum number of categories of a feature that target statistics replace", at_least=2
    )

    getCatSmooth, setCatSmooth = getter(catSmooth), setter(catSmooth)
    getCatL2, setCatL2 = getter(catL2), setter(catL2)
    getMaxCatThreshold, setMaxCatThreshold = getter(maxCatThreshold), setter(maxCatThreshold)
    getMaxCatToOnehot, setMaxCatToOnehot = getter(maxCatToOnehot), setter(maxCatToOnehot)
    getMinDataPerGroup, setMinDataPerGroup = getter(minDataPerGroup), setter(minDataPerGroup)
    getMaxCtrComplexity, setMaxCtrComplexity = getter(maxCtrComplexity), setter(maxCtrComplexity)
    getMinCtrCategories, setMinCtrCategories = getter(minCtrCategories), setter(minCtrCategories)
