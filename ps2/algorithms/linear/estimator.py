"""The public estimators of linear models and factorization machines."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
from pyspark.ml.classification import Classifier, ProbabilisticClassifier
from pyspark.ml.regression import Regressor

from ps2.algorithms.frame.models import check_thresholds
from ps2.algorithms.frame.tables import Survey
from ps2.algorithms.linear.fit import LinearEstimator, choose_solver
from ps2.algorithms.linear.fit_path import PathEstimator
from ps2.algorithms.linear.model import Weights
from ps2.algorithms.linear.models import (
    FMClassificationModel,
    FMRegressionModel,
    LinearRegressionModel,
    LinearSVCModel,
    LogisticRegressionModel,
)
from ps2.algorithms.linear.parameters import SPARSE_FROM, is_small
from ps2.algorithms.linear.plan import Bounds, LinearPlan, Problem
from ps2.algorithms.linear.settings import (
    MAX_FEATURES,
    REGRESSION_LOSSES,
    FactorizationSettings,
    FMClassifierSettings,
    FMRegressorSettings,
    LinearRegressionSettings,
    LinearSVCSettings,
    LogisticRegressionSettings,
)
from ps2.algorithms.linear.solvers.averaging import unsupported_error
from ps2.array_types import Float64s
from ps2.errors import ConfigError, InputError

log = logging.getLogger(__name__)

COEFFICIENT_BOUNDS = ("lowerBoundsOnCoefficients", "upperBoundsOnCoefficients")
INTERCEPT_BOUNDS = ("lowerBoundsOnIntercepts", "upperBoundsOnIntercepts")


class LogisticRegression(LogisticRegressionSettings, PathEstimator, ProbabilisticClassifier):
    """Logistic regression, binomial or multinomial: ``pyspark.ml.classification.LogisticRegression`` on servers.

    Example::

        model = LogisticRegression(regParam=0.01).fit(df)
        model.transform(df).select("label", "probability", "prediction").show()
    """

    __module__ = "ps2.algorithms.classification"

    _CLASSES = 0
    _LOSSES = ("logistic", "softmax")
    _MODEL = LogisticRegressionModel

    def setParams(self, **params: Any) -> LogisticRegression:
        super().setParams(**params)
        self._check_threshold_consistency()
        return self

    def _check(self) -> None:
        super()._check()
        self._check_threshold_consistency()
        solver, _ = choose_solver(self)
        if self._bounds:
            self._check_bounds(solver)
        if solver == "ma-sgd" and self.getFamily() == "multinomial":
            raise unsupported_error("family 'multinomial'")

    @property
    def _bounds(self) -> list[str]:
        """The names of the params of bounds that the user has set."""
        return [name for name in (*COEFFICIENT_BOUNDS, *INTERCEPT_BOUNDS) if self.isSet(name)]

    def _check_bounds(self, solver: str) -> None:
        """Raise ConfigError if another param contradicts the bounds."""
        name, *_ = self._bounds
        if solver != "l-bfgs":
            raise ConfigError(f"{name}: only solver 'l-bfgs' takes bounds, got {solver!r}")
        if self.getElasticNetParam() != 0:
            raise ConfigError(
                f"{name}: bounds take L2 penalties only, got elasticNetParam {self.getElasticNetParam():g}"
            )
        if not self.getFitIntercept():
            for name in INTERCEPT_BOUNDS:
                if self.isSet(name):
                    raise ConfigError(f"{name}: expected fitIntercept, as there are no intercepts without it")

    def _problem(self, survey: Survey) -> Problem:
        classes = len(survey.facts.class_weights)
        family = self.getFamily()
        if family == "multinomial" and survey.has_class_0_alone:
            classes = 1
        if family == "binomial" and classes > 2:
            raise InputError(f"column {self.getLabelCol()!r}: expected 2 classes (family 'binomial'), got {classes}")
        if self.isSet(self.thresholds):
            check_thresholds(tuple(self.getThresholds()), classes)
        multinomial = family == "multinomial" or classes > 2
        if self.getFactors() == "always" and not multinomial:
            raise ConfigError(
                "factors: 'always' is for the multinomial model: the gradient of a binomial model has fewer values "
                "than its factors"
            )
        problem = super()._problem(survey)
        return replace(problem, loss="softmax", width=classes) if multinomial else problem

    def _complete(self, plan: LinearPlan, problem: Problem) -> LinearPlan:
        return replace(plan, bounds=read_bounds(self, problem)) if self._bounds else plan

    def _trivial_weights(self, problem: Problem, survey: Survey) -> Weights | None:
        """Return the weights if all rows are of one class: an infinite intercept, if there is one, as in pyspark.ml."""
        classes = np.flatnonzero(survey.facts.class_weights)
        has_one_class = problem.loss == "softmax" and problem.width == 1
        if not has_one_class and (len(classes) > 1 or not problem.fit_intercept or self._bounds):
            return None
        log.warning(
            "column %r: all rows are of class %d, so the coefficients are 0%s",
            self.getLabelCol(),
            classes[0],
            ", and its intercept is infinite" if problem.fit_intercept else "",
        )
        biases = np.zeros(problem.biases)
        if not problem.fit_intercept:
            return Weights(problem, np.zeros((problem.dim, problem.width)), biases)
        if problem.loss == "softmax":
            biases[classes[0]] = np.inf
        else:
            biases[0] = np.inf if classes[0] == 1 else -np.inf
        return Weights(problem, np.zeros((problem.dim, problem.width)), biases)

    def _model(self, weights: Weights) -> LogisticRegressionModel:
        can_center = weights.problem.loss == "softmax" and not self._bounds
        model: LogisticRegressionModel = super()._model(weights.centred() if can_center else weights)
        return model


class LinearSVC(LinearSVCSettings, LinearEstimator, Classifier["LinearSVCModel"]):
    """Linear support vector machine: ``pyspark.ml.classification.LinearSVC`` on servers, with a squared hinge too.

    Example::

        model = LinearSVC(regParam=0.01, loss="squaredHinge").fit(df)
    """

    __module__ = "ps2.algorithms.classification"

    _CLASSES = 2
    _LOSSES = ("hinge", "squaredHinge")
    _MODEL = LinearSVCModel

    def _problem(self, survey: Survey) -> Problem:
        return replace(super()._problem(survey), loss=self.getLoss())  # type: ignore[arg-type]


class LinearRegression(LinearRegressionSettings, PathEstimator, Regressor["LinearRegressionModel"]):
    """Linear regression with squared or Huber loss: ``pyspark.ml.regression.LinearRegression`` on servers.

    Example::

        model = LinearRegression(regParam=0.1, elasticNetParam=0.5).fit(df)
    """

    __module__ = "ps2.algorithms.regression"

    _LOSSES = ("squared", "huber")
    _MODEL = LinearRegressionModel

    def _check(self) -> None:
        super()._check()
        if self.getLoss() == "huber" and self._strengths()[0] > 0:
            raise ConfigError(
                f"elasticNetParam: loss 'huber' takes L2 penalties only, got {self.getElasticNetParam():g}"
            )
        if self.getSolver() == "ma-sgd" and self.getLoss() == "huber":
            raise unsupported_error("loss 'huber'")
        if self.getSolver() == "normal":
            if self.getLoss() == "huber":
                raise ConfigError("solver: loss 'huber' has no normal equations, got 'normal'")
            if self.isSet("validationIndicatorCol"):
                raise ConfigError("validationIndicatorCol: solver 'normal' does not support early stopping")

    def _complete(self, plan: LinearPlan, problem: Problem) -> LinearPlan:
        can_choose_normal = plan.solver == "l-bfgs" and self.getSolver() == "auto" and self._initial is None
        if can_choose_normal and self.getLoss() == "squaredError" and problem.dim <= MAX_FEATURES and not plan.validate:
            return replace(plan, solver="normal")
        if plan.solver == "normal" and problem.dim > MAX_FEATURES:
            raise ConfigError(f"solver: 'normal' takes {MAX_FEATURES:,} features at most, got {problem.dim:,}")
        return plan

    def _problem(self, survey: Survey) -> Problem:
        problem = replace(super()._problem(survey), loss=REGRESSION_LOSSES[self.getLoss()], epsilon=self.getEpsilon())
        if self.getLoss() != "squaredError":
            return problem
        # pyspark.ml divides labels by their standard deviation s. With r = regParam and a = elasticNetParam it
        # minimises 1/2 |x w' - y / s|^2 + r (a |w'|_1 + (1 - a) / 2 |w'|^2) / s over w' = w / s. Times s^2, this
        # objective is 1/2 |x w - y|^2 + r a |w|_1 + (1 - a) r / (2 s) |w|^2: only the L2 penalty is divided by s.
        scale = survey.facts.label_std or abs(survey.facts.label_mean) or 1.0
        return replace(problem, l2=problem.l2 / scale)


class FMEstimator(FactorizationSettings, LinearEstimator):
    """Base class of FMClassifier and FMRegressor."""

    def _problem(self, survey: Survey) -> Problem:
        return replace(
            super()._problem(survey),
            width=1 + self.getFactorSize(),
            fit_linear=self.getFitLinear(),
            init_std=self.getInitStd(),
        )


class FMClassifier(FMClassifierSettings, FMEstimator, ProbabilisticClassifier):
    """Factorization machine for two classes: ``pyspark.ml.classification.FMClassifier`` on servers.

    Example::

        model = FMClassifier(factorSize=8, stepSize=0.05).fit(df)
    """

    __module__ = "ps2.algorithms.classification"

    _CLASSES = 2
    _LOSSES = ("fmLogistic",)
    _MODEL = FMClassificationModel

    def _problem(self, survey: Survey) -> Problem:
        if self.isSet(self.thresholds):
            check_thresholds(tuple(self.getThresholds()), 2)
        return super()._problem(survey)


class FMRegressor(FMRegressorSettings, FMEstimator, Regressor["FMRegressionModel"]):
    """Factorization machine for regression: ``pyspark.ml.regression.FMRegressor`` on servers.

    Example::

        model = FMRegressor(factorSize=8, stepSize=0.05).fit(df)
    """

    __module__ = "ps2.algorithms.regression"

    _LOSSES = ("fmSquared",)
    _MODEL = FMRegressionModel


def read_bounds(params: Any, problem: Problem) -> Bounds:
    """Return the bounds, infinite where none is set; ConfigError: a wrong shape, or lower above upper bounds."""
    if not is_small(problem):
        raise ConfigError(f"bounds: expected fewer than {SPARSE_FROM:,} coefficients, got {problem.size:,}")
    lower, upper = (
        _read_bound(params, name, (problem.width, problem.dim), sign).T
        for name, sign in zip(COEFFICIENT_BOUNDS, (-1, 1), strict=True)
    )
    lower_biases, upper_biases = (
        _read_bound(params, name, (problem.biases,), sign) for name, sign in zip(INTERCEPT_BOUNDS, (-1, 1), strict=True)
    )
    for names, low, high in ((COEFFICIENT_BOUNDS, lower, upper), (INTERCEPT_BOUNDS, lower_biases, upper_biases)):
        crossed = np.argwhere(low > high)
        if len(crossed):
            index = tuple(crossed[0])
            raise ConfigError(
                f"{names[0]}: expected no bound above {names[1]}, got {low[index]:g} above {high[index]:g}"
            )
    return Bounds(lower, upper, lower_biases, upper_biases)


def _read_bound(params: Any, name: str, shape: tuple[int, ...], sign: int) -> Float64s:
    if not params.isSet(name):
        return np.full(shape, sign * np.inf)
    values = np.asarray(params.getOrDefault(name).toArray(), np.float64)
    if values.shape != shape:
        meaning = "for each class (binomial: 1)" + (" and feature" if len(shape) == 2 else "")
        raise ConfigError(f"{name}: expected {_shape_text(shape)}, one {meaning}, got {_shape_text(values.shape)}")
    if np.isnan(values).any():
        raise ConfigError(f"{name}: expected numbers, got nan")
    return values


def _shape_text(shape: tuple[int, ...]) -> str:
    return f"{shape[0]} x {shape[1]}" if len(shape) == 2 else f"{shape[0]} values"
