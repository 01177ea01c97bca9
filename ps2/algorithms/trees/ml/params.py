"""The params of boosted trees that pyspark.ml does not have, and how all of them become a ``BoostingOptions``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, get_args

from pyspark.ml.param import Param, TypeConverters
from pyspark.ml.tree import _GBTParams

from ps2.algorithms.estimators.params import (
    COUNT,
    NOT_NEGATIVE,
    RANGES,
    Check,
    FleetParams,
    any_case,
    getter,
    one_of,
    own_param,
    setter,
)
from ps2.algorithms.estimators.via import VIA, HasVia
from ps2.algorithms.training.table import Facts
from ps2.algorithms.trees.cut_points import unit_of
from ps2.algorithms.trees.gradients import Objective
from ps2.algorithms.trees.metrics import Metric
from ps2.algorithms.trees.ml.ensemble_setters import EnsembleSetters
from ps2.algorithms.trees.problem import MAX_DEPTH, MIN_GAIN, BoostingOptions, GrowthName, weight_bits
from ps2.errors import ConfigError

P = TypeVar("P", bound="TreeParams")

MAX_BINS = 4000
SHARE_ABOVE_0: Check = (lambda value: 0 < value <= 1, "a number in (0, 1]")
GROWTHS = get_args(GrowthName)
# Leaves of a tree where nothing is said of them; of growth by leaf as many as LightGBM's.
MAX_LEAVES: Mapping[GrowthName, int] = {"level": 0, "leaf": 31}
STRATEGIES = ("auto", "all", "onethird", "sqrt", "log2")
FLAVOURS = ("pyspark", "xgboost")
# Of params that are not set, by ``defaults``; decision 35 says why.
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "pyspark": {"maxIter": 20, "stepSize": 0.1, "maxDepth": 5, "maxBins": 32, "regLambda": 0.0, "minChildWeight": 0.0},
    "xgboost": {
        "maxIter": 100,
        "stepSize": 0.3,
        "maxDepth": 6,
        "maxBins": 256,
        "regLambda": 1.0,
        "minChildWeight": 1.0,
    },
}
# What a leaf of classes says at most, before stepSize: as much as leaves of pyspark.ml's trees may, whose margins are
# half as large. Newton's step of rows that are alike is the inverse of a probability, which may be tiny.
MAX_OF_CLASSES = 8.0
# As many features as any strategy can leave some of.
MANY = 2**31
# Gains are rounding where residuals are so small a part of the labels.
ROUNDED_PART = 1e-14


def are_weights(values: Sequence[float]) -> bool:
    """Return True if all are finite and not negative, and some are above 0."""
    return all(0 <= value < math.inf for value in values) and any(values)


def _to_groups(value: Any) -> list[list[int]]:
    """Convert to lists of whole numbers."""
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"expected a list of lists of feature numbers, got {value!r}")
    return [TypeConverters.toListInt(group) for group in value]


class TreeParams(HasVia, FleetParams, _GBTParams):
    """How trees are grown: what users of xgboost expect, beside pyspark.ml's params."""

    _RANGES: Mapping[str, Check] = {
        **RANGES,
        **VIA,
        "maxDepth": (lambda value: 0 <= value <= MAX_DEPTH, f"a number in [0, {MAX_DEPTH}]"),
        "maxBins": (lambda value: 2 <= value <= MAX_BINS, f"a number in [2, {MAX_BINS}]"),
        "growth": (lambda name: name in GROWTHS, f"one of {', '.join(GROWTHS)}"),
        "maxLeaves": (lambda value: value == 0 or value >= 2, "0 or a number from 2 on"),
        "minInstancesPerNode": COUNT,
        "minInfoGain": NOT_NEGATIVE,
        "minWeightFractionPerNode": (lambda value: 0 <= value < 0.5, "a number in [0, 0.5)"),
        "defaults": one_of(FLAVOURS),
        "stepSize": SHARE_ABOVE_0,
        "subsamplingRate": SHARE_ABOVE_0,
        "validationTol": NOT_NEGATIVE,
        "regLambda": NOT_NEGATIVE,
        "regAlpha": NOT_NEGATIVE,
        "minSplitLoss": NOT_NEGATIVE,
        "minChildWeight": NOT_NEGATIVE,
        "baseScore": (math.isfinite, "a finite number"),
        "featureWeights": (are_weights, "finite numbers that are not negative, of which some are above 0"),
        "earlyStoppingRounds": COUNT,
        "numTrees": COUNT,
        "monotoneConstraints": (lambda signs: set(signs) <= {-1, 0, 1}, "-1, 0 or 1 for each feature"),
    }

    growth: Param[GrowthName] = own_param(
        "growth",
        "order of splits: level (the oldest node first) or leaf (the largest gain first)",
        any_case(GROWTHS),
    )
    maxLeaves: Param[int] = own_param(
        "maxLeaves",
        "maximum number of leaves per tree (0: no limit); not set: 31 for growth by leaf, no limit by level",
        TypeConverters.toInt,
    )
    regLambda: Param[float] = own_param("regLambda", "L2 penalty on leaves (>= 0)", TypeConverters.toFloat)
    regAlpha: Param[float] = own_param("regAlpha", "L1 penalty on leaves (>= 0)", TypeConverters.toFloat)
    minSplitLoss: Param[float] = own_param(
        "minSplitLoss",
        "minimum gain of a split, which is twice the decrease of the objective (>= 0)",
        TypeConverters.toFloat,
    )
    minChildWeight: Param[float] = own_param(
        "minChildWeight", "minimum sum of hessians on each side of a split (>= 0)", TypeConverters.toFloat
    )
    baseScore: Param[float] = own_param(
        "baseScore",
        "prediction before the first tree (for two classes: the probability of class 1); not set: the labels' mean",
        TypeConverters.toFloat,
    )
    monotoneConstraints: Param[list[int]] = own_param(
        "monotoneConstraints",
        "one entry per feature: 1 (predictions never decrease with it), -1 (never increase) or 0 (no constraint)",
        TypeConverters.toListInt,
    )

    interactionConstraints: Param[list[list[int]]] = own_param(
        "interactionConstraints",
        "groups of features, as lists of their numbers: only features of one group may be split by below each other",
        _to_groups,
    )
    featureWeights: Param[list[float]] = own_param(
        "featureWeights",
        "one entry per feature: how likely it is drawn, where featureSubsetStrategy draws features",
        TypeConverters.toListFloat,
    )
    baseMarginCol: Param[str] = own_param(
        "baseMarginCol",
        "column of margins that rows begin with, in training and in predictions; not set: all begin alike",
        TypeConverters.toString,
    )
    contribCol: Param[str] = own_param(
        "contribCol",
        "column for what each feature, and last the mean margin, contributes to a row's margin (SHAP values); of more "
        "than two classes, one class after the other; not set: none",
        TypeConverters.toString,
    )
    earlyStoppingRounds: Param[int] = own_param(
        "earlyStoppingRounds",
        "with validationIndicatorCol: rounds one after the other that do not improve evalMetric before the training "
        "ends; the model keeps the rounds up to the best; not set: 1, as in pyspark.ml",
        TypeConverters.toInt,
    )
    evalMetric: Param[str] = own_param(
        "evalMetric",
        "metric of the rows held out, as in xgboost: logloss, error or auc of classes, rmse or mae of numbers, ndcg or "
        "map of rankings (of k rows: ndcg@k); not "
        "set: the loss that is trained",
        TypeConverters.toString,
    )
    numTrees: Param[int] = own_param(
        "numTrees",
        "of a model: trees (of each class) that predictions use, from the first one on; not set: all",
        TypeConverters.toInt,
    )
    absentAsMissing: Param[bool] = own_param(
        "absentAsMissing",
        "whether absent entries of sparse vectors are missing, as in xgboost, instead of 0",
        TypeConverters.toBoolean,
    )
    defaults: Param[str] = own_param(
        "defaults",
        f"whose values params have that are not set ({', '.join(DEFAULTS['xgboost'])}), and whose first tree, least "
        "gain and largest leaves there are: pyspark's or xgboost's",
        any_case(FLAVOURS),
    )
    _DEFAULTS_BY = ("defaults", DEFAULTS)

    def _set_defaults(self) -> None:
        super()._set_defaults()
        self._setDefault(**DEFAULTS["pyspark"], regAlpha=0.0, minSplitLoss=0.0, seed=0)
        self._setDefault(growth="level", absentAsMissing=False, defaults="pyspark")

    getGrowth = getter(growth)
    getMaxLeaves = getter(maxLeaves)
    getRegLambda = getter(regLambda)
    getRegAlpha = getter(regAlpha)
    getMinSplitLoss = getter(minSplitLoss)
    getMinChildWeight = getter(minChildWeight)
    getBaseScore = getter(baseScore)
    getMonotoneConstraints = getter(monotoneConstraints)
    getInteractionConstraints = getter(interactionConstraints)
    getFeatureWeights = getter(featureWeights)
    getBaseMarginCol = getter(baseMarginCol)
    getContribCol = getter(contribCol)
    getEarlyStoppingRounds = getter(earlyStoppingRounds)
    getEvalMetric = getter(evalMetric)
    getAbsentAsMissing = getter(absentAsMissing)
    getDefaults = getter(defaults)


class TreeSetters(TreeParams, EnsembleSetters):
    """Setters of how trees are grown."""

    setStepSize = setter(_GBTParams.stepSize)
    setValidationTol = setter(_GBTParams.validationTol)
    setGrowth = setter(TreeParams.growth)
    setMaxLeaves = setter(TreeParams.maxLeaves)
    setRegLambda = setter(TreeParams.regLambda)
    setRegAlpha = setter(TreeParams.regAlpha)
    setMinSplitLoss = setter(TreeParams.minSplitLoss)
    setMinChildWeight = setter(TreeParams.minChildWeight)
    setBaseScore = setter(TreeParams.baseScore)
    setMonotoneConstraints = setter(TreeParams.monotoneConstraints)
    setInteractionConstraints = setter(TreeParams.interactionConstraints)
    setFeatureWeights = setter(TreeParams.featureWeights)
    setBaseMarginCol = setter(TreeParams.baseMarginCol)
    setContribCol = setter(TreeParams.contribCol)
    setEarlyStoppingRounds = setter(TreeParams.earlyStoppingRounds)
    setEvalMetric = setter(TreeParams.evalMetric)
    setAbsentAsMissing = setter(TreeParams.absentAsMissing)
    setDefaults = setter(TreeParams.defaults)

    def setMaxMemoryInMB(self: P, value: int) -> P:
        """Set what has no effect here: histograms lie on the servers."""
        return self._set(maxMemoryInMB=value)

    def setImpurity(self: P, value: str) -> P:
        """Set what has no effect here: splits are found by gradients and hessians."""
        return self._set(impurity=value)


def check_tree_params(params: TreeParams) -> None:
    """Raise ConfigError for params that trees cannot be grown by."""
    features_of(params.getFeatureSubsetStrategy(), 1)
    for name in ("earlyStoppingRounds", "evalMetric"):
        if params.isSet(name) and not params.isSet("validationIndicatorCol"):
            raise ConfigError(f"{name}: expected with validationIndicatorCol, which marks the rows to measure")
    if params.isSet("evalMetric"):
        Metric.parsed(params.getEvalMetric())
    if params.isSet("featureWeights") and not features_of(params.getFeatureSubsetStrategy(), MANY):
        raise ConfigError("featureWeights: expected with a featureSubsetStrategy that draws features, got all")
    if params.isSet("baseScore") and params.isSet("baseMarginCol"):
        raise ConfigError("baseScore: expected without baseMarginCol, which says where each row begins")
    if params.isSet("numTrees"):
        raise ConfigError("numTrees: expected for a model, whose predictions use so many trees; maxIter is for fit")


def options_of(params: TreeParams) -> BoostingOptions:
    """Make the options that params ask for; how many features nodes draw from is known later."""
    patience = params.getEarlyStoppingRounds() if params.isSet("earlyStoppingRounds") else 0
    return BoostingOptions(
        rounds=params.getMaxIter(),
        depth=params.getMaxDepth(),
        growth=params.getGrowth(),
        leaves=params.getMaxLeaves() if params.isSet("maxLeaves") else MAX_LEAVES[params.getGrowth()],
        bins=params.getMaxBins(),
        rate=params.getStepSize(),
        reg_lambda=params.getRegLambda(),
        reg_alpha=params.getRegAlpha(),
        min_gain=params.getMinSplitLoss(),
        min_info_gain=params.getMinInfoGain(),
        min_child_weight=params.getMinChildWeight(),
        min_rows=params.getMinInstancesPerNode(),
        fraction=params.getSubsamplingRate(),
        groups=tuple(map(tuple, params.getInteractionConstraints())) if params.isSet("interactionConstraints") else (),
        feature_weights=tuple(params.getFeatureWeights()) if params.isSet("featureWeights") else (),
        monotone=tuple(params.getMonotoneConstraints()) if params.isSet("monotoneConstraints") else (),
        seed=params._seed,
        validate=params.isSet("validationIndicatorCol"),
        validation_tol=0.0 if patience and not params.isSet("validationTol") else params.getValidationTol(),
        patience=patience,
        metric=params.getEvalMetric() if params.isSet("evalMetric") else "",
    )


def resolved(
    options: BoostingOptions, params: TreeParams, objective: Objective, facts: Facts, weighted: bool
) -> BoostingOptions:
    """Return options with what the rows decide.

    Args:
        facts: of the rows' labels and weights.
        weighted: whether rows have weights.
    """
    least_gain, most_weight, first_rate = MIN_GAIN, objective.most_weight, None
    if params.getDefaults() == "pyspark":
        # Relative to labels and weights, so that trees do not depend on their units.
        size = 1.0 if objective.has_bounded_gradients else max(map(abs, facts.label_range))
        least_gain = _short(facts.weight / facts.rows * (ROUNDED_PART * size) ** 2)
        is_bounded = objective.classes or objective.loss == "lambdarank"
        most_weight = min(most_weight, MAX_OF_CLASSES if is_bounded else math.inf)
        first_rate = 1.0
    return replace(
        options,
        first_rate=first_rate,
        most_weight=most_weight,
        least_gain=least_gain,
        min_weight=_short(params.getMinWeightFractionPerNode() * facts.weight),
        weighed_by="rows" if not weighted else "hessians" if objective.hessians_are_weights else "weights",
        weight_unit=unit_of(facts.weight / facts.rows, weight_bits(facts.rows)) if weighted else 1.0,
    )


def _short(number: float) -> float:
    """Return a number without the last digits, which depend on how rows lie."""
    return float(f"{number:.6g}")


def features_of(strategy: str, dim: int) -> int:
    """Return how many features a node may be split by; 0: all.

    Raises:
        ConfigError: there is no such strategy.
    """
    name = strategy.lower()
    if name in ("auto", "all"):
        return 0
    try:
        number: Any = {
            "onethird": math.ceil(dim / 3),
            "sqrt": math.ceil(math.sqrt(dim)),
            "log2": max(1, math.ceil(math.log2(dim))),
        }.get(name) or float(name)
    except ValueError:
        number = -1.0
    if name not in STRATEGIES and "." in name and 0 < number <= 1:
        number = math.ceil(number * dim)
    if not number >= 1 or number != math.floor(number):
        raise ConfigError(
            f"featureSubsetStrategy: expected one of {', '.join(STRATEGIES)}, a share such as '0.5', or a number of "
            f"features, got {strategy!r}"
        )
    return 0 if number >= dim else int(number)
