"""``SharedLayers``: the layers of a model on the servers, one matrix for each layer.

So the gradient of a layer can leave while those of other layers are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ps2.algorithms.deep.architecture import Architecture, Layer
from ps2.array_types import Float32s
from ps2.client.batch import batch
from ps2.client.dcv import DCV
from ps2.client.embedding_settings import LARGEST_SQUARED
from ps2.client.matrix import DCVMatrix
from ps2.errors import OutOfRangeError

# Rows of a layer's matrix, and how many there are: see ps2.algorithms.deep.ops.
WEIGHT, GRADIENT, ROWS = 0, 3, 5
# The rows that files hold: all except the gradient.
SAVED = (0, 1, 2, 4)


@dataclass(frozen=True)
class LayerStep:
    """Hyperparameters of a step of Adam.

    Attributes:
        lr: learning rate.
        decay: decoupled decay of the weights.
    """

    lr: float
    decay: float = 0.0


@dataclass(frozen=True, eq=False)
class SharedLayers:
    """Handles to the layers on the servers; picklable.

    Attributes:
        layers: names and shapes of the layers.
        matrices: the matrix of each layer, with five rows.
    """

    layers: tuple[Layer, ...]
    matrices: tuple[DCVMatrix, ...]

    @staticmethod
    def new(architecture: Architecture, weights: Sequence[Float32s], name: str = "") -> SharedLayers:
        """Put layers on the servers of the active context.

        Args:
            weights: initial weights of each layer.
            name: name by which ``existing`` finds them; "": they have no name, and are freed with their handles.
        """
        layers = architecture.layers()
        vectors = [DCV.dense(layer.size, ROWS, name=f"{name}/{layer.name}" if name else None) for layer in layers]
        made = SharedLayers(layers, tuple(vector.matrix() for vector in vectors))
        made.push(weights)
        return made

    @staticmethod
    def existing(architecture: Architecture, ps: Any, name: str) -> SharedLayers:
        """Return layers that the fleet of a context has by that name.

        Raises:
            NotFoundError: it has none.
        """
        layers = architecture.layers()
        return SharedLayers(layers, tuple(ps.vector(f"{name}/{layer.name}").matrix() for layer in layers))

    def push(self, weights: Sequence[Float32s]) -> None:
        """Overwrite all weights."""
        with batch():
            for matrix, weight in zip(self.matrices, weights, strict=True):
                matrix.push([WEIGHT], weight.reshape(1, -1))

    def pull(self) -> list[Float32s]:
        """Read all weights, in the order of ``layers``: one request per server."""
        with batch():
            found = [matrix.pull([WEIGHT]) for matrix in self.matrices]
        return [one.result().reshape(layer.shape) for one, layer in zip(found, self.layers, strict=True)]

    def state(self) -> list[Float32s]:
        """Read weights and the optimizer's state: of each layer, shape (4, inputs + 1, outputs)."""
        with batch():
            found = [matrix.pull(SAVED) for matrix in self.matrices]
        return [one.result().reshape(-1, *layer.shape) for one, layer in zip(found, self.layers, strict=True)]

    def put_state(self, state: Sequence[Float32s]) -> None:
        """Overwrite what ``state`` reads."""
        with batch():
            for matrix, rows in zip(self.matrices, state, strict=True):
                matrix.push(SAVED, rows.reshape(len(SAVED), -1))

    def add(self, number: int, gradient: Float32s, wait: bool = False) -> None:
        """Add a worker's gradient of a layer to the sum on the servers.

        Args:
            number: number of the layer.
            gradient: of the layer's shape.
            wait: False: return while the gradient travels.

        Raises:
            OutOfRangeError: a number of the gradient is NaN, or too large for the optimizer.
        """
        self._check(number, gradient)
        self.matrices[number].add([GRADIENT], gradient.reshape(1, -1), wait=wait)

    def step_with(self, number: int, gradient: Float32s, step: LayerStep, wait: bool = False) -> None:
        """Take a step of a layer with one worker's gradient; arguments and errors are those of ``add``."""
        self._check(number, gradient)
        self.matrices[number].apply(
            "deep.step_of_gradient", wait=wait, gradient=gradient.reshape(-1), lr=step.lr, decay=step.decay
        )

    def step(self, step: LayerStep) -> None:
        """Take a step of all layers with the sums of the workers' gradients."""
        with batch():
            for matrix in self.matrices:
                matrix.apply("deep.step_of_sum", lr=step.lr, decay=step.decay)

    def forget_gradients(self) -> None:
        """Set the sums of gradients to 0: a training that ended early may have left parts of a step."""
        with batch():
            for matrix, layer in zip(self.matrices, self.layers, strict=True):
                matrix.push([GRADIENT], np.zeros((1, layer.size), np.float32))

    def _check(self, number: int, gradient: Float32s) -> None:
        fits = np.abs(gradient) <= LARGEST_SQUARED
        if not fits.all():
            raise OutOfRangeError(
                f"layer {self.layers[number].name!r}: expected gradients of at most {LARGEST_SQUARED:g}, whose squares "
                f"are added up, got {gradient[~fits][0]}: scale the numbers of the rows, or lower the learning rates"
            )

    def free(self) -> None:
        """Free the layers on the servers."""
        for matrix in self.matrices:
            matrix.free()
