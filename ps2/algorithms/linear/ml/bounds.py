"""Bounds on coefficients and intercepts, as pyspark.ml's LogisticRegression has them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ps2.algorithms.linear.parameters import SPARSE_FROM
from ps2.algorithms.linear.problem import Bounds, Problem
from ps2.array_types import Float64s
from ps2.errors import ConfigError

ON_COEFFICIENTS = ("lowerBoundsOnCoefficients", "upperBoundsOnCoefficients")
ON_INTERCEPTS = ("lowerBoundsOnIntercepts", "upperBoundsOnIntercepts")


def are_bounded(params: Any) -> bool:
    """Tell whether any bound is set."""
    return any(params.isSet(name) for name in (*ON_COEFFICIENTS, *ON_INTERCEPTS))


def check_bounded(params: Any, solver: str) -> None:
    """Raise ConfigError for params that do not go with the bounds that are set."""
    name = next((name for name in (*ON_COEFFICIENTS, *ON_INTERCEPTS) if params.isSet(name)), None)
    if name is None:
        return
    if solver != "l-bfgs":
        raise ConfigError(f"{name}: only solver 'l-bfgs' keeps to bounds, got {solver!r}")
    if params.getElasticNetParam() != 0:
        raise ConfigError(f"{name}: bounds take L2 penalties only, got elasticNetParam {params.getElasticNetParam():g}")
    if not params.getFitIntercept():
        for name in ON_INTERCEPTS:
            if params.isSet(name):
                raise ConfigError(f"{name}: expected fitIntercept, there are no intercepts without")


def bounds_of(params: Any, problem: Problem) -> Bounds:
    """Return the bounds that are set, infinite where there is none.

    Raises:
        ConfigError: they are of another shape than the coefficients, not numbers, or a lower one is above an upper one.
    """
    if problem.size >= SPARSE_FROM:
        raise ConfigError(f"bounds: expected fewer than {SPARSE_FROM:,} coefficients, got {problem.size:,}")
    lower, upper = (
        _given(params, name, (problem.width, problem.dim), sign).T
        for name, sign in zip(ON_COEFFICIENTS, (-1, 1), strict=True)
    )
    lower_biases, upper_biases = (
        _given(params, name, (problem.biases,), sign) for name, sign in zip(ON_INTERCEPTS, (-1, 1), strict=True)
    )
    for names, low, high in ((ON_COEFFICIENTS, lower, upper), (ON_INTERCEPTS, lower_biases, upper_biases)):
        wrong = np.argwhere(low > high)
        if len(wrong):
            at = tuple(wrong[0])
            raise ConfigError(f"{names[0]}: expected none above {names[1]}, got {low[at]:g} above {high[at]:g}")
    return Bounds(lower, upper, lower_biases, upper_biases)


def _given(params: Any, name: str, shape: tuple[int, ...], sign: int) -> Float64s:
    if not params.isSet(name):
        return np.full(shape, sign * np.inf)
    values = np.asarray(params.getOrDefault(name).toArray(), np.float64)
    if values.shape != shape:
        raise ConfigError(f"{name}: expected {_sized(shape)}, one {_meaning(shape)}, got {_sized(values.shape)}")
    if np.isnan(values).any():
        raise ConfigError(f"{name}: expected numbers, got nan")
    return values


def _sized(shape: tuple[int, ...]) -> str:
    return f"{shape[0]} x {shape[1]}" if len(shape) == 2 else f"{shape[0]} of them"


def _meaning(shape: tuple[int, ...]) -> str:
    return "for each class (binomial: 1) and feature" if len(shape) == 2 else "for each class (binomial: 1)"
