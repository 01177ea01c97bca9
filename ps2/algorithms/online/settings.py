"""The parameters of online models."""

from __future__ import annotations

from ps2.algorithms.frame.key_settings import ClassSettings, LearningSettings, VectorSettings
from ps2.algorithms.frame.settings import Setting, getter, param, setter


class OnlineSettings(ClassSettings, LearningSettings):
    """The parameters of online logistic regression."""

    maxIter: Setting[int] = param(1, "the number of times that fit learns from the rows", at_least=1, option="epochs")
    optimizer: Setting[str] = param(
        "ftrl",
        "the optimizer of linear weights: 'ftrl' (FTRL-Proximal; vectors then have Adagrad), 'adagrad' or 'adam'",
        one_of=("ftrl", "adagrad", "adam"),
    )
    alpha: Setting[float] = param(0.1, "the scale of FTRL's learning rate", above=0)
    beta: Setting[float] = param(1.0, "the offset of FTRL's learning rate", at_least=0, option=None)
    lr: Setting[float] = param(0.05, "the learning rate of Adagrad and Adam", above=0)
    l1: Setting[float] = param(0.0, "the strength of FTRL's L1 penalty", at_least=0)
    l2: Setting[float] = param(
        0.0, "the strength of the L2 penalty: of the linear weights with 'ftrl', else of all weights", at_least=0
    )
    batchSize: Setting[int] = param(8192, "the number of rows that a task learns from between two requests", at_least=1)
    localSteps: Setting[bool | None] = param(
        None,
        "True (the default; not 'adam'): a task takes a step for each row, on a copy of the keys of batchSize rows, "
        "and sends the changes. False: it sends the sum of their gradients, and the servers take one step",
        type=bool,
        option=None,
    )
    fitIntercept: Setting[bool] = param(True, "whether the model has an intercept", option=None)

    getOptimizer, setOptimizer = getter(optimizer), setter(optimizer)
    getAlpha, setAlpha = getter(alpha), setter(alpha)
    getBeta, setBeta = getter(beta), setter(beta)
    getLr, setLr = getter(lr), setter(lr)
    getL1, setL1 = getter(l1), setter(l1)
    getL2, setL2 = getter(l2), setter(l2)
    setLocalSteps = setter(localSteps)
    getFitIntercept, setFitIntercept = getter(fitIntercept), setter(fitIntercept)


class OnlineFactorSettings(VectorSettings, OnlineSettings):
    """The parameters of online factorization machines."""

    factorSize: Setting[int] = param(8, "the size of a key's vector", at_least=1, option="rank")
    initStd: Setting[float] = param(
        0.01, "the standard deviation of the vectors' initial elements", above=0, option=None
    )
    factorL2: Setting[float] = param(0.0, "the strength of the vectors' L2 penalty", at_least=0, option=None)

    getFactorL2, setFactorL2 = getter(factorL2), setter(factorL2)
