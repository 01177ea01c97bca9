"""Server operations of deep models: steps of Adam, the optimizer of the layers.

A layer is a matrix of five rows: the weights, Adam's two moments, the sum of the workers' gradients, and the number of
steps, which all columns repeat. As a row of the matrix, the number of steps is part of checkpoints and replicas.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ps2.errors import ShapeError
from ps2.ops import steps
from ps2.ops.guards import check_length, readable
from ps2.ops.operands import COLUMNS, along
from ps2.ops.parallel import over_blocks
from ps2.ops.table import FLOATS, Array, Block, Range, Tiny, Values, op

Positive = Annotated[float, Range(above=0)]
Decay = Annotated[float, Range(at_least=0, below=1)]
NonNegative = Annotated[float, Range(at_least=0)]

# The time of a square root and two divisions per element, in additions (see ``over_blocks``).
STEP_COST = 4
# The rows of a layer. VELOCITY, SQUARE: the means of the gradients, and of their squares.
WEIGHT, VELOCITY, SQUARE, GRADIENT, STEPS = range(5)
# Steps are counted up to this number: float32 cannot count further, and Adam's bias correction is 1 by then.
MAX_STEPS = 1 << 24

Layer = Annotated[Block, Tiny(lambda dtype: np.zeros((5, 1), dtype))]


@op(writes=("layer",), dtypes=FLOATS)
def step_of_sum(
    layer: Layer,
    *,
    lr: Positive,
    beta1: Decay = 0.9,
    beta2: Decay = 0.999,
    eps: Positive = 1e-8,
    decay: NonNegative = 0.0,
) -> None:
    """Take a step of Adam (Kingma & Ba, 2015) with the summed gradient, and set the sum to 0.

    Args:
        eps: the constant that is added to the square root in the denominator.
        decay: the decoupled weight decay, multiplied by lr (Loshchilov & Hutter, 2019, Algorithm 2).
    """
    _step(layer, layer[GRADIENT], (lr, beta1, beta2, eps), decay)
    layer[GRADIENT] = 0


@op(writes=("layer",), dtypes=FLOATS)
def step_of_gradient(
    layer: Layer,
    gradient: Annotated[Values, along(COLUMNS)],
    *,
    lr: Positive,
    beta1: Decay = 0.9,
    beta2: Decay = 0.999,
    eps: Positive = 1e-8,
    decay: NonNegative = 0.0,
) -> None:
    """Take a step of Adam with the gradient of a single worker; see ``step_of_sum``."""
    _step(layer, readable(gradient), (lr, beta1, beta2, eps), decay)


def _step(layer: Array, gradient: Array, rates: tuple[float, float, float, float], decay: float) -> None:
    """Take a step; ``rates`` are lr, beta1, beta2 and eps."""
    if layer.shape[0] <= STEPS:
        raise ShapeError(f"layer: expected a matrix of {STEPS + 1} rows or more, got {layer.shape[0]}")
    check_length("gradient", gradient, layer.shape[1])
    if not layer.shape[1]:
        return
    weight, count = layer[WEIGHT], int(layer[STEPS, 0])
    if count < MAX_STEPS:
        layer[STEPS] = count = count + 1
    if decay:
        weight *= weight.dtype.type(1.0 - rates[0] * decay)
    rows = weight, layer[VELOCITY], layer[SQUARE], gradient
    over_blocks(steps.adam, rows, steps.adam_scalars(weight, *rates, count), cost=STEP_COST)
