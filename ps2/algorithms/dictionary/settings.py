"""The params of dictionary learning."""

from __future__ import annotations

from ps2.algorithms.frame.settings import Setting, getter, param, setter
from ps2.algorithms.frame.shared_settings import FeatureSettings, ViaSettings


class DictionarySettings(FeatureSettings, ViaSettings):
    """The params of dictionary learning."""

    k: Setting[int] = param(100, "the number of atoms: rows of the dictionary", at_least=1)
    regParam: Setting[float] = param(
        1.0,
        "the strength of the penalty on the codes' absolute values: scikit-learn's alpha",
        at_least=0,
        bits=64,
        option="alpha",
    )
    nonnegative: Setting[bool] = param(False, "whether codes must not be negative")
    maxIter: Setting[int] = param(
        100, "the maximum number of updates of the dictionary", at_least=0, option="iterations"
    )
    tol: Setting[float] = param(
        1e-4, "stop when an iteration reduces the objective by no more than this fraction of it", at_least=0
    )
    seed: Setting[int] = param(0, "the seed of the first atoms, and of atoms that replace unused ones", bits=64)
    outputCol: Setting[str] = param("codes", "the column of the codes, sparse vectors", option=None, in_model=True)

    getK, setK = getter(k), setter(k)
    getRegParam, setRegParam = getter(regParam), setter(regParam)
    getNonnegative, setNonnegative = getter(nonnegative), setter(nonnegative)
    getMaxIter, setMaxIter = getter(maxIter), setter(maxIter)
    getTol, setTol = getter(tol), setter(tol)
    getSeed, setSeed = getter(seed), setter(seed)
    getOutputCol, setOutputCol = getter(outputCol), setter(outputCol)
