"""The parameters of matrix factorization."""

from __future__ import annotations

from ps2.algorithms.frame.settings import Setting, getter, param, setter
from ps2.algorithms.frame.shared_settings import (
    TURN_SECONDS,
    FleetSettings,
    HeldOutSettings,
    SpillSettings,
    WeightSettings,
    seconds_or_auto,
)

MAX_RANK = 4096
# The maximum of ratings, weights, regParam and alpha. Squares of larger values can exceed float32's range.
MAX_VALUE = 1e18


class FactorColumnSettings(FleetSettings):
    """The parameters that a trained model has, too. ``blockSize`` of pyspark.ml has no effect."""

    userCol: Setting[str] = param(
        "user", "the column of the users' ids: integers or strings", option=None, in_model=True
    )
    itemCol: Setting[str] = param(
        "item", "the column of the items' ids: integers or strings", option=None, in_model=True
    )
    predictionCol: Setting[str] = param("prediction", "the column of the predicted ratings", option=None, in_model=True)
    coldStartStrategy: Setting[str] = param(
        "nan",
        "the treatment of rows with unknown users or items by transform: 'nan' predicts NaN, 'drop' removes the rows",
        one_of=("nan", "drop"),
        option=None,
        in_model=True,
    )
    blockSize: Setting[int] = param(4096, "no effect", at_least=1, option=None, in_model=True)

    getUserCol, setUserCol = getter(userCol), setter(userCol)
    getItemCol, setItemCol = getter(itemCol), setter(itemCol)
    getPredictionCol, setPredictionCol = getter(predictionCol), setter(predictionCol)
    getColdStartStrategy, setColdStartStrategy = getter(coldStartStrategy), setter(coldStartStrategy)
    getBlockSize, setBlockSize = getter(blockSize), setter(blockSize)


class FactorizationSettings(FactorColumnSettings, WeightSettings, SpillSettings, HeldOutSettings):
    """The parameters of a factorization. Numbers of blocks and storage levels of pyspark.ml have no effect.

    The objective for explicit feedback is the sum over ratings of ``w (r - p.q)^2``, plus ``regParam`` times the sum
    over vectors of ``n |v|^2``, where n is the summed weight of the vector's ratings (without weights, their number).
    This is the objective of pyspark.ml's ALS (Zhou et al., "Large-scale Parallel Collaborative Filtering for the
    Netflix Prize", section 3.1). The objective for implicit feedback is ALS's, too (Hu, Koren and Volinsky,
    "Collaborative Filtering for Implicit Feedback Datasets").
    """

    rank: Setting[int] = param(10, "the number of factors in a vector", at_least=1, at_most=MAX_RANK)
    maxIter: Setting[int] = param(10, "the number of passes over all ratings", at_least=1, option="iterations")
    regParam: Setting[float] = param(
        0.1, "the weight of the penalty on the squared factors (lambda)", at_least=0, at_most=MAX_VALUE, option="reg"
    )
    solver: Setting[str] = param(
        "auto",
        "'sgd': stochastic gradient descent; 'ccd': coordinate descent; 'auto': 'sgd' for explicit feedback with "
        "biases, stepSize or budgetS, unless factors are nonnegative; else 'ccd'",
        one_of=("auto", "sgd", "ccd"),
    )
    biases: Setting[bool] = param(
        False, "whether predictions add the mean rating, and biases of the user and the item, to the product of vectors"
    )
    implicitPrefs: Setting[bool] = param(
        False,
        "whether ratings are amounts of positive feedback, and all other pairs count as weak negative feedback",
        option="implicit",
    )
    alpha: Setting[float] = param(
        1.0, "the factor in the confidence of implicit feedback, 1 + alpha * rating", at_least=0, at_most=MAX_VALUE
    )
    nonnegative: Setting[bool] = param(False, "whether all factors are at least 0")
    stepSize: Setting[float | None] = param(
        None,
        "the first step size of 'sgd'. Step sizes adapt to each vector. A training that diverges restarts with half "
        "the step size. Not set: 0.1 for 100,000 ratings or more, else 0.1 * (100,000 / ratings)^(1/6), at most 0.3",
        above=0,
        type=float,
        option="lr",
    )
    budgetS: Setting[float | str | None] = param(
        None,
        "the seconds that a worker trains on a block of items in one turn of 'sgd'; 'auto': by measured times; not "
        "set: until it has used all ratings of the block",
        check=TURN_SECONDS,
        type=seconds_or_auto,
        option="budget",
    )
    checkpointInterval: Setting[int] = param(
        10,
        "the number of iterations between two saves of the vectors on the servers; -1: save at the end only",
        check=(lambda value: value == -1 or value >= 1, "-1 or a number from 1 on"),
        option=None,
    )
    seed: Setting[int] = param(0, "the seed of the initial vectors, and of the order of ratings", bits=64)
    ratingCol: Setting[str] = param(
        "rating", "the column of the ratings; empty: each row is a rating of 1", option=None
    )
    numUserBlocks: Setting[int] = param(10, "no effect", at_least=1, option=None)
    numItemBlocks: Setting[int] = param(10, "no effect", at_least=1, option=None)
    intermediateStorageLevel: Setting[str] = param("MEMORY_AND_DISK", "no effect", option=None)
    finalStorageLevel: Setting[str] = param("MEMORY_AND_DISK", "no effect", option=None)

    getRank, setRank = getter(rank), setter(rank)
    getMaxIter, setMaxIter = getter(maxIter), setter(maxIter)
    getRegParam, setRegParam = getter(regParam), setter(regParam)
    getSolver, setSolver = getter(solver), setter(solver)
    getBiases, setBiases = getter(biases), setter(biases)
    getImplicitPrefs, setImplicitPrefs = getter(implicitPrefs), setter(implicitPrefs)
    getAlpha, setAlpha = getter(alpha), setter(alpha)
    getNonnegative, setNonnegative = getter(nonnegative), setter(nonnegative)
    getStepSize, setStepSize = getter(stepSize), setter(stepSize)
    getBudgetS, setBudgetS = getter(budgetS), setter(budgetS)
    getCheckpointInterval, setCheckpointInterval = getter(checkpointInterval), setter(checkpointInterval)
    getSeed, setSeed = getter(seed), setter(seed)
    getRatingCol, setRatingCol = getter(ratingCol), setter(ratingCol)
    getNumUserBlocks, setNumUserBlocks = getter(numUserBlocks), setter(numUserBlocks)
    getNumItemBlocks, setNumItemBlocks = getter(numItemBlocks), setter(numItemBlocks)
    getIntermediateStorageLevel = getter(intermediateStorageLevel)
    setIntermediateStorageLevel = setter(intermediateStorageLevel)
    getFinalStorageLevel, setFinalStorageLevel = getter(finalStorageLevel), setter(finalStorageLevel)
