"""The params of metric learning."""

from __future__ import annotations

from ps2.algorithms.frame.settings import Setting, getter, param, setter
from ps2.algorithms.frame.shared_settings import FeatureSettings, ViaSettings

OPTIMIZERS = ("adagrad", "sgd")


class MetricSettings(FeatureSettings, ViaSettings):
    """The params of metric learning."""

    rank: Setting[int] = param(10, "the number of rows of L, and the length of the vectors L x", at_least=1)
    otherCol: Setting[str | None] = param(
        None,
        "the column of each pair's second vector; labels are 1 (similar) or 0 (dissimilar). Not set: labels are "
        "classes, and pairs are drawn",
        type=str,
        option=None,
    )
    dissimilarWeight: Setting[float] = param(1.0, "lambda: the weight of a dissimilar pair", above=0)
    pairsPerRow: Setting[int] = param(
        5,
        "the number of similar and the number of dissimilar partners that are drawn for each row (without otherCol)",
        at_least=1,
        option="pairs",
    )
    maxIter: Setting[int] = param(100, "the number of steps", at_least=1, option="steps")
    stepSize: Setting[float] = param(
        0.1,
        "the learning rate, for features scaled so that the mean squared norm of a pair's difference is 1",
        above=0,
        option="lr",
    )
    miniBatchFraction: Setting[float] = param(
        1.0, "the fraction of the pairs that each step samples", above=0, at_most=1, option="fraction"
    )
    optimizer: Setting[str] = param(
        "adagrad", f"the update rule of the servers: {', '.join(OPTIMIZERS)}", one_of=OPTIMIZERS
    )
    factors: Setting[str] = param(
        "auto",
        "whether workers send gradients as sufficient factors: 'auto' (if these take fewer bytes than the values), "
        "'always' or 'never'",
        one_of=("auto", "always", "never"),
    )
    seed: Setting[int] = param(0, "the seed of pairs, minibatches and the initial L", bits=64)
    labelCol: Setting[str] = param("label", "the column of the labels", option=None)
    outputCol: Setting[str] = param("metric", "the column of the vectors L x", option=None, in_model=True)

    getRank, setRank = getter(rank), setter(rank)
    getOtherCol, setOtherCol = getter(otherCol), setter(otherCol)
    getDissimilarWeight, setDissimilarWeight = getter(dissimilarWeight), setter(dissimilarWeight)
    getPairsPerRow, setPairsPerRow = getter(pairsPerRow), setter(pairsPerRow)
    getMaxIter, setMaxIter = getter(maxIter), setter(maxIter)
    getStepSize, setStepSize = getter(stepSize), setter(stepSize)
    getMiniBatchFraction, setMiniBatchFraction = getter(miniBatchFraction), setter(miniBatchFraction)
    getOptimizer, setOptimizer = getter(optimizer), setter(optimizer)
    getFactors, setFactors = getter(factors), setter(factors)
    getSeed, setSeed = getter(seed), setter(seed)
    getLabelCol, setLabelCol = getter(labelCol), setter(labelCol)
    getOutputCol, setOutputCol = getter(outputCol), setter(outputCol)
