"""Params of LDA: pyspark.ml's with more optimizers, and their conversion to options."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, get_args

from pyspark.ml.clustering import _LDAParams
from pyspark.ml.param import Param, TypeConverters
from pyspark.ml.param.shared import HasCheckpointInterval, HasFeaturesCol

from ps2.algorithms.estimators.params import (
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    RANGES,
    Check,
    FleetParams,
    FleetSetters,
    any_case,
    choice,
    described,
    getter,
    one_of,
    own_param,
    setter,
)
from ps2.algorithms.estimators.via import VIA, HasVia
from ps2.algorithms.topics.inference import InferenceName
from ps2.algorithms.topics.options import (
    MAX_TOPICS,
    OnlineOptions,
    OnlineSyncName,
    SamplerName,
    SamplingOptions,
    SyncName,
)
from ps2.errors import ConfigError

P = TypeVar("P", bound="LDAParams")

log = logging.getLogger(__name__)

SYNCS = tuple(dict.fromkeys((*get_args(SyncName), *get_args(OnlineSyncName))))
INFERENCES = ("auto", *get_args(InferenceName))

OptimizerName = Literal["cgs", "online", "em"]
# Defaults. Those of "online" are pyspark.ml's; those of sampling are usual among samplers.
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "cgs": {"maxIter": 100, "optimizeDocConcentration": False, "sync": "ssp"},
    "online": {"maxIter": 20, "optimizeDocConcentration": True, "sync": "gradient"},
    "em": {"maxIter": 20, "optimizeDocConcentration": False, "sync": "ssp"},
}
CGS_ALPHA, CGS_BETA = 0.1, 0.01
# Defaults of "em": pyspark.ml's 50 / k + 1 and 1.1, minus 1.
EM_ALPHA, EM_BETA = 50.0, 0.1
# Beyond about 1e305, the logarithm of gamma exceeds float64.
MAX_CONCENTRATION = 1e100


def _as_list(value: Any) -> list[float]:
    """Return one number, or numbers, as a list of floats."""
    return [float(value)] if isinstance(value, (int, float)) else TypeConverters.toListFloat(value)


def _as_budget(value: Any) -> Any:
    """Return seconds, or "auto" in any case."""
    if isinstance(value, str) and value.lower() == "auto":
        return "auto"
    return TypeConverters.toFloat(value)


class LDAParams(HasVia, FleetParams, _LDAParams):
    """Params of the training."""

    _RANGES: Mapping[str, Check] = {
        **RANGES,
        **VIA,
        "maxIter": COUNT,
        "k": (lambda value: 1 <= value <= MAX_TOPICS, f"a number in [1, {MAX_TOPICS}]"),
        "optimizer": one_of(get_args(OptimizerName)),
        "docConcentration": (
            lambda values: len(values) > 0 and all(0 < value <= MAX_CONCENTRATION for value in values),
            f"finite positive numbers, one or one a topic, {MAX_CONCENTRATION:g} at most",
        ),
        "topicConcentration": (
            lambda value: 0 < value <= MAX_CONCENTRATION,
            f"a finite positive number, {MAX_CONCENTRATION:g} at most",
        ),
        "subsamplingRate": (lambda value: 0 < value <= 1, "a number in (0, 1]"),
        "learningOffset": POSITIVE,
        "learningDecay": POSITIVE,
        "sync": one_of(SYNCS),
        "localBatches": COUNT,
        "staleness": NOT_NEGATIVE,
        "budgetS": (lambda value: value == "auto" or 0 < value < math.inf, 'a finite positive number, or "auto"'),
        "sampler": one_of(get_args(SamplerName)),
        "inference": one_of(INFERENCES),
        "checkpointInterval": (lambda value: value == -1 or value >= 1, "-1 or a number from 1 on"),
    }
    _DEFAULTS_BY = ("optimizer", DEFAULTS)

    k: Param[int] = described(_LDAParams.k, "the number of topics (>= 1)")
    optimizer: Param[str] = choice(
        _LDAParams.optimizer,
        get_args(OptimizerName),
        "how to train: cgs, collapsed Gibbs sampling, or online, variational Bayes; em of pyspark.ml is trained by cgs",
    )
    docConcentration: Param[list[float]] = own_param(
        "docConcentration",
        "alpha, the Dirichlet prior of a document's topics: one number, or one per topic; not set: "
        f"{CGS_ALPHA} with cgs, 1 / k with online",
        _as_list,
    )
    topicConcentration: Param[float] = described(
        _LDAParams.topicConcentration,
        f"beta, Dirichlet's parameter of words in topics; not set: {CGS_BETA} with cgs, 1 / k with online",
    )
    checkpointInterval: Param[int] = described(
        HasCheckpointInterval.checkpointInterval,
        "with cgs, iterations between two times that workers save their tokens' topics; -1: they never do",
    )
    sync: Param[str] = own_param(
        "sync",
        "how workers share the counts: ssp, rotation of blocks of words or average (cgs); gradient or average (online)",
        any_case(SYNCS),
    )
    localBatches: Param[int] = own_param(
        "localBatches",
        "batches of a worker's documents between two averages (online with sync average)",
        TypeConverters.toInt,
    )
    staleness: Param[int] = own_param(
        "staleness", "how many iterations a worker may be ahead of the slowest one (sync ssp)", TypeConverters.toInt
    )
    budgetS: Param[float | Literal["auto"]] = own_param(
        "budgetS",
        "seconds of one turn (sync rotation); auto: the run decides; not set: a turn ends when the block is done",
        _as_budget,
    )
    sampler: Param[SamplerName] = own_param(
        "sampler",
        f"with cgs, how the exact draw is made: {', '.join(get_args(SamplerName))}",
        any_case(get_args(SamplerName)),
    )
    inference: Param[str] = own_param(
        "inference",
        "how topics of new documents are inferred: sampled, variational (as in pyspark.ml), or auto (by the optimizer)",
        any_case(INFERENCES),
    )

    def _set_defaults(self) -> None:
        super()._set_defaults()
        self._setDefault(optimizer="cgs", localBatches=10, staleness=1, sampler="auto", inference="auto", seed=0)
        self._setDefault(**DEFAULTS["cgs"])

    @property
    def _inference(self) -> InferenceName:
        """Param of the inference of new documents' topics."""
        name = self.getInference()
        if name == "auto":
            return "variational" if self.getOptimizer() == "online" else "sampled"
        return "sampled" if name == "sampled" else "variational"

    getSync = getter(sync)
    getLocalBatches = getter(localBatches)
    getStaleness = getter(staleness)
    getBudgetS = getter(budgetS)
    getSampler = getter(sampler)
    getInference = getter(inference)


class LDASetters(LDAParams, FleetSetters):
    """Setters of the training's params."""

    setFeaturesCol = setter(HasFeaturesCol.featuresCol)
    setTopicDistributionCol = setter(_LDAParams.topicDistributionCol)
    setK = setter(LDAParams.k)
    setOptimizer = setter(LDAParams.optimizer)
    setDocConcentration = setter(LDAParams.docConcentration)
    setTopicConcentration = setter(LDAParams.topicConcentration)
    setOptimizeDocConcentration = setter(_LDAParams.optimizeDocConcentration)
    setSubsamplingRate = setter(_LDAParams.subsamplingRate)
    setLearningOffset = setter(_LDAParams.learningOffset)
    setLearningDecay = setter(_LDAParams.learningDecay)
    setCheckpointInterval = setter(LDAParams.checkpointInterval)
    setSync = setter(LDAParams.sync)
    setLocalBatches = setter(LDAParams.localBatches)
    setStaleness = setter(LDAParams.staleness)
    setBudgetS = setter(LDAParams.budgetS)
    setSampler = setter(LDAParams.sampler)
    setInference = setter(LDAParams.inference)

    def setKeepLastCheckpoint(self: P, value: bool) -> P:
        """Set a param without effect here: the fleet makes checkpoints if its settings say so."""
        return self._set(keepLastCheckpoint=value)


def options_of(params: LDAParams, name: str) -> SamplingOptions | OnlineOptions:
    """Return the options that params describe; the size of the vocabulary follows later.

    Args:
        name: of the training, under which another driver continues it.

    Raises:
        ConfigError: the number of concentrations is not the number of topics.
    """
    k = params.getK()
    online = params.getOptimizer() == "online"
    alpha = tuple(params.getDocConcentration()) if params.isSet("docConcentration") else None
    if alpha is not None and len(alpha) not in (1, k):
        raise ConfigError(f"docConcentration: expected one number, or one for each of {k} topics, got {len(alpha)}")
    beta = params.getTopicConcentration() if params.isSet("topicConcentration") else None
    if online and params.getVia() == "local":
        raise ConfigError("via: optimizer 'online' steps on the servers, and 'local' is for optimizer 'cgs'")
    if params.isSet("localBatches") and not (online and params.getSync() == "average"):
        raise ConfigError("localBatches: only optimizer 'online' with sync 'average' takes local batches")
    if params.isSet("staleness") and (online or params.getSync() != "ssp"):
        raise ConfigError("staleness: only optimizer 'cgs' with sync 'ssp' takes a staleness")
    if online:
        return OnlineOptions(
            topics=k,
            vocabulary=1,
            iterations=params.getMaxIter(),
            alpha=alpha or (1 / k,),
            beta=beta or 1 / k,
            optimize_alpha=params.getOptimizeDocConcentration(),
            offset=params.getLearningOffset(),
            decay=params.getLearningDecay(),
            fraction=params.getSubsamplingRate(),
            sync=params.getSync(),  # type: ignore[arg-type]
            local_batches=params.getLocalBatches(),
            seed=params._seed,
            name=name,
        )
    if params.getOptimizer() == "em":
        log.warning("optimizer 'em': topics are found by collapsed Gibbs sampling, as with 'cgs', not by EM")
        alpha = _less_1("docConcentration", alpha or (1 + EM_ALPHA / k,))
        (beta,) = _less_1("topicConcentration", (beta or 1 + EM_BETA,))
    return SamplingOptions(
        topics=k,
        vocabulary=1,
        iterations=params.getMaxIter(),
        alpha=alpha or (CGS_ALPHA,),
        beta=beta or CGS_BETA,
        optimize_alpha=params.getOptimizeDocConcentration(),
        sync=params.getSync(),  # type: ignore[arg-type]
        staleness=params.getStaleness(),
        budget_s=params.getBudgetS() if params.isSet("budgetS") else None,
        sampler=params.getSampler(),
        via="local" if params.getVia() == "local" else "servers",
        seed=params._seed,
        save_interval=max(params.getCheckpointInterval(), 0),
        name=name,
    )


def _less_1(name: str, concentrations: tuple[float, ...]) -> tuple[float, ...]:
    """Return the prior of sampling for a concentration of EM, which is larger by one.

    Raises:
        ConfigError: a concentration is not above 1, which pyspark.ml's EM requires.
    """
    if not min(concentrations) > 1:
        raise ConfigError(f"{name}: expected numbers above 1 with optimizer 'em', got {min(concentrations):g}")
    return tuple(one - 1 for one in concentrations)
