"""The parameters of boosted trees and random forests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from ps2.algorithms.frame.settings import Check, Flexible, Setting, getter, param, setter, with_default
from ps2.algorithms.frame.shared_settings import (
    FeatureSettings,
    LabelSettings,
    ProbabilitySettings,
    SpillSettings,
    ViaSettings,
    WeightSettings,
)
from ps2.algorithms.trees.boosting_settings import CategorySettings, SamplingSettings

GrowthName = Literal["level", "leaf"]
GROWTHS: tuple[GrowthName, ...] = ("level", "leaf")
LossOfNumbers = Literal["squared", "absolute", "huber", "poisson", "quantile"]
LOSSES: tuple[LossOfNumbers, ...] = ("squared", "absolute", "huber", "poisson", "quantile")
ImpurityName = Literal["gini", "entropy", "variance"]
MAX_DEPTH = 30
MAX_BINS = 4000
MAX_TREES = 100_000
# The value of maxLeaves if it is not set, by growth; that of "leaf" is LightGBM's; 0: no limit.
MAX_LEAVES: Mapping[str, int] = {"level": 0, "leaf": 31}
STRATEGIES = ("auto", "all", "onethird", "sqrt", "log2")
# The values of ``defaults``, and the values that params have by it if they are not set (decisions 35 and 100).
LIBRARIES = ("pyspark", "xgboost", "lightgbm", "catboost")
_VALUES_BY_LIBRARY: Mapping[str, tuple[Any, ...]] = {
    "maxIter": (20, 100, 100, 1000),
    # CatBoost's is that of losses for which it has no formula: see ``automatic_rate``.
    "stepSize": (0.1, 0.3, 0.1, 0.03),
    # CatBoost's 6 is for trees with one split for each level, which fit less closely (decision 100).
    "maxDepth": (5, 6, MAX_DEPTH, 4),
    "maxBins": (32, 256, 255, 255),
    "growth": ("level", "level", "leaf", "level"),
    "regLambda": (0.0, 1.0, 0.0, 3.0),
    "minChildWeight": (0.0, 1.0, 1e-3, 0.0),
    "minInstancesPerNode": (1, 1, 20, 1),
    "subsamplingRate": (1.0, 1.0, 1.0, 0.8),
    # In place of CatBoost's noise in the gains of splits, and of its trees' one split for each level (decision 104).
    "featureSubsetStrategy": ("all", "all", "all", "0.25"),
    "lambdarankNumPairPerSample": (32, 32, 30, 32),
}
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    library: {name: values[number] for name, values in _VALUES_BY_LIBRARY.items()}
    for number, library in enumerate(LIBRARIES)
}


def num_features_of(strategy: str, dim: int) -> int:
    """Return the number of features by which a node may be split; 0: all. ValueError: an unknown strategy."""
    name = strategy.lower()
    if name in ("auto", "all"):
        return 0
    number_by_name = {"onethird": dim / 3, "sqrt": math.sqrt(dim), "log2": max(1.0, math.log2(dim))}
    number = float(math.ceil(number_by_name[name]) if name in number_by_name else name)
    if name not in number_by_name and "." in name and 0 < number <= 1:
        number = math.ceil(number * dim)
    if not number >= 1 or number != math.floor(number):
        raise ValueError(strategy)
    return 0 if number >= dim else int(number)


def _is_strategy(strategy: str) -> bool:
    try:
        num_features_of(strategy, 1)
    except (OverflowError, ValueError):
        return False
    return True


def _to_groups(value: Any) -> list[list[int]]:
    from pyspark.ml.param import TypeConverters

    if not isinstance(value, (list, tuple)):
        raise TypeError(f"expected a list of lists of feature numbers, got {value!r}")
    return [TypeConverters.toListInt(group) for group in value]


STRATEGY: Check = (
    _is_strategy,
    f"one of {', '.join(STRATEGIES)}, a fraction such as '0.5', or a number of features",
)


class TreeSettings(FeatureSettings, LabelSettings, WeightSettings):
    """The parameters of one tree. ``maxMemoryInMB``, ``cacheNodeIds`` and ``checkpointInterval`` have no effect."""

    maxDepth: Setting[int] = param(
        5, "the maximum depth of a tree, from 0 to 30", at_least=0, at_most=MAX_DEPTH, option="depth"
    )
    maxBins: Setting[int] = param(
        32, "the maximum number of bins of a feature, from 2 to 4000", at_least=2, at_most=MAX_BINS, option="bins"
    )
    minInstancesPerNode: Setting[int] = param(
        1,
        "the minimum number of rows (random forests: of sampled rows, with repetitions) on each side of a split",
        at_least=1,
        option="min-rows",
    )
    minWeightFractionPerNode: Setting[float] = param(
        0.0,
        "the minimum fraction of the weight of all rows on each side of a split, in [0, 0.5)",
        at_least=0,
        below=0.5,
        option=None,
    )
    minInfoGain: Setting[float] = param(
        0.0, "the minimum gain of a split, divided by the weight of its node's rows", at_least=0, option=None
    )
    seed: Setting[int] = param(0, "the seed of sampling and rounding", bits=64)
    leafCol: Setting[str] = param(
        "", "the column for the leaf that a row reaches in each tree; empty: no column", option=None, in_model=True
    )
    maxMemoryInMB: Setting[int] = param(256, "no effect: the servers or one worker have the histograms", option=None)
    cacheNodeIds: Setting[bool] = param(False, "no effect: workers always know the nodes of their rows", option=None)
    checkpointInterval: Setting[int] = param(
        10, "no effect: PS2Conf says when the fleet makes checkpoints", option=None
    )

    getMaxDepth, setMaxDepth = getter(maxDepth), setter(maxDepth)
    getMaxBins, setMaxBins = getter(maxBins), setter(maxBins)
    getMinInstancesPerNode, setMinInstancesPerNode = getter(minInstancesPerNode), setter(minInstancesPerNode)
    getMinWeightFractionPerNode = getter(minWeightFractionPerNode)
    setMinWeightFractionPerNode = setter(minWeightFractionPerNode)
    getMinInfoGain, setMinInfoGain = getter(minInfoGain), setter(minInfoGain)
    getSeed, setSeed = getter(seed), setter(seed)
    getLeafCol, setLeafCol = getter(leafCol), setter(leafCol)
    getMaxMemoryInMB, setMaxMemoryInMB = getter(maxMemoryInMB), setter(maxMemoryInMB)
    getCacheNodeIds, setCacheNodeIds = getter(cacheNodeIds), setter(cacheNodeIds)
    getCheckpointInterval, setCheckpointInterval = getter(checkpointInterval), setter(checkpointInterval)


class NumberTreeSettings(TreeSettings):
    """The parameters of a regression tree. ``impurity`` and ``varianceCol`` have no effect."""

    impurity: Setting[str] = param("variance", "no effect: a tree is trained already", option=None)
    varianceCol: Setting[str | None] = param(None, "no effect", type=str, option=None)

    getImpurity = getter(impurity)


class ClassTreeSettings(TreeSettings, ProbabilitySettings):
    """The parameters of a classification tree. ``impurity`` and ``pruneTree`` have no effect."""

    impurity: Setting[str] = param("gini", "no effect: a tree is trained already", option=None)
    pruneTree: Setting[bool] = param(True, "no effect", option=None)

    getImpurity = getter(impurity)
    getPruneTree = getter(pruneTree)


class EnsembleSettings(TreeSettings, ViaSettings, SpillSettings):
    """The parameters of boosted trees and random forests."""

    supportedFeatureSubsetStrategies: ClassVar[list[str]] = list(STRATEGIES)

    subsamplingRate: Setting[float] = param(
        1.0,
        "the fraction of the rows that each tree samples, in (0, 1]; a random forest samples with replacement, unless "
        "bootstrap is False",
        above=0,
        at_most=1,
        option="subsample",
    )
    featureSubsetStrategy: Setting[str] = param(
        "all",
        "the number of features by which a node may be split: all, onethird, sqrt, log2, a fraction such as 0.3, a "
        "number of features, or auto (all; random forests of several trees: sqrt for classification, onethird for "
        "regression)",
        check=STRATEGY,
        option="subset",
    )
    absentAsMissing: Setting[bool] = param(
        False, "whether absent entries of sparse vectors are missing, as in xgboost, instead of 0"
    )

    getSubsamplingRate, setSubsamplingRate = getter(subsamplingRate), setter(subsamplingRate)
    getFeatureSubsetStrategy, setFeatureSubsetStrategy = getter(featureSubsetStrategy), setter(featureSubsetStrategy)
    getAbsentAsMissing, setAbsentAsMissing = getter(absentAsMissing), setter(absentAsMissing)


class BoostingSettings(CategorySettings, SamplingSettings, EnsembleSettings):
    """The parameters of boosted trees. ``impurity`` has no effect: gradients and hessians choose the splits."""

    _DEFAULTS_BY: ClassVar[tuple[str, Mapping[str, Mapping[str, Any]]] | None] = ("defaults", DEFAULTS)
    supportedImpurities: ClassVar[list[str]] = ["variance"]

    maxIter: Setting[int] = param(
        20,
        "the number of trees; with more than two classes, the number of rounds, each of one tree per class",
        at_least=0,
        option="trees",
    )
    growth: Setting[str] = param(
        "level",
        "the order of splits: level (the oldest node first) or leaf (the largest gain first)",
        one_of=GROWTHS,
    )
    maxLeaves: Setting[int | None] = param(
        None,
        "the maximum number of leaves of a tree; 0: no limit; not set: 31 for growth by leaf, no limit by level",
        check=(lambda value: value == 0 or value >= 2, "0 or a number from 2 on"),
        type=int,
    )
    stepSize: Setting[float] = param(
        0.1, "the learning rate, by which leaf values are multiplied, in (0, 1]", above=0, at_most=1, option="lr"
    )
    regLambda: Setting[float] = param(0.0, "the L2 penalty on leaves (>= 0)", at_least=0, option="lambda")
    regAlpha: Setting[float] = param(0.0, "the L1 penalty on leaves (>= 0)", at_least=0, option="alpha")
    minSplitLoss: Setting[float] = param(
        0.0, "the minimum gain of a split, which is twice the decrease of the objective (>= 0)", at_least=0
    )
    minChildWeight: Setting[float] = param(
        0.0, "the minimum sum of hessians on each side of a split (>= 0)", at_least=0
    )
    baseScore: Setting[float | None] = param(
        None,
        "the prediction before the first tree (two classes: the probability of class 1); not set: the mean label (two "
        "classes with defaults='pyspark': 0.5)",
        type=float,
        option=None,
    )
    monotoneConstraints: Flexible[list[int] | None, Sequence[int]] = param(
        None,
        "one entry per feature: 1 (predictions never decrease with it), -1 (they never increase) or 0 (no constraint)",
        check=(lambda signs: set(signs) <= {-1, 0, 1}, "-1, 0 or 1 for each feature"),
        type=list[int],
        option=None,
    )
    interactionConstraints: Flexible[list[list[int]] | None, Sequence[Sequence[int]]] = param(
        None,
        "groups of features, as lists of feature numbers: nodes below a split by a feature are split only by that "
        "feature, or by features of its groups",
        type=_to_groups,
        option=None,
    )
    validationIndicatorCol: Setting[str | None] = param(
        None,
        "the column that marks the rows to hold out for validation, by true; or the column of strings or integers with "
        "the names of their validation sets (null, an empty string and 0: rows to train on). Of several sets, the last "
        "one in sorted order decides when to stop, as in xgboost",
        type=str,
        option=None,
    )
    validationTol: Setting[float] = param(
        0.01,
        "with validationIndicatorCol: the minimum relative improvement of the held-out rows' metric by a round",
        at_least=0,
        option="tolerance",
    )
    earlyStoppingRounds: Setting[int | None] = param(
        None,
        "with validationIndicatorCol: stop after this many consecutive rounds that do not improve evalMetric; the "
        "model keeps the rounds up to the best; not set: 1, as in pyspark.ml",
        at_least=1,
        type=int,
        option="early-stopping",
    )
    evalMetric: Setting[str | None] = param(
        None,
        "with validationIndicatorCol: the metric of the held-out rows, as in xgboost: logloss, error or auc "
        "(classification), rmse or mae (regression), ndcg or map (ranking; of k rows: ndcg@k); not set: the loss",
        type=str,
        option="metric",
    )
    maximize: Setting[bool | None] = param(None, "whether a larger customMetric is better", type=bool, option=None)
    baseMarginCol: Setting[str | None] = param(
        None,
        "the column of each row's initial margin, in training and prediction; not set: all rows have the same one",
        type=str,
        option=None,
    )
    contribCol: Setting[str | None] = param(
        None,
        "the column for SHAP values: each feature's contribution to a row's margin, then the mean margin; with more "
        "than two classes, one class after the other; not set: no column",
        type=str,
        option=None,
        in_model=True,
    )
    numTrees: Setting[int | None] = param(
        None,
        "of a model: predictions use only the first trees (of each class), this many; not set: all trees",
        at_least=1,
        type=int,
        option=None,
        in_model=True,
    )
    defaults: Setting[str] = param(
        "pyspark",
        "the library, pyspark, xgboost, lightgbm or catboost, whose defaults apply to params that are not set "
        f"({', '.join(_VALUES_BY_LIBRARY)}), and whose rules apply to the first tree, the minimum gain, the largest "
        "leaf value and the hessians of two classes; catboost: without stepSize, its formula for rows and trees",
        one_of=LIBRARIES,
    )
    impurity: Setting[str] = param("variance", "no effect: gradients and hessians choose the splits", option=None)

    getMaxIter, setMaxIter = getter(maxIter), setter(maxIter)
    getGrowth, setGrowth = getter(growth), setter(growth)
    getMaxLeaves, setMaxLeaves = getter(maxLeaves), setter(maxLeaves)
    getStepSize, setStepSize = getter(stepSize), setter(stepSize)
    getRegLambda, setRegLambda = getter(regLambda), setter(regLambda)
    getRegAlpha, setRegAlpha = getter(regAlpha), setter(regAlpha)
    getMinSplitLoss, setMinSplitLoss = getter(minSplitLoss), setter(minSplitLoss)
    getMinChildWeight, setMinChildWeight = getter(minChildWeight), setter(minChildWeight)
    getBaseScore, setBaseScore = getter(baseScore), setter(baseScore)
    getMonotoneConstraints, setMonotoneConstraints = getter(monotoneConstraints), setter(monotoneConstraints)
    getInteractionConstraints = getter(interactionConstraints)
    setInteractionConstraints = setter(interactionConstraints)
    getValidationIndicatorCol = getter(validationIndicatorCol)
    setValidationIndicatorCol = setter(validationIndicatorCol)
    getValidationTol, setValidationTol = getter(validationTol), setter(validationTol)
    getEarlyStoppingRounds, setEarlyStoppingRounds = getter(earlyStoppingRounds), setter(earlyStoppingRounds)
    getEvalMetric, setEvalMetric = getter(evalMetric), setter(evalMetric)
    getMaximize, setMaximize = getter(maximize), setter(maximize)
    getBaseMarginCol, setBaseMarginCol = getter(baseMarginCol), setter(baseMarginCol)
    getContribCol, setContribCol = getter(contribCol), setter(contribCol)
    getDefaults, setDefaults = getter(defaults), setter(defaults)
    getImpurity, setImpurity = getter(impurity), setter(impurity)


class GBTClassifierSettings(BoostingSettings, ProbabilitySettings):
    """The parameters of boosted trees for classification."""

    supportedLossTypes: ClassVar[list[str]] = ["logistic"]

    lossType: Setting[str] = param("logistic", "the loss: logistic is the only one", one_of=("logistic",), option=None)

    getLossType, setLossType = getter(lossType), setter(lossType)


class GBTRegressorSettings(BoostingSettings):
    """The parameters of boosted trees for regression."""

    supportedLossTypes: ClassVar[list[str]] = list(LOSSES)

    lossType: Setting[str] = param("squared", f"the loss: one of {', '.join(LOSSES)}", one_of=LOSSES, option="loss")
    lossShape: Setting[float] = param(
        0.5, "for loss huber, the residual beyond which it is linear (> 0); for loss quantile, the quantile, in (0, 1)"
    )

    getLossType, setLossType = getter(lossType), setter(lossType)
    getLossShape, setLossShape = getter(lossShape), setter(lossShape)


class GBTRankerSettings(BoostingSettings):
    """The parameters of boosted trees for ranking; the defaults are xgboost's."""

    defaults: Setting[str] = with_default(BoostingSettings, "defaults", "xgboost")
    groupCol: Setting[str | None] = param(
        None,
        "the column of groups, integers or strings: rows are ranked within their group",
        type=str,
        option=None,
        in_model=True,
    )
    lambdarankNumPairPerSample: Setting[int] = param(
        32,
        "the number of top rows of a ranking that are paired with all rows below them (LightGBM's truncation level)",
        at_least=1,
        option="pairs",
    )

    getGroupCol, setGroupCol = getter(groupCol), setter(groupCol)
    getLambdarankNumPairPerSample = getter(lambdarankNumPairPerSample)
    setLambdarankNumPairPerSample = setter(lambdarankNumPairPerSample)


class ForestSettings(EnsembleSettings):
    """The parameters of random forests."""

    numTrees: Setting[int] = param(
        20, "the number of trees, from 1 to 100000", at_least=1, at_most=MAX_TREES, option="trees"
    )
    featureSubsetStrategy: Setting[str] = with_default(EnsembleSettings, "featureSubsetStrategy", "auto")
    bootstrap: Setting[bool] = param(True, "whether a tree samples rows with replacement, or each row at most once")
    oobScore: Setting[bool] = param(
        False,
        "whether to score the forest out of bag, each row by the trees that have not sampled it: one more Spark job, "
        "summary.oobScore",
    )

    getNumTrees, setNumTrees = getter(numTrees), setter(numTrees)
    getBootstrap, setBootstrap = getter(bootstrap), setter(bootstrap)
    getOobScore, setOobScore = getter(oobScore), setter(oobScore)


class RandomForestClassifierSettings(ForestSettings, ProbabilitySettings):
    """The parameters of random forests for classification. ``pruneTree`` of pyspark.ml has no effect."""

    supportedImpurities: ClassVar[list[str]] = ["entropy", "gini"]

    impurity: Setting[str] = param(
        "gini", "the impurity that splits reduce: gini or entropy", one_of=("gini", "entropy")
    )
    pruneTree: Setting[bool] = param(True, "no effect", option=None)

    getImpurity, setImpurity = getter(impurity), setter(impurity)
    getPruneTree = getter(pruneTree)


class RandomForestRegressorSettings(ForestSettings):
    """The parameters of random forests for regression."""

    supportedImpurities: ClassVar[list[str]] = ["variance"]

    impurity: Setting[str] = param(
        "variance", "the impurity that splits reduce: variance", one_of=("variance",), option=None
    )

    getImpurity, setImpurity = getter(impurity), setter(impurity)
