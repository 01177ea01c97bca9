"""The parameters of topic models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, get_args

from ps2.algorithms.frame.settings import Check, Flexible, Setting, getter, param, setter
from ps2.algorithms.frame.shared_settings import (
    TURN_SECONDS,
    FeatureSettings,
    SpillSettings,
    ViaSettings,
    seconds_or_auto,
)

SyncName = Literal["ssp", "rotation", "average"]
OnlineSyncName = Literal["gradient", "average"]
SamplerName = Literal["auto", "dense", "sparse"]
InferenceName = Literal["sampled", "variational"]

# The topics of tokens are stored as int32.
MAX_TOPICS = 2**31 - 1
# The upper bound of alpha and beta: the logarithm of the gamma function overflows float64 at about 1e305.
MAX_CONCENTRATION = 1e100
SYNCS = tuple(dict.fromkeys((*get_args(SyncName), *get_args(OnlineSyncName))))
# The defaults of each optimizer. "online" has pyspark.ml's defaults; "cgs" has values that are usual for samplers.
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "cgs": {"maxIter": 100, "optimizeDocConcentration": False, "sync": "ssp"},
    "online": {"maxIter": 20, "optimizeDocConcentration": True, "sync": "gradient"},
    "em": {"maxIter": 20, "optimizeDocConcentration": False, "sync": "ssp"},
}
CONCENTRATIONS: Check = (
    lambda values: len(values) > 0 and all(0 < value <= MAX_CONCENTRATION for value in values),
    f"finite positive numbers, one or one a topic, {MAX_CONCENTRATION:g} at most",
)
CONCENTRATION: Check = (
    lambda value: 0 < value <= MAX_CONCENTRATION,
    f"a finite positive number, {MAX_CONCENTRATION:g} at most",
)
SAVE_INTERVAL: Check = (lambda value: value == -1 or value >= 1, "-1 or a number from 1 on")


def resolved_inference(inference: str, optimizer: str) -> InferenceName:
    """Return how to infer topics of new documents; with "auto", this depends on the optimizer."""
    if inference == "auto":
        return "variational" if optimizer == "online" else "sampled"
    return "sampled" if inference == "sampled" else "variational"


def numbers(value: Any) -> list[float]:
    """Convert a number, a list of numbers, or a string of numbers with commas to a list of floats."""
    from pyspark.ml.param import TypeConverters

    if isinstance(value, str):
        return [float(number) for number in value.split(",")]
    return [float(value)] if isinstance(value, (int, float)) else TypeConverters.toListFloat(value)


class LDASettings(FeatureSettings, ViaSettings, SpillSettings):
    """The parameters of topic models. Pyspark.ml's ``keepLastCheckpoint`` has no effect."""

    _DEFAULTS_BY: ClassVar[tuple[str, Mapping[str, Mapping[str, Any]]] | None] = ("optimizer", DEFAULTS)

    k: Setting[int] = param(10, "the number of topics (>= 1)", at_least=1, at_most=MAX_TOPICS)
    maxIter: Setting[int] = param(
        100,
        "the number of passes over all tokens, or of batches with online; with online and em 20 by default",
        at_least=1,
        option="iterations",
    )
    optimizer: Setting[str] = param(
        "cgs",
        "how to train: cgs, collapsed Gibbs sampling, or online, variational Bayes; em of pyspark.ml is trained by cgs",
        one_of=tuple(DEFAULTS),
    )
    docConcentration: Flexible[list[float] | None, float | Sequence[float]] = param(
        None,
        "alpha, the Dirichlet prior of a document's topics: one number, or one per topic; not set: 0.1 with cgs, 1 / k "
        "with online",
        check=CONCENTRATIONS,
        type=numbers,
        option="alpha",
    )
    topicConcentration: Setting[float | None] = param(
        None,
        "beta, the Dirichlet prior of a topic's words; not set: 0.01 with cgs, 1 / k with online",
        check=CONCENTRATION,
        bits=64,
        type=float,
        option="beta",
    )
    optimizeDocConcentration: Setting[bool] = param(
        False,
        "whether to fit alpha, one number per topic; with online true by default",
        option="optimize-alpha/--fixed-alpha",
    )
    sync: Setting[str] = param(
        "ssp",
        "how workers share the counts: ssp, rotation of blocks of words or average (cgs); gradient or average (online, "
        "gradient by default)",
        one_of=SYNCS,
    )
    localBatches: Setting[int] = param(
        10, "the number of a worker's batches between two averages (online with sync average)", at_least=1
    )
    staleness: Setting[int] = param(
        1, "the number of iterations that a worker may be ahead of the slowest worker (sync ssp)", at_least=0
    )
    budgetS: Setting[float | str | None] = param(
        None,
        "the seconds of one turn (sync rotation); 'auto': the run decides; not set: a turn ends when the block is done",
        check=TURN_SECONDS,
        type=seconds_or_auto,
        option="budget",
    )
    sampler: Setting[str] = param(
        "auto",
        "how to store a document's topic counts (cgs), which only changes the speed: dense, a count for each topic; "
        "sparse, a list of the topics that occur; auto, by the number of topics and the lengths of documents",
        one_of=get_args(SamplerName),
    )
    subsamplingRate: Setting[float] = param(
        0.05, "the fraction of the documents in a batch (online)", above=0, at_most=1, option="batch"
    )
    learningOffset: Setting[float] = param(
        1024.0, "the offset that slows down early steps (online)", above=0, option="offset"
    )
    learningDecay: Setting[float] = param(
        0.51, "the exponent of the decay of step sizes (online)", above=0, option="decay"
    )
    inference: Setting[str] = param(
        "auto",
        "how to infer topics of new documents: sampled, variational (as in pyspark.ml), or auto (by the optimizer)",
        one_of=("auto", *get_args(InferenceName)),
        option=None,
        in_model=True,
    )
    checkpointInterval: Setting[int] = param(
        10,
        "the number of iterations after which workers save their tokens' topics (cgs); -1: topics are not saved",
        check=SAVE_INTERVAL,
        option=None,
    )
    seed: Setting[int] = param(0, "the seed of all draws", bits=64, in_model=True)
    topicDistributionCol: Setting[str] = param(
        "topicDistribution", "the new column of topic proportions; empty: not added", option=None, in_model=True
    )
    keepLastCheckpoint: Setting[bool] = param(True, "no effect", option=None)

    getK, setK = getter(k), setter(k)
    getMaxIter, setMaxIter = getter(maxIter), setter(maxIter)
    getOptimizer, setOptimizer = getter(optimizer), setter(optimizer)
    getDocConcentration, setDocConcentration = getter(docConcentration), setter(docConcentration)
    getTopicConcentration, setTopicConcentration = getter(topicConcentration), setter(topicConcentration)
    getOptimizeDocConcentration = getter(optimizeDocConcentration)
    setOptimizeDocConcentration = setter(optimizeDocConcentration)
    getSync, setSync = getter(sync), setter(sync)
    getLocalBatches, setLocalBatches = getter(localBatches), setter(localBatches)
    getStaleness, setStaleness = getter(staleness), setter(staleness)
    getBudgetS, setBudgetS = getter(budgetS), setter(budgetS)
    getSampler, setSampler = getter(sampler), setter(sampler)
    getSubsamplingRate, setSubsamplingRate = getter(subsamplingRate), setter(subsamplingRate)
    getLearningOffset, setLearningOffset = getter(learningOffset), setter(learningOffset)
    getLearningDecay, setLearningDecay = getter(learningDecay), setter(learningDecay)
    getInference, setInference = getter(inference), setter(inference)
    getCheckpointInterval, setCheckpointInterval = getter(checkpointInterval), setter(checkpointInterval)
    getSeed, setSeed = getter(seed), setter(seed)
    getTopicDistributionCol, setTopicDistributionCol = getter(topicDistributionCol), setter(topicDistributionCol)
    getKeepLastCheckpoint, setKeepLastCheckpoint = getter(keepLastCheckpoint), setter(keepLastCheckpoint)
