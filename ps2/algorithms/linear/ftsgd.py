"""FTSGD on a worker: local steps whose momentum follows the angle between gradients (FTSGD, Algorithm 3), or plain
ones (Algorithm 2).

``is_gaussian`` is its gate; why it asks for two things is in ``docs/decisions/0011-ftsgd-gate.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.array_types import Float64s
from ps2.errors import ShapeError

Array = npt.NDArray[Any]

SHARE = 0.997
DEVIATIONS = 3.0
LARGEST_RATIO = 0.25
# Relative difference that rounding may make between equal numbers.
_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class LocalResult:
    """The result of local steps.

    Attributes:
        w: float64, shape (k,).
        gradient: the last one; the old one of the next call.
        oscillated: whether two gradients in a row had turned back, which ended the steps early.
        momenta: of the steps that were taken.
        shrink: what they make of a weight of 1 that has only a penalty.
    """

    w: Float64s
    gradient: Float64s
    oscillated: bool
    momenta: list[float]
    shrink: float = 1.0


def ftsgd(  # noqa: PLR0913
    gradient_of: Callable[[Float64s], Float64s],
    w: Array,
    old_gradient: Float64s | None,
    alpha: float,
    beta: float,
    local_steps: int,
    l2: float = 0.0,
) -> LocalResult:
    """Take local steps v = alpha (1 + cos) v + beta / 2 g, w = w - v, with v = 0 before (FTSGD, equation 6).

    cos is that of the angle between a gradient and the one before it. The first time that it is negative, the momentum
    alpha is 0 in that step; the second time in a row, the learning rate must be too large, and the steps end without
    another one.

    Args:
        gradient_of: the gradient, float64, shape (k,), at some weights, of rows that it chooses itself.
        w: float32 or float64, shape (k,); not changed.
        old_gradient: the last one of the call before; None: there was none, which counts as a right angle.
        alpha: momentum.
        beta: learning rate.
        local_steps: at most.
        l2: strength of the L2 penalty, which the gradients contain.
    """
    w, old = np.array(w, np.float64), old_gradient
    velocity = np.zeros_like(w)
    turned = False
    momenta: list[float] = []
    for _ in range(local_steps):
        gradient = gradient_of(w)
        similarity = 0.0 if old is None else cosine(old, gradient)
        old = gradient
        if similarity < 0.0 and turned:
            return LocalResult(w, gradient, True, momenta, shrunk(momenta, beta / 2.0 * l2))
        turned = similarity < 0.0
        momentum = 0.0 if turned else alpha * (1.0 + similarity)
        momenta.append(momentum)
        velocity = momentum * velocity + beta / 2.0 * gradient
        w -= velocity
    return LocalResult(w, np.zeros_like(w) if old is None else old, False, momenta, shrunk(momenta, beta / 2.0 * l2))


def descend(
    gradient_of: Callable[[Float64s], Float64s], w: Array, rate: float, local_steps: int, l2: float = 0.0
) -> LocalResult:
    """Take local steps w = w - rate g, without momentum (FTSGD, Algorithm 2).

    Args:
        gradient_of, w, l2: as of ``ftsgd``.
        rate: learning rate.
        local_steps: how many.
    """
    w = np.array(w, np.float64)
    gradient = np.zeros_like(w)
    for _ in range(local_steps):
        gradient = gradient_of(w)
        w -= rate * gradient
    momenta = [0.0] * local_steps
    return LocalResult(w, gradient, False, momenta, shrunk(momenta, rate * l2))


def shrunk(momenta: Sequence[float], rate: float) -> float:
    """Return the factor by which steps shrink a weight with only a penalty; ``rate``: beta / 2 times its l2."""
    scale, velocity = 1.0, 0.0
    for momentum in momenta:
        velocity = momentum * velocity + rate * scale
        scale -= velocity
    return scale


def cosine(u: Array, v: Array) -> float:
    """Return the cosine of the angle between two vectors (FTSGD, equation 3); 0 if one of them is 0."""
    return cosine_of(float(np.dot(u, v)), float(np.linalg.norm(u)), float(np.linalg.norm(v)))


def cosine_of(dot: float, norm_u: float, norm_v: float) -> float:
    """Return the cosine by inner product and norms, in [-1, 1]; 0 if a vector is 0, NaN if one is too long."""
    if norm_u == 0.0 or norm_v == 0.0:
        return 0.0
    if not math.isfinite(dot) or not math.isfinite(norm_u + norm_v):
        return math.nan
    return min(1.0, max(-1.0, dot / norm_u / norm_v))


def spread(values: Array) -> tuple[float, float]:
    """Return mean and standard deviation, with as many degrees of freedom as values (FTSGD, Table I)."""
    return float(np.mean(values)), float(np.std(values))


def is_gaussian(similarities: Array) -> bool:
    """Return whether workers agree enough for several local steps (FTSGD's 68-95-99.7 rule, section III-B).

    Args:
        similarities: shape (workers,): the cosine between each worker's weights and the mean weights.

    Returns:
        Whether at least 99.7% lie within 3 standard deviations of the mean, and the standard deviation is at most a
        quarter of the mean's size. Equal values, but for rounding, do if they are not 0; NaN does not.

    Raises:
        ShapeError: there is no value, or more than one dimension.
    """
    values = np.asarray(similarities, np.float64)
    if values.ndim != 1 or not len(values):
        raise ShapeError(f"similarities: expected shape (workers,), at least one, got {values.shape}")
    if not np.isfinite(values).all():
        return False
    mean, deviation = spread(values)
    if deviation <= _ROUNDING * abs(mean):
        return mean != 0.0
    within = np.abs(values - mean) <= DEVIATIONS * deviation * (1.0 + _ROUNDING)
    return bool(np.mean(within) >= SHARE and deviation <= LARGEST_RATIO * abs(mean))
