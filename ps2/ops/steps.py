"""The formulas of the optimizers for one column, and the compiled loops that apply them to rows.

``adam`` and its like process all columns; ``adam_at`` and its like process the listed columns, and skip those whose
gradient is 0. A loop computes all results of a column before it stores any: only then does LLVM turn ``adam`` into SIMD
instructions (2.4 times faster). Formulas and loops share one file, as numba detects changes only in a loop's own file.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from ps2.ops.kernels import Int64s, inline, kernel
from ps2.ops.table import Array

Scalars = tuple[Any, ...]


def in_row_dtype(row: Array, *values: float) -> Scalars:
    """Return the numbers in the row's dtype; a single float64 would widen the whole loop."""
    with np.errstate(all="ignore"):
        return tuple(row.dtype.type(value) for value in values)


def adam_scalars(weight: Array, lr: float, beta1: float, beta2: float, eps: float, step: int) -> Scalars:
    """Return the scalars of ``adam``, in the weight's dtype."""
    unbias1, unbias2 = 1 - beta1**step, 1 - beta2**step
    return in_row_dtype(weight, lr, beta1, 1 - beta1, beta2, 1 - beta2, unbias1, unbias2, eps)


@inline
def adam_one(w: Any, v: Any, s: Any, g: Any, scalars: Scalars) -> tuple[Any, Any, Any, Any]:
    """Return the weight and its moments after a step, and the step's rate; ``scalars`` as of ``adam_scalars``."""
    lr, beta1, rest1, beta2, rest2, unbias1, unbias2, eps = scalars
    v = beta1 * v + rest1 * g
    s = beta2 * s + rest2 * (g * g)
    rate = lr / (sqrt(s / unbias2) + eps)
    return w - rate * (v / unbias1), v, s, rate


@kernel
def adam(w: Array, v: Array, s: Array, g: Array, scalars: Scalars) -> None:
    for i in range(w.size):
        w[i], v[i], s[i], _ = adam_one(w[i], v[i], s[i], g[i], scalars)


@kernel
def adam_at(columns: Int64s, w: Array, v: Array, s: Array, g: Array, scalars: Scalars) -> None:
    for i in columns:
        if g[i] != 0:
            w[i], v[i], s[i], _ = adam_one(w[i], v[i], s[i], g[i], scalars)


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
    lr, rho, rest, eps = scalars
    for i in range(w.size):
        square = rho * s[i] + rest * (g[i] * g[i])
        w[i], s[i] = w[i] - lr * g[i] / (sqrt(square) + eps), square


@inline
def _ftrl_weight(z: Any, root: Any, scalars: Scalars) -> Any:
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
