"""Params of matrix factorization: pyspark.ml's of ALS with more, and their conversion to options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pyspark.ml.param import Param, TypeConverters
from pyspark.ml.param.shared import (
    HasBlockSize,
    HasCheckpointInterval,
    HasMaxIter,
    HasPredictionCol,
    HasRegParam,
    HasSeed,
    HasStepSize,
    HasValidationIndicatorCol,
    HasWeightCol,
)
from pyspark.ml.recommendation import _ALSModelParams, _ALSParams

from ps2.algorithms.estimators.params import (
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    RANGES,
    ByName,
    Check,
    SaysParams,
    any_case,
    choice,
    described,
    getter,
    one_of,
    own_param,
    setter,
)
from ps2.algorithms.factors.options import AUTO, MAX_RANK, MAX_VALUE, FactorOptions
from ps2.errors import ConfigError

P = TypeVar("P", bound="FactorizationParams")

COLD_STARTS = ("nan", "drop")
SOLVERS = ("auto", "sgd", "ccd")
# Params that one solver takes, and the other does not.
OF_SGD = ("stepSize", "budgetS")
NO_EFFECT = "accepted as in pyspark.ml, without effect here"


def _as_budget(value: Any) -> float | str:
    """Return seconds as a float, or "auto"."""
    if isinstance(value, str):
        return value.lower()
    return TypeConverters.toFloat(value)


class FactorModelParams(SaysParams, ByName, _ALSModelParams):
    """Params of a trained factorization."""

    _RANGES: Mapping[str, Check] = {**RANGES, "coldStartStrategy": one_of(COLD_STARTS), "blockSize": COUNT}

    userCol: Param[str] = described(_ALSModelParams.userCol, "column of users' ids: integers or strings")
    itemCol: Param[str] = described(_ALSModelParams.itemCol, "column of items' ids: integers or strings")
    coldStartStrategy: Param[str] = choice(
        _ALSModelParams.coldStartStrategy,
        COLD_STARTS,
        "what transform does with rows of unknown users or items: 'nan': the prediction is NaN; 'drop': they are left "
        "out",
    )
    blockSize: Param[int] = described(HasBlockSize.blockSize, NO_EFFECT)

    def _set_defaults(self) -> None:
        super()._set_defaults()
        self._setDefault(userCol="user", itemCol="item", coldStartStrategy="nan")

    setUserCol = setter(userCol)
    setItemCol = setter(itemCol)
    setPredictionCol = setter(HasPredictionCol.predictionCol)
    setColdStartStrategy = setter(coldStartStrategy)
    setBlockSize = setter(blockSize)


class FactorizationParams(FactorModelParams, _ALSParams, HasWeightCol, HasValidationIndicatorCol, HasStepSize):
    """Params of the training."""

    _RANGES: Mapping[str, Check] = {
        **FactorModelParams._RANGES,
        "rank": (lambda value: 1 <= value <= MAX_RANK, f"a number from 1 to {MAX_RANK:,}"),
        "maxIter": COUNT,
        "regParam": (lambda value: 0 <= value <= MAX_VALUE, f"a number from 0 to {MAX_VALUE:g}"),
        "alpha": (lambda value: 0 <= value <= MAX_VALUE, f"a number from 0 to {MAX_VALUE:g}"),
        "solver": one_of(SOLVERS),
        "stepSize": POSITIVE,
        "budgetS": (
            lambda value: value == AUTO or (not isinstance(value, str) and 0 < value < float("inf")),
            f"a finite positive number of seconds, or {AUTO!r}",
        ),
        "validationTol": (lambda value: 0 <= value < 1, "a number in [0, 1)"),
        "patience": NOT_NEGATIVE,
        "checkpointInterval": (lambda value: value == -1 or value >= 1, "-1 or a number from 1 on"),
        "numUserBlocks": COUNT,
        "numItemBlocks": COUNT,
    }

    maxIter: Param[int] = described(HasMaxIter.maxIter, "passes over all ratings (>= 1)")
    checkpointInterval: Param[int] = described(
        HasCheckpointInterval.checkpointInterval,
        "iterations between two times that the vectors are saved on the servers; -1: at the end only",
    )
    numUserBlocks: Param[int] = described(_ALSParams.numUserBlocks, NO_EFFECT)
    numItemBlocks: Param[int] = described(_ALSParams.numItemBlocks, NO_EFFECT)
    intermediateStorageLevel: Param[str] = described(_ALSParams.intermediateStorageLevel, NO_EFFECT)
    finalStorageLevel: Param[str] = described(_ALSParams.finalStorageLevel, NO_EFFECT)
    solver: Param[str] = own_param(
        "solver",
        "'sgd': stochastic gradient descent; 'ccd': coordinate descent; 'auto': ccd for implicit or nonnegative "
        "factors, else sgd",
        any_case(SOLVERS),
    )
    biases: Param[bool] = own_param(
        "biases",
        "whether predictions have a mean, and a bias of each user and each item, beside the product of vectors",
        TypeConverters.toBoolean,
    )
    stepSize: Param[float] = described(
        HasStepSize.stepSize,
        "with sgd, the first step; steps adapt to each vector, and a training that diverges begins anew with half the "
        "step. Not set: 0.1 from 100,000 ratings on, else 0.1 * (100,000 / ratings)^(1/6), but 0.3 at most",
    )
    budgetS: Param[Any] = own_param(
        "budgetS",
        "with sgd, seconds of one turn, 'auto': by measured times; not set: a turn ends when its block is done",
        _as_budget,
    )
    validationTol: Param[float] = own_param(
        "validationTol",
        "least relative decrease of the held-out rows' RMSE that counts as progress (validationIndicatorCol)",
        TypeConverters.toFloat,
    )
    patience: Param[int] = own_param(
        "patience",
        "iterations without progress on the held-out rows after which the training ends; the model is that of the best "
        "iteration. 0: the training takes all maxIter, and the model is the last one",
        TypeConverters.toInt,
    )

    getSolver, setSolver = getter(solver), setter(solver)
    getBiases, setBiases = getter(biases), setter(biases)
    setStepSize = setter(stepSize)
    getBudgetS, setBudgetS = getter(budgetS), setter(budgetS)
    getValidationTol, setValidationTol = getter(validationTol), setter(validationTol)
    getPatience, setPatience = getter(patience), setter(patience)
    setRank = setter(_ALSParams.rank)
    setMaxIter = setter(maxIter)
    setRegParam = setter(HasRegParam.regParam)
    setImplicitPrefs = setter(_ALSParams.implicitPrefs)
    setAlpha = setter(_ALSParams.alpha)
    setNonnegative = setter(_ALSParams.nonnegative)
    setRatingCol = setter(_ALSParams.ratingCol)
    setWeightCol = setter(HasWeightCol.weightCol)
    setValidationIndicatorCol = setter(HasValidationIndicatorCol.validationIndicatorCol)
    setCheckpointInterval = setter(checkpointInterval)
    setSeed = setter(HasSeed.seed)
    setNumWorkers = setter(ByName.numWorkers)
    setNumServers = setter(ByName.numServers)
    setNumUserBlocks = setter(numUserBlocks)
    setNumItemBlocks = setter(numItemBlocks)
    setIntermediateStorageLevel = setter(intermediateStorageLevel)
    setFinalStorageLevel = setter(finalStorageLevel)

    def setNumBlocks(self: P, value: int) -> P:
        """Set numUserBlocks and numItemBlocks, which have no effect here."""
        return self._set(numUserBlocks=value, numItemBlocks=value)

    def _set_defaults(self) -> None:
        super()._set_defaults()
        self._setDefault(solver="auto", biases=False, validationTol=0.0, patience=3, seed=0)

    @property
    def _solver(self) -> Literal["sgd", "ccd"]:
        """The solver that "auto" stands for."""
        name = self.getSolver()
        if name == "auto":
            return "ccd" if self.getImplicitPrefs() or self.getNonnegative() else "sgd"
        return "sgd" if name == "sgd" else "ccd"


def options_of(params: FactorizationParams, name: str) -> FactorOptions:
    """Return the options that params describe.

    Args:
        name: of the training, under which another driver continues it.

    Raises:
        ConfigError: params contradict each other.
    """
    solver = params._solver
    if solver != "sgd":
        given = [one for one in OF_SGD if params.isSet(one)]
        if given:
            raise ConfigError(f"{given[0]}: solver {solver!r} does not use it")
    is_held_out = params.isSet("validationIndicatorCol")
    return FactorOptions(
        rank=params.getRank(),
        iterations=params.getMaxIter(),
        reg=params.getRegParam(),
        solver=solver,
        implicit=params.getImplicitPrefs(),
        alpha=params.getAlpha(),
        nonnegative=params.getNonnegative(),
        biases=params.getBiases(),
        step_size=params.getStepSize() if params.isSet("stepSize") else None,
        seed=params._seed,
        budget_s=params.getBudgetS() if params.isSet("budgetS") else None,
        validation_tol=params.getValidationTol(),
        patience=params.getPatience() if is_held_out else 0,
        save_interval=max(params.getCheckpointInterval(), 0),
        name=name,
    )
