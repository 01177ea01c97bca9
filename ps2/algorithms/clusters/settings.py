"""The params of k-means."""

from __future__ import annotations

from ps2.algorithms.frame.settings import Setting, getter, param, setter
from ps2.algorithms.frame.shared_settings import FeatureSettings, SpillSettings, ViaSettings, WeightSettings


class KMeansSettings(FeatureSettings, ViaSettings, WeightSettings, SpillSettings):
    """The params of k-means. ``solver`` and ``maxBlockSizeInMB`` of pyspark.ml have no effect."""

    k: Setting[int] = param(2, "the number of clusters; fewer if there are fewer distinct rows", at_least=1)
    initMode: Setting[str] = param(
        "k-means||", "how to choose the first centres", one_of=("k-means||", "random"), option="init"
    )
    initSteps: Setting[int] = param(2, "the number of rounds of k-means||", at_least=1)
    maxIter: Setting[int] = param(20, "the maximum number of moves of all centres", at_least=0, option="iterations")
    tol: Setting[float] = param(1e-4, "stop when no centre moves farther than this", at_least=0)
    distanceMeasure: Setting[str] = param(
        "euclidean", "the distance between rows and centres", one_of=("euclidean", "cosine"), option="distance"
    )
    seed: Setting[int] = param(0, "the seed of the first centres", bits=64)
    predictionCol: Setting[str] = param(
        "prediction", "the column of the predicted clusters", option=None, in_model=True
    )
    solver: Setting[str] = param("auto", "no effect", one_of=("auto", "row", "block"), option=None)
    maxBlockSizeInMB: Setting[float] = param(0.0, "no effect", at_least=0, option=None)

    getK, setK = getter(k), setter(k)
    getInitMode, setInitMode = getter(initMode), setter(initMode)
    getInitSteps, setInitSteps = getter(initSteps), setter(initSteps)
    getMaxIter, setMaxIter = getter(maxIter), setter(maxIter)
    getTol, setTol = getter(tol), setter(tol)
    getDistanceMeasure, setDistanceMeasure = getter(distanceMeasure), setter(distanceMeasure)
    getSeed, setSeed = getter(seed), setter(seed)
    getPredictionCol, setPredictionCol = getter(predictionCol), setter(predictionCol)
    getSolver = getter(solver)
    getMaxBlockSizeInMB = getter(maxBlockSizeInMB)
