"""A deep model, whose embeddings and layers are on the servers, and its predictor for tasks."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ps2.algorithms.deep.architecture import Architecture
from ps2.algorithms.deep.batches import batch_of
from ps2.algorithms.deep.layers import Layer
from ps2.algorithms.deep.network import tower
from ps2.algorithms.deep.scoring import check_fields, margins_of, tower_fields
from ps2.algorithms.frame.array_files import ArrayFiles, ModelFiles
from ps2.array_types import Float32s, Float64s
from ps2.client.batch import batch
from ps2.client.dcv import DCV
from ps2.client.embedding_settings import MAX_GRADIENT
from ps2.client.embedding_table import EmbeddingTable
from ps2.client.matrix import DCVMatrix, own
from ps2.data.hashing import FieldHasher
from ps2.data.key_rows import KeyRows, check_margins
from ps2.errors import CheckpointCorruptError, OutOfRangeError

# Two rows of a layer's matrix, and the number of rows: see ``ops.py``.
WEIGHT, GRADIENT, ROWS = 0, 3, 5
# The rows of a layer's matrix in the files of a saved model: all except the gradient.
SAVED = (0, 1, 2, 4)
# The rows of a copy of the rows ``SAVED``, after the rows of the layer.
COPY = tuple(range(ROWS, ROWS + len(SAVED)))
# The folder of the table in the folder of a saved model.
TABLE = "table"


@dataclass(frozen=True, eq=False)
class SharedLayers:
    """Handles to the layers on the servers; picklable.

    Each layer has its own matrix (see ``ops.py``), so that a worker can send a gradient before it knows the others.
    """

    layers: tuple[Layer, ...]
    matrices: tuple[DCVMatrix, ...]

    @staticmethod
    def new(
        architecture: Architecture, weights: Sequence[Float32s], name: str, with_copy: bool = False
    ) -> SharedLayers:
        """Allocate layers on the servers of the active context, with these weights, and with room for a copy."""
        layers, rows = architecture.layers(), ROWS + (len(COPY) if with_copy else 0)
        vectors = [DCV.dense(layer.size, rows, name=f"{name}/{layer.name}") for layer in layers]
        shared_layers = SharedLayers(layers, tuple(vector.matrix() for vector in vectors))
        shared_layers._push([WEIGHT], weights)
        return shared_layers

    @staticmethod
    def existing(architecture: Architecture, ps: Any, name: str) -> SharedLayers:
        """Return the layers of the model with this name on a context's fleet; raise NotFoundError if there are none."""
        layers = architecture.layers()
        return SharedLayers(layers, tuple(ps.vector(f"{name}/{layer.name}").matrix() for layer in layers))

    def pull(self) -> list[Float32s]:
        """Pull all weights, in the order of ``layers``, in one request per server."""
        return [rows[0] for rows in self._pull([WEIGHT])]

    def state(self) -> list[Float32s]:
        """Pull the rows ``SAVED`` of each layer: weights and optimizer's state, shape (4, inputs + 1, outputs)."""
        return self._pull(SAVED)

    def put_state(self, state: Sequence[Float32s]) -> None:
        """Overwrite the weights and the optimizer's states with the result of ``state``."""
        self._push(SAVED, state)

    def store_copy(self) -> None:
        """Copy the weights and the optimizer's states, on the servers."""
        self._push(COPY, self._pull(SAVED))

    def restore_copy(self) -> None:
        """Overwrite the weights and the optimizer's states with their copy."""
        self._push(SAVED, self._pull(COPY))

    def add(self, index: int, gradient: Float32s) -> None:
        """Add a worker's gradient to the sum, without waiting; raise OutOfRangeError if it has NaN or is too large."""
        self._check(index, gradient)
        self.matrices[index].add([GRADIENT], gradient.reshape(1, -1), wait=False)

    def step_with(self, index: int, gradient: Float32s, lr: float, decay: float) -> None:
        """Take a step of a layer's optimizer with one worker's gradient; ``decay``: weight decay; see also ``add``."""
        self._check(index, gradient)
        self.matrices[index].apply(
            "deep.step_of_gradient", wait=False, gradient=gradient.reshape(-1), lr=lr, decay=decay
        )

    def step(self, lr: float, decay: float) -> None:
        """Take a step of the optimizer for all layers, with the sums of the workers' gradients."""
        with batch():
            for matrix in self.matrices:
                matrix.apply("deep.step_of_sum", lr=lr, decay=decay)

    def forget_gradients(self) -> None:
        """Set the sums of gradients to 0: they have values if an earlier training ended before a step."""
        self._push([GRADIENT], [np.zeros(layer.size, np.float32) for layer in self.layers])

    def free(self) -> None:
        """Free the layers on the servers."""
        for matrix in self.matrices:
            matrix.free()

    def _push(self, rows: Sequence[int], values: Sequence[Float32s]) -> None:
        with batch():
            for matrix, layer_values in zip(self.matrices, values, strict=True):
                matrix.push(rows, layer_values.reshape(len(rows), -1))

    def _pull(self, rows: Sequence[int]) -> list[Float32s]:
        with batch():
            futures = [matrix.pull(rows) for matrix in self.matrices]
        return [future.result().reshape(-1, *layer.shape) for future, layer in zip(futures, self.layers, strict=True)]

    def _check(self, index: int, gradient: Float32s) -> None:
        is_usable = np.abs(gradient) <= MAX_GRADIENT
        if not is_usable.all():
            raise OutOfRangeError(
                f"layer {self.layers[index].name!r}: expected gradients of at most {MAX_GRADIENT:g}, because their "
                f"squares are added up, got {gradient[~is_usable][0]}: scale the values of the rows, or lower the "
                "learning rates"
            )


@dataclass(frozen=True, eq=False)
class DeepModel(ArrayFiles):
    """A model on the servers of the active context; a later driver finds it by its name.

    The files of a saved model have the layers and the table of embeddings, with their optimizers' states.

    Attributes:
        hasher: converts the columns of rows to keys.
        layers: the layers on the servers.
        table: the embeddings.
        name: the first part of the names of all matrices.
    """

    _FILES = ModelFiles(
        "ps2.deep.v1", "a deep model", {}, {"architecture": Architecture.from_json, "hasher": FieldHasher.from_json}
    )

    architecture: Architecture
    hasher: FieldHasher
    layers: SharedLayers
    table: EmbeddingTable
    name: str

    @staticmethod
    def new(
        architecture: Architecture, hasher: FieldHasher, settings: Mapping[str, Any], seed: int, name: str = ""
    ) -> DeepModel:
        """Allocate a model in the active context; ``settings``: of its ``EmbeddingTable``.

        With a name, the model stays until ``free()``; without one, it has a ``new_name``, and ends with its handles.
        """
        is_named, name = bool(name), name or new_name(architecture)
        table = EmbeddingTable(**settings, name=name)
        layers = SharedLayers.new(architecture, architecture.initial(seed), name, bool(settings.get("withCopy")))
        model = DeepModel(architecture, hasher, layers, table, name)
        if not is_named:
            model.own()
        return model

    @property
    def matrices(self) -> tuple[DCVMatrix, ...]:
        """The matrices on the servers."""
        return self.table.matrix, *self.layers.matrices

    def own(self) -> None:
        """Free each matrix when its handle is garbage-collected."""
        for matrix in self.matrices:
            own(matrix)

    def predictor(self) -> DeepPredictor:
        """Return a predictor with the current weights of the layers."""
        return DeepPredictor(self.architecture, self.hasher, self.table, self.layers.pull())

    def free(self) -> None:
        """Free layers and embeddings on the servers."""
        self.layers.free()
        self.table.free()

    def export(self, path: str, since: Any = None, arrays: Mapping[str, Any] | None = None) -> Any:
        """Write an export for ``ps2.serving.Scorer``; see ``EmbeddingTable.export``; ``arrays``: more dense arrays."""
        dense = {layer.name: weight for layer, weight in zip(self.layers.layers, self.layers.pull(), strict=True)}
        dense |= arrays or {}
        config = {"architecture": self.architecture.to_json()}
        kind, hasher = self.architecture.kind, self.hasher.to_json()
        return self.table.export(path, since, kind=kind, config=config, hasher=hasher, dense=dense)

    def write(self, url: str) -> dict[str, Any]:
        self.table.save(f"{url}/{TABLE}")
        return super().write(url)

    def _arrays_to_write(self) -> dict[str, Any]:
        return {layer.name: rows for layer, rows in zip(self.layers.layers, self.layers.state(), strict=True)}

    @classmethod
    def _arrays_to_read(cls, content: Any, values: Mapping[str, Any]) -> dict[str, str]:
        return {layer.name: "f" for layer in values["architecture"].layers()}

    @classmethod
    def _from_files(cls, path: str, url: str, arrays: dict[str, Any], values: dict[str, Any]) -> DeepModel:
        architecture = values["architecture"]
        for layer in architecture.layers():
            expected, shape = (len(SAVED), *layer.shape), arrays[layer.name].shape
            if shape != expected:
                raise CheckpointCorruptError(f"{path}/{layer.name}.npy: expected shape {expected}, got {shape}")
        state, name = list(arrays.values()), new_name(architecture)
        table = EmbeddingTable.load(f"{url}/{TABLE}", name)
        layers = SharedLayers.new(architecture, [rows[0] for rows in state], name)
        layers.put_state(state)
        model = DeepModel(architecture, values["hasher"], layers, table, name)
        model.own()
        return model


def new_name(architecture: Architecture) -> str:
    """Return a random, unique name for a model."""
    return f"{architecture.kind}-{uuid.uuid4().hex[:12]}"


@dataclass(frozen=True, eq=False)
class DeepPredictor:
    """Predicts rows in a task, where it pulls each distinct key of a batch once; picklable."""

    architecture: Architecture
    hasher: FieldHasher
    table: EmbeddingTable
    weights: Sequence[Float32s]

    def margins(self, rows: KeyRows) -> Float64s:
        """Return the margin of each row, float64 of shape (n,); for two towers, the cosine of their vectors."""
        if not len(rows):
            return np.zeros(0)
        check_fields(rows, self.architecture.fields)
        batch, keys = batch_of(rows)
        return margins_of(self.architecture, self.weights, batch, self.table.pullDistinct(keys))

    def tower(self, batch: pa.RecordBatch, right: bool) -> Float32s:
        """Return the vectors of one tower, float32 of shape (n, size), for rows with the tower's columns."""
        rows, keys = batch_of(tower_fields(self.hasher, self.architecture.deep, right).rows(batch))
        vectors = tower(self.architecture, self.weights, right, rows, self.table.pullDistinct(keys))
        check_margins(vectors.sum(axis=1))  # a sum is not finite if a value is not
        return vectors
