"""What factorization machines have in common, of classes and of numbers."""

from __future__ import annotations

import zlib
from typing import TypeVar

from pyspark.ml.linalg import DenseMatrix, Matrix, Vector, Vectors
from pyspark.ml.param import Param
from pyspark.ml.regression import _FactorizationMachinesParams

from ps2.algorithms.estimators.params import choice, setter
from ps2.algorithms.linear.ml.models import WeightsModel
from ps2.algorithms.linear.ml.params import SOLVERS_OF_FM, TrainingParams, TrainingSetters
from ps2.algorithms.linear.problem import LossName, Problem

P = TypeVar("P", bound="FactorSetters")


class FactorParams(TrainingParams, _FactorizationMachinesParams):
    """Params of factorization machines, with pyspark.ml's own defaults."""

    _SOLVERS = SOLVERS_OF_FM

    solver: Param[str] = choice(
        TrainingParams.solver,
        SOLVERS_OF_FM,
        f"how to train: {', '.join(SOLVERS_OF_FM)}; gd and adamW (default) are pyspark.ml's, of minibatches",
    )

    def _set_defaults(self) -> None:
        super()._set_defaults()
        # pyspark.ml takes hash(), which is another number in each process.
        self._setDefault(solver="adamW", stepSize=1.0, seed=zlib.crc32(type(self).__name__.encode()))


class FactorSetters(FactorParams, TrainingSetters):
    """Setters of factorization machines."""

    setFactorSize = setter(_FactorizationMachinesParams.factorSize)
    setFitLinear = setter(_FactorizationMachinesParams.fitLinear)
    setInitStd = setter(_FactorizationMachinesParams.initStd)

    def _factor_problem(self, loss: LossName, dim: int) -> Problem:
        return Problem(
            loss=loss,
            dim=dim,
            width=1 + self.getFactorSize(),
            fit_intercept=self.getFitIntercept(),
            fit_linear=self.getFitLinear(),
            l2=self.getRegParam(),
            standardize=False,
            init_std=self.getInitStd(),
        )


class FactorModel(WeightsModel):
    """A trained factorization machine."""

    _LOADER = "ps2.algorithms.linear.model:FactorizationMachine"

    @property
    def intercept(self) -> float:
        """Intercept."""
        return float(self._weights.biases[0])

    @property
    def linear(self) -> Vector:
        """Linear weights of the features."""
        return Vectors.dense(self._weights.array("linear")[:, 0])

    @property
    def factors(self) -> Matrix:
        """Factors, a row for each feature."""
        factors = self._weights.array("factors")[:, 1:]
        return DenseMatrix(factors.shape[0], factors.shape[1], factors.reshape(-1), isTransposed=True)

    def __repr__(self) -> str:
        told = {name: self.getOrDefault(name) for name in ("factorSize", "fitLinear", "fitIntercept")}
        return ", ".join([super().__repr__(), *(f"{name}={str(value).lower()}" for name, value in told.items())])
