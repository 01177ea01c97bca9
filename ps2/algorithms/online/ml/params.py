"""Params of online models."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.ml.param import Param, TypeConverters
from pyspark.ml.param.shared import HasFitIntercept, HasMaxIter

from ps2.algorithms.estimators.learning_params import (
    OF_CLASSES,
    ClassParams,
    LearningParams,
    LearningSetters,
    VectorParams,
    VectorSetters,
)
from ps2.algorithms.estimators.params import (
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    Check,
    any_case,
    described,
    getter,
    one_of,
    own_param,
    setter,
)
from ps2.algorithms.online.settings import OPTIMIZERS, OnlineSettings, OptimizerName
from ps2.errors import ConfigError


class OnlineParams(ClassParams, LearningParams, HasFitIntercept):
    """Params of a training."""

    # Params that an optimizer does not use: setting one is an error.
    _UNUSED: Mapping[OptimizerName, tuple[str, ...]] = {
        "ftrl": ("lr",),
        "adagrad": ("alpha", "beta"),
        "adam": ("alpha", "beta"),
    }

    maxIter: Param[int] = described(HasMaxIter.maxIter, "how often fit learns from the rows")
    optimizer: Param[OptimizerName] = own_param(
        "optimizer",
        "optimizer of linear weights: 'ftrl' (FTRL-Proximal; vectors then have Adagrad), 'adagrad' or 'adam'",
        any_case(OPTIMIZERS),
    )
    alpha: Param[float] = own_param("alpha", "scale of FTRL's learning rate", TypeConverters.toFloat)
    beta: Param[float] = own_param("beta", "offset of FTRL's learning rate", TypeConverters.toFloat)
    lr: Param[float] = own_param("lr", "learning rate of Adagrad and Adam", TypeConverters.toFloat)
    l1: Param[float] = own_param("l1", "strength of FTRL's L1 penalty", TypeConverters.toFloat)
    l2: Param[float] = own_param(
        "l2", "strength of the L2 penalty, with 'ftrl' of the linear weights, else of all", TypeConverters.toFloat
    )
    batchSize: Param[int] = described(LearningParams.batchSize, "rows that a task learns from between two requests")
    localSteps: Param[bool] = own_param(
        "localSteps",
        "True (the default; not 'adam'): a task takes a step for each row, on a copy of the keys of batchSize rows, "
        "and sends the changes. False: it sends the sum of their gradients, and the servers take one step",
        TypeConverters.toBoolean,
    )

    _RANGES: Mapping[str, Check] = {
        **LearningParams._RANGES,
        **OF_CLASSES,
        "optimizer": one_of(OPTIMIZERS),
        "alpha": POSITIVE,
        "beta": NOT_NEGATIVE,
        "lr": POSITIVE,
        "l1": NOT_NEGATIVE,
        "l2": NOT_NEGATIVE,
    }

    def _set_defaults(self) -> None:
        super()._set_defaults()
        self._setDefault(
            optimizer="ftrl",
            alpha=0.1,
            beta=1.0,
            lr=0.05,
            l1=0.0,
            l2=0.0,
            maxIter=1,
            batchSize=8192,
            fitIntercept=True,
        )

    getAlpha = getter(alpha)
    getBeta = getter(beta)
    getLr = getter(lr)
    getL1 = getter(l1)
    getL2 = getter(l2)

    def getLocalSteps(self) -> bool:
        """Get localSteps: by default True, but with 'adam'."""
        if self.isSet(self.localSteps):
            return bool(self.getOrDefault(self.localSteps))
        return self.getOptimizer() != "adam"

    def _settings(self) -> OnlineSettings:
        """Return the model's settings; raise ConfigError if they contradict each other, or one has no effect."""
        optimizer = self.getOptimizer()
        for name in self._UNUSED[optimizer]:
            if self.isSet(name):
                raise ConfigError(f"{name}: optimizer {optimizer!r} does not use it, got {self.getOrDefault(name)}")
        return OnlineSettings(
            optimizer=self.getOptimizer(),
            alpha=self.getAlpha(),
            beta=self.getBeta(),
            lr=self.getLr(),
            l1=self.getL1(),
            l2=self.getL2() if self.getOptimizer() == "ftrl" else 0.0,
            decay=0.0 if self.getOptimizer() == "ftrl" else self.getL2(),
            local_steps=self.getLocalSteps(),
            intercept=self.getOrDefault(self.fitIntercept),
            seed=self._seed,
            key_arguments=self._key_arguments(),
        )


class FactorParams(VectorParams, OnlineParams):
    """Params of a factorization machine."""

    _UNUSED: Mapping[OptimizerName, tuple[str, ...]] = {
        "ftrl": (),
        "adagrad": ("alpha", "beta", "factorL2"),
        "adam": ("alpha", "beta", "factorL2"),
    }

    factorL2: Param[float] = own_param("factorL2", "strength of the vectors' L2 penalty", TypeConverters.toFloat)

    _RANGES: Mapping[str, Check] = {
        **OnlineParams._RANGES,
        "factorSize": COUNT,
        "initStd": POSITIVE,
        "factorL2": NOT_NEGATIVE,
    }

    def _set_defaults(self) -> None:
        super()._set_defaults()
        self._setDefault(factorSize=8, initStd=0.01, factorL2=0.0)

    getFactorL2 = getter(factorL2)


class OnlineSetters(LearningSetters, OnlineParams):
    """Setters of the params of a training."""

    setFitIntercept = setter(HasFitIntercept.fitIntercept)
    setAlpha = setter(OnlineParams.alpha)
    setBeta = setter(OnlineParams.beta)
    setLr = setter(OnlineParams.lr)
    setL1 = setter(OnlineParams.l1)
    setL2 = setter(OnlineParams.l2)
    setLocalSteps = setter(OnlineParams.localSteps)


class FactorSetters(VectorSetters, FactorParams):
    """Setters of the params of the vectors."""

    setFactorL2 = setter(FactorParams.factorL2)
