"""``Stack``: fully connected layers with ReLU and dropout, forward and backward. BLAS computes the products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.deep.kernels import activate, activate_slopes

Array = npt.NDArray[Any]
# Up to this many rows are multiplied one by one, each in one thread. Threads of BLAS wait for one another: on a busy
# machine, a product of 8 rows that takes 0.2 ms took 30 ms.
SINGLE_ROWS = 16
# Called with a layer's number and its gradient, as soon as that is computed: the top layer's first.
OnLayer = Callable[[int, Array], None]


class Stack:
    """Layers on top of each other; the last one has no activation.

    Each layer is an array of shape (inputs + 1, outputs), whose last row is the bias.
    """

    def __init__(self, layers: Sequence[Array], dropout: float = 0.0, seed: int | None = None) -> None:
        """
        Args:
            layers: the weights, which are only read.
            dropout: share of a hidden layer's outputs that is dropped.
            seed: seed of dropout; None: nothing is dropped.
        """
        self._layers = layers
        self._keep = 1.0 if seed is None else 1.0 - dropout
        self._seed = seed or 0
        self._inputs: list[Array] = []

    def forward(self, x: Array) -> Array:
        """Return the outputs of n rows, shape (n, outputs of the last layer); keep what ``backward`` needs.

        Args:
            x: shape (n, inputs of the first layer).
        """
        self._inputs = []
        for number, layer in enumerate(self._layers):
            self._inputs.append(x)
            z = (x[:, None] @ layer[:-1])[:, 0] if len(x) <= SINGLE_ROWS else x @ layer[:-1]
            if number == len(self._layers) - 1:
                z += layer[-1]
            else:
                activate(z, layer[-1], self._keep, (self._seed * 64 + number) << 32 & (2**63 - 1))
            x = z
        return x

    def backward(self, slopes: Array, on_layer: OnLayer) -> Array:
        """Return the derivative of the loss by the inputs, shape (n, inputs).

        Args:
            slopes: the derivative of the loss by the outputs; overwritten.
            on_layer: called with each layer's gradient, the top layer's first. It may keep the array.
        """
        for number in reversed(range(len(self._layers))):
            layer, x = self._layers[number], self._inputs[number]
            gradient = np.empty(layer.shape, layer.dtype)
            np.matmul(x.T, slopes, out=gradient[:-1])
            gradient[-1] = slopes.sum(axis=0)
            on_layer(number, gradient)
            slopes = slopes @ layer[:-1].T
            if number:
                activate_slopes(x, self._keep, slopes)
        return slopes
