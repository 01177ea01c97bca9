"""The formulas of the optimizers for one column, and the compiled loops that apply them to rows.

``adam``, ``adagrad`` and ``ftrl`` process all columns; ``adam_at``, ``adagrad_at`` and ``ftrl_at`` process the listed
columns with nonzero gradients. A loop computes all results of a column before it stores any of them. Only then does
LLVM use SIMD instructions (2.4 times faster for ``adam``).

In ``proximal_adam`` and the other proximal loops, the proximal step of a penalty follows the optimizer step. The
penalty l1 |w|_1 + l2/2 |w|^2 is not part of the gradient. The proximal step sets each column to the value that
minimizes the penalty plus h / (2 lr) times the squared distance from the result of the optimizer step. h is the factor
by which the optimizer divides the learning rate lr, such as sqrt(s) + eps (Duchi et al., 2011, for Adagrad). The
solution is w <- sign(w) max(abs(w) - lr l1 / h, 0) / (1 + lr l2 / h).
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from ps2.ops.kernels import Int64s, inline, kernel
from ps2.ops.table import Array

Scalars = tuple[Any, ...]


def in_row_dtype(row: Array, *values: float) -> Scalars:
    """Return values in the row's dtype. A single float64 would make a loop over float32 compute in float64."""
    with np.errstate(all="ignore"):
        return tuple(row.dtype.type(value) for value in values)


def adam_scalars(weight: Array, lr: float, beta1: float, beta2: float, eps: float, step: int) -> Scalars:
    """Return the scalars of ``adam`` in the weight's dtype, with the bias corrections of this step."""
    correction1, correction2 = 1 - beta1**step, 1 - beta2**step
    return in_row_dtype(weight, lr, beta1, 1 - beta1, beta2, 1 - beta2, correction1, correction2, eps)


@inline
def adam_column(w: Any, v: Any, s: Any, g: Any, scalars: Scalars) -> tuple[Any, Any, Any, Any]:
    """Return a column's weight and moments after a step, and its rate.

    w: weight; v, s: first and second moment; g: gradient; ``scalars``: the result of ``adam_scalars``.
    """
    lr, beta1, one_minus_beta1, beta2, one_minus_beta2, correction1, correction2, eps = scalars
    v = beta1 * v + one_minus_beta1 * g
    s = beta2 * s + one_minus_beta2 * (g * g)
    rate = lr / (sqrt(s / correction2) + eps)
    return w - rate * (v / correction1), v, s, rate


@kernel
def adam(w: Array, v: Array, s: Array, g: Array, scalars: Scalars) -> None:
    for i in range(w.size):
        w[i], v[i], s[i], _ = adam_column(w[i], v[i], s[i], g[i], scalars)


@kernel
def adam_at(columns: Int64s, w: Array, v: Array, s: Array, g: Array, scalars: Scalars) -> None:
    for i in columns:
        if g[i] != 0:
            w[i], v[i], s[i], _ = adam_column(w[i], v[i], s[i], g[i], scalars)


@kernel
def sgd(w: Array, g: Array, scalars: Scalars) -> None:
    (lr,) = scalars
    for i in range(w.size):
        w[i] -= lr * g[i]


@kernel
def momentum(w: Array, v: Array, g: Array, scalars: Scalars) -> None:
    lr, decay = scalars
    for i in range(w.size):
        velocity = decay * v[i] + g[i]
        w[i], v[i] = w[i] - lr * velocity, velocity


@inline
def _adagrad(w: Any, s: Any, g: Any, scalars: Scalars) -> tuple[Any, Any]:
    lr, eps = scalars
    s = s + g * g
    return w - lr * g / (sqrt(s) + eps), s


@kernel
def adagrad(w: Array, s: Array, g: Array, scalars: Scalars) -> None:
    for i in range(w.size):
        w[i], s[i] = _adagrad(w[i], s[i], g[i], scalars)


@kernel
def adagrad_at(columns: Int64s, w: Array, s: Array, g: Array, scalars: Scalars) -> None:
    for i in columns:
        if g[i] != 0:
            w[i], s[i] = _adagrad(w[i], s[i], g[i], scalars)


@kernel
def rmsprop(w: Array, s: Array, g: Array, scalars: Scalars) -> None:
    lr, rho, one_minus_rho, eps = scalars
    for i in range(w.size):
        square = rho * s[i] + one_minus_rho * (g[i] * g[i])
        w[i], s[i] = w[i] - lr * g[i] / (sqrt(square) + eps), square


@inline
def _ftrl_weight(z: Any, root: Any, scalars: Scalars) -> Any:
    """Return the weight for the state z and sqrt(n) (McMahan et al., 2013, Algorithm 1)."""
    alpha, beta, l1, l2, zero = scalars
    excess = z - l1 if z > zero else z + l1
    return zero if abs(z) <= l1 else -excess / ((beta + root) / alpha + l2)


@inline
def _ftrl(w: Any, z: Any, n: Any, g: Any, scalars: Scalars) -> tuple[Any, Any, Any]:
    alpha = scalars[0]
    root, n = sqrt(n), n + g * g
    new_root = sqrt(n)
    z = z + (g - (new_root - root) / alpha * w)
    return _ftrl_weight(z, new_root, scalars), z, n


@kernel
def ftrl(w: Array, z: Array, n: Array, g: Array, scalars: Scalars) -> None:
    for i in range(w.size):
        w[i], z[i], n[i] = _ftrl(w[i], z[i], n[i], g[i], scalars)


@kernel
def ftrl_at(columns: Int64s, w: Array, z: Array, n: Array, g: Array, scalars: Scalars) -> None:
    for i in columns:
        if g[i] != 0:
            w[i], z[i], n[i] = _ftrl(w[i], z[i], n[i], g[i], scalars)


@kernel
def ftrl_weights(w: Array, z: Array, n: Array, scalars: Scalars) -> None:
    for i in range(w.size):
        w[i] = _ftrl_weight(z[i], sqrt(n[i]), scalars)


@kernel
def ftrl_weights_at(slots: Int64s, w: Array, z: Array, n: Array, scalars: Scalars) -> None:
    for i in slots:
        if i >= 0:
            w[i] = _ftrl_weight(z[i], sqrt(n[i]), scalars)


def constant_penalties(weight: Array, rate: float, l1: float, l2: float) -> Scalars:
    """Return the scalars of proximal steps whose rate lr / h is the same for all columns, in the weight's dtype."""
    return in_row_dtype(weight, rate * l1, 1 + rate * l2, 0)


def scaled_penalties(weight: Array, l1: float, l2: float) -> Scalars:
    """Return the scalars of proximal steps whose rate differs between columns, in the weight's dtype."""
    return in_row_dtype(weight, l1, l2, 1, 0)


@inline
def shrink(w: Any, threshold: Any, divisor: Any, zero: Any) -> Any:
    """Return sign(w) max(abs(w) - threshold, 0) / divisor."""
    reduced = w - threshold if w > zero else w + threshold
    return zero if abs(w) <= threshold else reduced / divisor


@kernel
def proximal_sgd(w: Array, g: Array, scalars: Scalars) -> None:
    lr, threshold, divisor, zero = scalars
    for i in range(w.size):
        w[i] = shrink(w[i] - lr * g[i], threshold, divisor, zero)


@kernel
def proximal_momentum(w: Array, v: Array, g: Array, scalars: Scalars) -> None:
    lr, decay, threshold, divisor, zero = scalars
    for i in range(w.size):
        velocity = decay * v[i] + g[i]
        w[i], v[i] = shrink(w[i] - lr * velocity, threshold, divisor, zero), velocity


@kernel
def proximal_adagrad(w: Array, s: Array, g: Array, scalars: Scalars) -> None:
    lr, eps, l1, l2, one, zero = scalars
    for i in range(w.size):
        square = s[i] + g[i] * g[i]
        rate = lr / (sqrt(square) + eps)
        w[i], s[i] = shrink(w[i] - rate * g[i], rate * l1, one + rate * l2, zero), square


@kernel
def proximal_rmsprop(w: Array, s: Array, g: Array, scalars: Scalars) -> None:
    lr, rho, one_minus_rho, eps, l1, l2, one, zero = scalars
    for i in range(w.size):
        square = rho * s[i] + one_minus_rho * (g[i] * g[i])
        rate = lr / (sqrt(square) + eps)
        w[i], s[i] = shrink(w[i] - rate * g[i], rate * l1, one + rate * l2, zero), square


@kernel
def proximal_adam(w: Array, v: Array, s: Array, g: Array, scalars: Scalars) -> None:
    lr, beta1, one_minus_beta1, beta2, one_minus_beta2, correction1, correction2, eps, l1, l2, one, zero = scalars
    step_scalars = lr, beta1, one_minus_beta1, beta2, one_minus_beta2, correction1, correction2, eps
    for i in range(w.size):
        new_weight, velocity, square, rate = adam_column(w[i], v[i], s[i], g[i], step_scalars)
        w[i], v[i], s[i] = shrink(new_weight, rate * l1, one + rate * l2, zero), velocity, square
