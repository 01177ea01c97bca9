"""Fully connected layers: their shapes, and a forward and a backward pass. Needs no Spark and no servers.

A slope is the derivative of the loss by a value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.deep.kernels import activate, activate_backward
from ps2.array_types import Float32s

Array = npt.NDArray[Any]
# Takes the index of a layer, and its gradient as soon as it is known, from the last layer to the first; may keep it.
OnLayer = Callable[[int, Array], None]

# Batches of up to this many rows are multiplied row by row, because small products then use a single thread. Threads of
# BLAS wait for one another: on a busy machine, a product of 8 rows took 30 ms instead of 0.2 ms.
MAX_SINGLE_ROWS = 16


@dataclass(frozen=True)
class Layer:
    """A fully connected layer. Its weights have the shape (inputs + 1, outputs); the last row is the bias.

    Without a bias, the shape is (inputs, outputs).
    """

    name: str
    inputs: int
    outputs: int
    has_bias: bool = True

    @property
    def shape(self) -> tuple[int, int]:
        return self.inputs + self.has_bias, self.outputs

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def initial(self, rng: np.random.Generator) -> Float32s:
        """Return initial weights from Glorot's uniform distribution (Glorot & Bengio, 2010, Equation 16), biases 0."""
        bound = math.sqrt(6.0 / (self.inputs + self.outputs))
        weights = np.zeros(self.shape, np.float32)
        weights[: self.inputs] = rng.uniform(-bound, bound, (self.inputs, self.outputs))
        return weights


def stacked(prefix: str, inputs: int, sizes: Sequence[int]) -> tuple[Layer, ...]:
    """Return consecutive layers with these numbers of outputs."""
    widths = (inputs, *sizes)
    return tuple(Layer(f"{prefix}{index}", widths[index], size) for index, size in enumerate(sizes))


def product(x: Array, weights: Array) -> Array:
    """Return ``x @ weights`` for n rows, x of shape (n, inputs), row by row for a few rows (``MAX_SINGLE_ROWS``)."""
    return (x[:, None] @ weights)[:, 0] if len(x) <= MAX_SINGLE_ROWS else x @ weights


class Stack:
    """Consecutive layers. The last row of each layer is its bias; the last layer has no activation."""

    def __init__(
        self, layers: Sequence[Array], dropout: float = 0.0, seed: int | None = None, first_index: int = 0
    ) -> None:
        """``seed``: of dropout (None: no dropout); ``first_index``: of the first layer in ``Architecture.layers``."""
        self._layers, self._first_index = layers, first_index
        self._keep = 1.0 if seed is None else 1.0 - dropout
        self._seed = seed or 0
        self._inputs: list[Array] = []

    def forward(self, x: Array) -> Array:
        """Return the outputs for n rows, shape (n, outputs of the last layer); store the inputs of the layers."""
        self._inputs = []
        for index, layer in enumerate(self._layers):
            self._inputs.append(x)
            z = product(x, layer[:-1])
            if index == len(self._layers) - 1:
                z += layer[-1]
            else:
                activate(z, layer[-1], self._keep, (self._seed * 64 + index) << 32 & (2**63 - 1))
            x = z
        return x

    def backward(self, slopes: Array, on_layer: OnLayer) -> Array:
        """Return the slopes of the inputs, shape (n, inputs), given those of the outputs, which are overwritten."""
        for index in reversed(range(len(self._layers))):
            layer, x = self._layers[index], self._inputs[index]
            on_layer(self._first_index + index, affine_gradient(x, slopes))
            slopes = slopes @ layer[:-1].T
            if index:
                activate_backward(x, self._keep, slopes)
        return slopes


def affine_gradient(x: Array, slopes: Array) -> Array:
    """Return the gradient of a layer with a bias: the inputs x, (n, inputs), and the slopes of the outputs."""
    gradient = np.empty((x.shape[1] + 1, slopes.shape[1]), x.dtype)
    np.matmul(x.T, slopes, out=gradient[:-1])
    gradient[-1] = slopes.sum(axis=0)
    return gradient


def on_later_layer(on_layer: OnLayer, first_index: int, index: int, gradient: Array) -> None:
    """Call ``on_layer`` for a layer of a part whose layers have the indices from ``first_index`` on."""
    on_layer(first_index + index, gradient)
