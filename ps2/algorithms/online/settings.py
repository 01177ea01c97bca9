"""The params of online models."""

from __future__ import annotations

from ps2.algorithms.frame.key_settings import ClassSettings, LearningSettings, VectorSettings
from ps2.algorithms.frame.settings import Setting, getter, param, setter


class OnlineSettings(ClassSettings, LearningSettings):
    """The params of online logistic regression."""

    maxIter: Setting[int] = param(1, "the number of passes of fit over the rows", at_least=1, option="epochs")
    optimizer: Setting[str] = param(
        "ftrl",
        "the optimizer: 'ftrl' (FTRL-Proximal for linear weights, Adagrad for vectors), 'adagrad' or 'adam'",
        one_of=("ftrl", "adagrad", "adam"),
    )
    alpha: Setting[float] = param(
        0.2, "alpha of FTRL's learning rate alpha / (beta + sqrt(n)), where n is the sum of squared gradients", above=0
    )
    beta: Setting[float] = param(1.0, "beta of FTRL's learning rate alpha / (beta + sqrt(n))", at_least=0, option=None)
    lr: Setting[float] = param(0.05, "the learning rate of Adagrad and Adam", above=0)
    l1: Setting[float] = param(0.0, "the strength of FTRL's L1 penalty", at_least=0)
    l2: Setting[float] = param(
        0.0, "the strength of the L2 penalty on linear weights with 'ftrl', else on all weights", at_least=0
    )
    batchSize: Setting[int] = param(8192, "the number of rows between a task's pull and push", at_least=1)
    localSteps: Setting[bool | None] = param(
        None,
        "True (the default, except with 'adam'): a task takes a step for each of batchSize rows, on a copy of their "
        "keys' weights, and sends the changes. False: it sends the rows' summed gradient for one step on the servers",
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
    """The params of online factorization machines."""

    factorSize: Setting[int] = param(8, "the size of a key's vector", at_least=1, option="rank")
    initStd: Setting[float] = param(
        0.01, "the standard deviation of the vectors' initial elements", above=0, option=None
    )
    factorL2: Setting[float] = param(0.0, "the strength of the vectors' L2 penalty", at_least=0, option=None)

    getFactorL2, setFactorL2 = getter(factorL2), setter(factorL2)
