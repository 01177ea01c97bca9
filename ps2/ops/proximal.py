"""Optimiser steps followed by the proximal step of an L1 and an L2 penalty, and penalties of steps that were missed.

The penalty l1 |w|_1 + l2/2 |w|^2 is not part of the gradient: after its step, each column minimises it plus
h / (2 lr) times the square of its distance, h being the metric of the step (Duchi et al., 2011, for Adagrad). That is
w <- sign(w) max(abs(w) - lr l1 / h, 0) / (1 + lr l2 / h). A column without a gradient has proximal steps only, so those
that it missed can be made up for later: while h stands still, all of them at once.

Loops go over all columns, and those called ``_at`` over the ones listed. Formulas and loops are in one file, as numba
looks only there for what has changed since a loop was compiled.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, copysign, exp, expm1, log, log1p, sqrt
from typing import Any

import numpy as np

from ps2.ops.guards import readable
from ps2.ops.kernels import Int64s, kernel
from ps2.ops.steps import Scalars, in_dtype_of
from ps2.ops.table import Array

# A decay below this is none: 1 - 2**-54 rounds to 1.
NO_DECAY = 2.0**-54
# Steps of which a table of factors is made at least.
MIN_STEPS = 1 << 10


def constant(weight: Array, rate: float, l1: float, l2: float) -> Scalars:
    """Return what steps of one rate lr / h take for their penalties, in the dtype of the weight."""
    return in_dtype_of(weight, rate * l1, 1 + rate * l2, 0)


def scaled(weight: Array, l1: float, l2: float) -> Scalars:
    """Return what steps whose rate depends on the column take for their penalties, in the dtype of the weight."""
    return in_dtype_of(weight, l1, l2, 1, 0)


def growth(beta1: float, step: int) -> Array:
    """Return by which factor Adam's root of the squares is larger at steps 1, 2...: 1 / sqrt(1 - beta1**t), float64.

    As many as are not 1, and enough for ``step`` steps.
    """
    if beta1 == 0:
        return _growth(0.0, 0)
    until_rest = ceil(log(NO_DECAY) / log(beta1))
    return _growth(beta1, min(until_rest, 1 << max(step, MIN_STEPS).bit_length()))


@lru_cache(maxsize=4)
def _growth(beta1: float, count: int) -> Array:
    return readable(1 / np.sqrt(-np.expm1(np.arange(1, count + 1) * np.log(beta1)))) if count else readable(np.empty(0))


# -- one step ----------------------------------------------------------------------------------------------------------


@kernel
def _shrink(w: Any, threshold: Any, divisor: Any, zero: Any) -> Any:
    moved = w - threshold if w > zero else w + threshold
    return zero if abs(w) <= threshold else moved / divisor


@kernel
def _sgd(w: Any, g: Any, scalars: Scalars) -> Any:
    lr, threshold, divisor, zero = scalars
    return _shrink(w - lr * g, threshold, divisor, zero)


@kernel
def _momentum(w: Any, v: Any, g: Any, scalars: Scalars) -> tuple[Any, Any]:
    lr, decay, threshold, divisor, zero = scalars
    v = decay * v + g
    return _shrink(w - lr * v, threshold, divisor, zero), v


@kernel
def _adagrad(w: Any, s: Any, g: Any, scalars: Scalars) -> tuple[Any, Any]:
    lr, eps, l1, l2, one, zero = scalars
    s = s + g * g
    rate = lr / (sqrt(s) + eps)
    return _shrink(w - rate * g, rate * l1, one + rate * l2, zero), s


@kernel
def _rmsprop(w: Any, s: Any, g: Any, scalars: Scalars) -> tuple[Any, Any]:
    lr, rho, rest, eps, l1, l2, one, zero = scalars
    s = rho * s + rest * (g * g)
    rate = lr / (sqrt(s) + eps)
    return _shrink(w - rate * g, rate * l1, one + rate * l2, zero), s


@kernel
def _adam(w: Any, v: Any, s: Any, g: Any, scalars: Scalars) -> tuple[Any, Any, Any]:
    lr, beta1, rest1, beta2, rest2, unbias1, unbias2, eps, l1, l2, one, zero = scalars
    s = beta1 * s + rest1 * (g * g)
    v = beta2 * v + rest2 * g
    rate = lr / (sqrt(s / unbias1) + eps)
    return _shrink(w - rate * (v / unbias2), rate * l1, one + rate * l2, zero), v, s


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


# -- steps that were missed --------------------------------------------------------------------------------------------


@kernel
def _missed(w: float, rate: float, l1: float, l2: float, count: int) -> float:
    """Return what ``count`` proximal steps of one rate lr / h make of a weight, in float64.

    With a = 1 / (1 + rate l2), abs(w) becomes a**count abs(w) - (1 - a**count) l1 / l2, or 0 if that is negative.
    """
    if count <= 0 or w == 0:
        return w
    size, decay = abs(w), rate * l2
    if count * decay < NO_DECAY:
        size -= count * rate * l1
    else:
        power = -count * log1p(decay)
        size = size * exp(power) + expm1(power) * (l1 / l2)
    return 0.0 if size <= 0 else copysign(size, w)


@kernel
def _missed_scaled(w: float, s: float, at: int, last: int, scalars: Scalars) -> float:
    """Return what the proximal steps after ``at`` up to ``last`` make of a weight whose square ``s`` stands still.

    Adam's metric changes all the same while there are factors of its ``growth``, so those steps are taken one by one.
    """
    lr, growth, eps, l1, l2 = scalars
    if w == 0 or at >= last or (l1 == 0 and l2 == 0):
        return w
    size, root, cut, decay = abs(w), sqrt(np.float64(s)), lr * l1, lr * l2
    if root > 0:
        at = max(at, 0)  # whatever the row holds, no index is negative
        for t in range(at, min(last, growth.size)):
            h = root * growth[t] + eps
            size = (size * h - cut) / (h + decay)  # one division, where the formula above has three
            if size <= 0:
                return 0.0
        at = max(at, min(last, growth.size))
    size = _missed(size, lr / (root + eps), l1, l2, last - at)
    return 0.0 if size == 0 else copysign(size, w)


# The steps below take as scalars those of the full step, those of missed steps, and their number.


@kernel
def sgd_at(columns: Int64s, w: Array, at: Array, g: Array, scalars: Scalars) -> None:
    own, (rate, l1, l2), step = scalars
    for i in columns:
        if g[i] != 0:
            # Stored, which rounds it to the row's dtype.
            w[i] = _missed(w[i], rate, l1, l2, step - 1 - int(at[i]))
            w[i] = _sgd(w[i], g[i], own)
            at[i] = max(at[i], step)


@kernel
def momentum_at(columns: Int64s, w: Array, v: Array, at: Array, g: Array, scalars: Scalars) -> None:
    own, (rate, l1, l2), step = scalars
    for i in columns:
        if g[i] != 0:
            w[i] = _missed(w[i], rate, l1, l2, step - 1 - int(at[i]))
            w[i], v[i] = _momentum(w[i], v[i], g[i], own)
            at[i] = max(at[i], step)


@kernel
def adagrad_at(columns: Int64s, w: Array, s: Array, at: Array, g: Array, scalars: Scalars) -> None:
    own, missed, step = scalars
    for i in columns:
        if g[i] != 0:
            w[i] = _missed_scaled(w[i], s[i], int(at[i]), step - 1, missed)
            w[i], s[i] = _adagrad(w[i], s[i], g[i], own)
            at[i] = max(at[i], step)


@kernel
def rmsprop_at(columns: Int64s, w: Array, s: Array, at: Array, g: Array, scalars: Scalars) -> None:
    own, missed, step = scalars
    for i in columns:
        if g[i] != 0:
            w[i] = _missed_scaled(w[i], s[i], int(at[i]), step - 1, missed)
            w[i], s[i] = _rmsprop(w[i], s[i], g[i], own)
            at[i] = max(at[i], step)


@kernel
def adam_at(columns: Int64s, w: Array, v: Array, s: Array, at: Array, g: Array, scalars: Scalars) -> None:
    own, missed, step = scalars
    for i in columns:
        if g[i] != 0:
            w[i] = _missed_scaled(w[i], s[i], int(at[i]), step - 1, missed)
            w[i], v[i], s[i] = _adam(w[i], v[i], s[i], g[i], own)
            at[i] = max(at[i], step)


@kernel
def settle_plain(w: Array, at: Array, missed: Scalars, step: int) -> None:
    rate, l1, l2 = missed
    for i in range(w.size):
        w[i] = _missed(w[i], rate, l1, l2, step - int(at[i]))
        at[i] = max(at[i], step)


@kernel
def settle_plain_at(slots: Int64s, w: Array, at: Array, missed: Scalars, step: int) -> None:
    rate, l1, l2 = missed
    for i in slots:
        if i >= 0:
            w[i] = _missed(w[i], rate, l1, l2, step - int(at[i]))
            at[i] = max(at[i], step)


@kernel
def settle_scaled(w: Array, s: Array, at: Array, missed: Scalars, step: int) -> None:
    for i in range(w.size):
        w[i] = _missed_scaled(w[i], s[i], int(at[i]), step, missed)
        at[i] = max(at[i], step)


@kernel
def settle_scaled_at(slots: Int64s, w: Array, s: Array, at: Array, missed: Scalars, step: int) -> None:
    for i in slots:
        if i >= 0:
            w[i] = _missed_scaled(w[i], s[i], int(at[i]), step, missed)
            at[i] = max(at[i], step)
