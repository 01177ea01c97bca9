"""Params of dictionary learning, and their conversion to options."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.ml.param import Param, TypeConverters
from pyspark.ml.param.shared import HasFeaturesCol, HasMaxIter, HasOutputCol, HasRegParam, HasSeed, HasTol

from ps2.algorithms.dictionary.options import DictionaryOptions
from ps2.algorithms.estimators.params import (
    COUNT,
    NOT_NEGATIVE,
    RANGES,
    Check,
    FleetParams,
    FleetSetters,
    described,
    getter,
    own_param,
    setter,
)
from ps2.algorithms.estimators.via import VIA, HasVia


class DictionaryParams(HasVia, FleetParams, HasFeaturesCol, HasOutputCol, HasRegParam, HasMaxIter, HasTol, HasSeed):
    """Params of ``DictionaryLearning`` and its model."""

    _RANGES: Mapping[str, Check] = {**RANGES, **VIA, "k": COUNT, "regParam": NOT_NEGATIVE, "tol": NOT_NEGATIVE}

    k: Param[int] = own_param("k", "number of atoms: rows of the dictionary", TypeConverters.toInt)
    regParam: Param[float] = described(
        HasRegParam.regParam, "penalty of the codes' absolute values (>= 0): scikit-learn's alpha"
    )
    tol: Param[float] = described(
        HasTol.tol, "the training ends when an iteration lessens the objective by no more than this share of it (>= 0)"
    )
    nonnegative: Param[bool] = own_param("nonnegative", "whether codes are not negative", TypeConverters.toBoolean)

    def _set_defaults(self) -> None:
        super()._set_defaults()
        self._setDefault(k=100, regParam=1.0, maxIter=100, tol=1e-4, seed=0, nonnegative=False, outputCol="codes")

    getK = getter(k)
    getNonnegative = getter(nonnegative)


class DictionarySetters(DictionaryParams, FleetSetters):
    """Setters of the training's params."""

    setFeaturesCol = setter(HasFeaturesCol.featuresCol)
    setOutputCol = setter(HasOutputCol.outputCol)
    setK = setter(DictionaryParams.k)
    setRegParam = setter(DictionaryParams.regParam)
    setTol = setter(DictionaryParams.tol)
    setNonnegative = setter(DictionaryParams.nonnegative)


def options_of(params: DictionaryParams, name: str) -> DictionaryOptions:
    """Return the options that params ask for, as far as the rows are not needed.

    Args:
        name: of the training, under which another driver continues it.
    """
    return DictionaryOptions(
        atoms=params.getK(),
        penalty=params.getRegParam(),
        positive=params.getNonnegative(),
        iterations=params.getMaxIter(),
        tolerance=params.getTol(),
        seed=params._seed,
        name=name,
    )
