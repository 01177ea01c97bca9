"""Optimizer steps followed by the proximal step of an L1 and an L2 penalty.

The penalty l1 |w|_1 + l2/2 |w|^2 is not part of the gradient. After the optimizer step, each column minimises the
penalty plus h / (2 lr) times its squared distance, where h is the metric of the step (Duchi et al., 2011, for Adagrad).
The solution is w <- sign(w) max(abs(w) - lr l1 / h, 0) / (1 + lr l2 / h).

Formulas and loops share one file, as numba detects changes only in a loop's own file.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

from ps2.ops.kernels import inline, kernel
from ps2.ops.steps import Scalars, adam_one, in_row_dtype
from ps2.ops.table import Array


def constant(weight: Array, rate: float, l1: float, l2: float) -> Scalars:
    """Return the penalty scalars of steps with one rate lr / h for all columns, in the weight's dtype."""
    return in_row_dtype(weight, rate * l1, 1 + rate * l2, 0)


def scaled(weight: Array, l1: float, l2: float) -> Scalars:
    """Return the penalty scalars of steps whose rate differs by column, in the weight's dtype."""
    return in_row_dtype(weight, l1, l2, 1, 0)


@inline
def _shrink(w: Any, threshold: Any, divisor: Any, zero: Any) -> Any:
    moved = w - threshold if w > zero else w + threshold
    return zero if abs(w) <= threshold else moved / divisor


@inline
def _sgd(w: Any, g: Any, scalars: Scalars) -> Any:
    lr, threshold, divisor, zero = scalars
    return _shrink(w - lr * g, threshold, divisor, zero)


@inline
def _momentum(w: Any, v: Any, g: Any, scalars: Scalars) -> tuple[Any, Any]:
    lr, decay, threshold, divisor, zero = scalars
    v = decay * v + g
    return _shrink(w - lr * v, threshold, divisor, zero), v


@inline
def _adagrad(w: Any, s: Any, g: Any, scalars: Scalars) -> tuple[Any, Any]:
    lr, eps, l1, l2, one, zero = scalars
    s = s + g * g
    rate = lr / (sqrt(s) + eps)
    return _shrink(w - rate * g, rate * l1, one + rate * l2, zero), s


@inline
def _rmsprop(w: Any, s: Any, g: Any, scalars: Scalars) -> tuple[Any, Any]:
    lr, rho, rest, eps, l1, l2, one, zero = scalars
    s = rho * s + rest * (g * g)
    rate = lr / (sqrt(s) + eps)
    return _shrink(w - rate * g, rate * l1, one + rate * l2, zero), s


@inline
def _adam(w: Any, v: Any, s: Any, g: Any, scalars: Scalars) -> tuple[Any, Any, Any]:
    lr, beta1, rest1, beta2, rest2, unbias1, unbias2, eps, l1, l2, one, zero = scalars
    moved, v, s, rate = adam_one(w, v, s, g, (lr, beta1, rest1, beta2, rest2, unbias1, unbias2, eps))
    return _shrink(moved, rate * l1, one + rate * l2, zero), v, s


@kernel
def sgd(w: Array, g: Array, scalars: Scalars) -> None:
    for i in range(w.size):
        w[i] = _sgd(w[i], g[i], scalars)


@kernel
def momentum(w: Array, v: Array, g: Array, scalars: Scalars) -> None:
    for i in range(w.size):
        w[i], v[i] = _momentum(w[i], v[i], g[i], scalars)


@kernel
def adagrad(w: Array, s: Array, g: Array, scalars: Scalars) -> None:
    for i in range(w.size):
        w[i], s[i] = _adagrad(w[i], s[i], g[i], scalars)


@kernel
def rmsprop(w: Array, s: Array, g: Array, scalars: Scalars) -> None:
    for i in range(w.size):
        w[i], s[i] = _rmsprop(w[i], s[i], g[i], scalars)


@kernel
def adam(w: Array, v: Array, s: Array, g: Array, scalars: Scalars) -> None:
    for i in range(w.size):
        w[i], v[i], s[i] = _adam(w[i], v[i], s[i], g[i], scalars)
