"""Regularization paths: ``fitPath`` trains a model for each of several penalties, each from the previous model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, overload

import numpy as np
from pyspark.ml import Estimator
from pyspark.ml.param import Param
from pyspark.sql import DataFrame

from ps2.algorithms.frame.retry import retry_after_server_loss
from ps2.algorithms.frame.tables import Survey
from ps2.algorithms.linear.fit import NO_TRAINING, LinearEstimator
from ps2.algorithms.linear.model import Weights
from ps2.algorithms.linear.plan import LinearPlan, PathPoint, Problem
from ps2.algorithms.linear.settings import ElasticNetSettings, PathSettings
from ps2.algorithms.linear.solvers.sap import check_problem
from ps2.algorithms.linear.trainer import train
from ps2.algorithms.training.record import StepReport
from ps2.algorithms.training.table import Table
from ps2.coordinator.context import PS2Context
from ps2.errors import ConfigError, InputError

ParamMap = dict[Param[Any], Any]


class ModelPath(Sequence[Any]):
    """The result of ``fitPath``: a sequence of models. Each access to an index makes a new model.

    Attributes:
        lambdas: each model's ``regParam``.
        nonzeros: each model's number of coefficients that are not 0.
    """

    def __init__(self, points: Sequence[PathPoint], make_model: Callable[[PathPoint], Any]) -> None:
        self._points, self._make_model = points, make_model
        self.lambdas = [point.strength for point in points]
        self.nonzeros = [len(point.columns) for point in points]

    def __len__(self) -> int:
        return len(self._points)

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> ModelPath: ...

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return ModelPath(self._points[index], self._make_model)
        return self._make_model(self._points[index])


class PathEstimator(ElasticNetSettings, LinearEstimator):
    """An estimator with ``fitPath``."""

    def _check(self) -> None:
        super()._check()
        for name in ("lambdaPath", "lambdaCount", "lambdaRatio"):
            if self.isSet(name):
                raise ConfigError(f"{name}: fit trains one model, that of regParam; fitPath trains one for each value")

    def fitPath(self, dataset: DataFrame) -> ModelPath:
        """Train one model for each value of ``lambdaPath``, or for ``lambdaCount`` values, with solver "sap".

        The values descend, and each model starts from the previous one (Friedman, Hastie and Tibshirani, 2010).
        ``regParam`` has no effect; ``maxIter`` and ``tol`` apply to each model.

        Args:
            dataset: the rows, with the columns that ``fit`` takes.

        Returns:
            The models in the order of the values; ``regParam`` of each is its value.

        Raises:
            ConfigError: the estimator has another solver, or no L1 penalty.
        """
        solver: str = self.getOrDefault("solver")
        if solver not in ("auto", "sap"):
            raise ConfigError(f"solver: fitPath trains with 'sap', got {solver!r}")
        if self._validation_data is not None:
            raise ConfigError("validationData: solver 'sap' does not support early stopping")
        # The plan has the penalties of regParam 1; each value of the path is a factor of them.
        estimator = self.copy({self.regParam: 1.0, self.getParam("solver"): "sap"})
        for param in (estimator.lambdaPath, estimator.lambdaCount, estimator.lambdaRatio):
            estimator.clear(param)
        self._check_frame(dataset)
        self._check_values()
        estimator._check()
        plan = replace(estimator._plan(), path=self._values(PathSettings))
        survey, dealer = estimator._survey_and_deal(dataset)
        problem = estimator._problem(survey)
        points: tuple[PathPoint, ...] = retry_after_server_loss(lambda: estimator._path(problem, plan, survey, dealer))

        def make_model(point: PathPoint) -> Any:
            weight = np.zeros((problem.dim, 1))
            weight[point.columns, 0] = point.w
            scaled = replace(problem, l1=problem.l1 * point.strength, l2=problem.l2 * point.strength)
            model = estimator._model(Weights(scaled, weight, np.array([point.bias])))
            return estimator._finish_model(model, dataset, point.history)._set(regParam=point.strength)

        return ModelPath(points, make_model)

    def fitMultiple(self, dataset: DataFrame, paramMaps: Sequence[ParamMap]) -> Iterator[tuple[int, Any]]:
        """Train a model for each map. With solver "sap", maps that set only ``regParam`` are trained as one path.

        ``CrossValidator`` and ``TrainValidationSplit`` of pyspark.ml call this method.
        """
        strengths = self._strengths_of(paramMaps)
        if not strengths:
            single: Any = self  # each estimator also derives from pyspark.ml's
            return Estimator.fitMultiple(single, dataset, paramMaps)
        descending = sorted(set(strengths), reverse=True)
        path = self.copy({self.lambdaPath: descending}).fitPath(dataset)
        models = dict(zip(descending, path, strict=True))
        return iter([(index, models[strength]) for index, strength in enumerate(strengths)])

    def _strengths_of(self, maps: Sequence[ParamMap]) -> list[float]:
        """Return the values of ``regParam`` if the maps set only ``regParam`` and form a path, else an empty list."""
        names = {param.name for param_map in maps for param in param_map}
        if self.getOrDefault("solver") != "sap" or self.isSet("lambdaPath") or names != {"regParam"} or not all(maps):
            return []
        if self._validation_data is not None:
            return []
        strengths = [float(value) for param_map in maps for value in param_map.values()]
        return strengths if min(strengths) > 0 and max(strengths) < math.inf else []

    def _path(
        self, problem: Problem, plan: LinearPlan, survey: Survey, dealer: Callable[[], Table]
    ) -> tuple[PathPoint, ...]:
        """Train the models of a path. If the survey determines the weights, return them without a training."""
        check_problem(problem)
        weights, path = self._trivial_weights(problem, survey), plan.path
        assert path is not None
        if weights is not None:
            if not path.lambdaPath:
                raise InputError("lambdaPath: expected values, as all models of rows of one class are the same")
            bias = float(weights.biases[0])
            zeros = np.empty(0, np.int64), np.empty(0)
            return tuple(PathPoint(strength, *zeros, bias, NO_TRAINING) for strength in path.lambdaPath)
        table = dealer()

        def run(ps: PS2Context, on_step: Callable[[StepReport], None]) -> tuple[PathPoint, ...]:
            trained = train(ps, table, problem, plan, survey.facts, on_step)
            trained.weight.free()
            return trained.path

        num_models = len(path.lambdaPath or ()) or path.lambdaCount
        return self._train_in_context(table, plan.settings.maxIter * num_models, run)
