"""The model that a training of weights and biases begins with: of ours, or of pyspark.ml's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from pyspark.ml import classification, regression

from ps2.algorithms.linear.ml.models import WeightsModel
from ps2.algorithms.linear.problem import LossName, Problem, SolverOptions, Start
from ps2.algorithms.linear.weights import Weights
from ps2.client.dcv import DCV
from ps2.errors import ConfigError


def weights_of(model: Any) -> Weights | None:
    """Return the weights of a model, as of features as they were given; None: it is no model of weights."""
    if isinstance(model, WeightsModel):
        return model._weights
    if isinstance(model, classification.LogisticRegressionModel):
        rows = model.coefficientMatrix.toArray()
        loss: LossName = "logistic" if len(rows) == 1 else "softmax"
        return _made(loss, rows.T, model.interceptVector.toArray())
    if isinstance(model, classification.LinearSVCModel):
        return _made("hinge", model.coefficients.toArray()[:, None], [model.intercept])
    if isinstance(model, regression.LinearRegressionModel):
        weight, scale = model.coefficients.toArray()[:, None], model.scale
        if model.getLoss() == "huber":
            return _made("huber", weight, [model.intercept, math.log(scale)])
        return _made("squared", weight, [model.intercept])
    if isinstance(model, (classification.FMClassificationModel, regression.FMRegressionModel)):
        weight = np.column_stack([model.linear.toArray(), model.factors.toArray()])
        is_class = isinstance(model, classification.FMClassificationModel)
        return _made("fmLogistic" if is_class else "fmSquared", weight, [model.intercept])
    return None


def start_of(given: Weights, problem: Problem, first_biases: Any) -> Start:
    """Return what a training begins with.

    Args:
        given: weights of the initial model.
        first_biases: those that the training would begin with, for what the initial model has not: Huber's scale.

    Raises:
        ConfigError: the initial model has another number of features, classes or factors, intercepts where the training
            has none, or numbers that are not finite.
    """
    had = given.problem
    for what, wanted, got in (
        ("classes", _classes(problem), _classes(had)),
        ("features", problem.dim, had.dim),
        ("factorSize", problem.width - 1, had.width - 1),
    ):
        if wanted != got:
            raise ConfigError(f"initialModel: expected a model of {what} {wanted}, as this training is, got {got}")
    intercepts = np.asarray(given.biases[: had.outputs], np.float64)
    if not problem.fit_intercept and intercepts.any():
        raise ConfigError("initialModel: expected no intercept, as fitIntercept is False, got a model that has one")
    is_finite = np.isfinite(given.biases).all()
    if not is_finite or not (isinstance(given.weight, DCV) or np.isfinite(given.weight).all()):
        raise ConfigError("initialModel: expected finite weights and intercepts")
    biases = np.array(first_biases, np.float64)
    biases[: len(intercepts)] = intercepts
    if problem.loss == had.loss == "huber":
        biases[-1] = given.biases[-1]
    return Start(given.weight, biases)


def check_start(options: SolverOptions, follows_sums: bool) -> None:
    """Raise ConfigError if a solver cannot begin with a model.

    Args:
        follows_sums: the weights of the optimizer follow from sums over all steps, as FTRL's do.
    """
    why = {
        "normal": "computes the minimum at once",
        "sap": "begins with the model of all zeros, as its paths do",
    }.get(options.solver)
    if why is not None:
        raise ConfigError(f"initialModel: solver {options.solver!r} {why}, and takes none; 'l-bfgs' takes it")
    if options.solver == "minibatch" and follows_sums:
        raise ConfigError(
            f"initialModel: the weights of optimizer {options.optimizer!r} follow from sums of gradients, which a "
            "model does not have; 'adagrad' takes it"
        )


def _classes(problem: Problem) -> int | str:
    """Return how many classes a model tells apart by margins of its own."""
    return problem.width if problem.loss == "softmax" else "2 (binomial)" if problem.loss == "logistic" else 0


def _made(loss: LossName, weight: Any, biases: Any) -> Weights:
    weight = np.ascontiguousarray(weight, np.float64)
    problem = Problem(loss, len(weight), weight.shape[1])
    return Weights(problem, weight, np.asarray(biases, np.float64))
