"""The maths of deep models: margins, losses and gradients of a batch of rows. Needs no Spark and no servers.

A batch has n rows with u distinct keys. ``table`` has a row of ``architecture.width`` weights for each distinct key:
the linear weight, if there is one, and then the vector. A slope is the derivative of the loss by a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from ps2.algorithms.deep.architecture import Architecture
from ps2.algorithms.deep.batches import Batch, EmbeddedRows, Slopes
from ps2.algorithms.deep.kernels import embed, embed_backward
from ps2.algorithms.deep.layers import OnLayer, Stack, on_later_layer
from ps2.array_types import Int64s

Array = npt.NDArray[Any]

# A tower's vectors are divided by their Euclidean norms, or by this constant if it is larger.
MIN_NORM = 1e-12


class Pass:
    """A forward and a backward pass: ``margins`` and ``backward``, or ``towers`` and ``backward_towers``."""

    def __init__(
        self, architecture: Architecture, layers: Sequence[Array], batch: Batch, table: Array, seed: int | None = None
    ) -> None:
        """Embed a batch; ``table`` has its distinct keys, shape (u, width). ``seed`` None: no dropout."""
        self._architecture, self._batch, self._table = architecture, batch, table
        sizes, dtype, n = architecture, table.dtype, len(batch)
        self._linear, self._pairs = np.empty(n, dtype), np.empty(n, dtype)
        self._sums = np.empty((n, sizes.k), dtype)
        self._inputs = np.empty((n, sizes.input_fields * sizes.k), dtype)
        rows = batch.indptr, batch.inverse, batch.field, batch.x
        embed(*rows, table, sizes.num_linear, sizes.input_fields, self._linear, self._sums, self._pairs, self._inputs)
        self._rows = EmbeddedRows(batch, table, sizes.num_linear, self._inputs)
        dropout = architecture.dropout
        # Each stack, and the columns of ``_inputs`` that are its inputs.
        if architecture.has_towers:
            half, num_left = len(architecture.hidden), architecture.deep * architecture.k
            left = Stack(layers[:half], dropout, seed), slice(0, num_left)
            right = Stack(layers[half:], dropout, None if seed is None else seed + 1, half), slice(num_left, None)
            self._stacks: tuple[tuple[Stack, slice], ...] = (left, right)
        else:
            num_layers = len(architecture.hidden) + 1
            self._stacks = ((Stack(layers[:num_layers], dropout, seed), slice(None)),)
            # The weights of the interaction, and what its backward pass needs of its forward pass.
            self._weights: Sequence[Array] = layers[num_layers:]
            self._saved: Any = None
        # For each tower, the vectors divided by their norms, and the norms.
        self._units: list[tuple[Array, Array]] = []

    def margins(self) -> Array:
        """Return the margin of each row, shape (n,). For towers: the cosine of their vectors / temperature."""
        if self._architecture.has_towers:
            left, right = self.towers()
            return np.einsum("ij,ij->i", left, right) / left.dtype.type(self._architecture.temperature)
        stack, _ = self._stacks[0]
        margins = self._linear
        if interaction := self._architecture.interaction:
            with np.errstate(over="ignore", invalid="ignore"):  # the margin is not finite in these cases
                terms, self._saved = interaction.forward(self._weights, self._rows)
                margins = margins + terms
        margins = stack.forward(self._inputs)[:, 0] + margins
        if self._architecture.has_pairs:
            margins += self._pairs
        return margins

    def towers(self) -> tuple[Array, Array]:
        """Return the vectors of both towers for each row, of norm 1, each of shape (n, size of the last layer)."""
        self._units = [_normalize(stack.forward(self._inputs[:, columns])) for stack, columns in self._stacks]
        return self._units[0][0], self._units[1][0]

    def backward(self, slopes: Array, on_layer: OnLayer) -> Array:
        """Return the gradient with respect to the table, given the slopes of the margins."""
        if self._architecture.has_towers:
            (left, _), (right, _) = self._units
            cosine_slopes = slopes[:, None] / left.dtype.type(self._architecture.temperature)
            return self.backward_towers(cosine_slopes * right, cosine_slopes * left, on_layer)
        stack, _ = self._stacks[0]
        all_slopes = Slopes(slopes, stack.backward(slopes[:, None].copy(), on_layer), np.zeros_like(self._table))
        if interaction := self._architecture.interaction:
            on_weights = partial(on_later_layer, on_layer, len(self._architecture.hidden) + 1)
            interaction.backward(self._weights, self._rows, self._saved, all_slopes, on_weights)
        return self._table_gradient(all_slopes)

    def backward_towers(self, left: Array, right: Array, on_layer: OnLayer) -> Array:
        """Return the gradient with respect to the table, given the slopes of the left and right towers' vectors."""
        input_slopes = np.empty_like(self._inputs)
        for slopes, (unit, norm), (stack, columns) in zip((left, right), self._units, self._stacks, strict=True):
            radial = np.einsum("ij,ij->i", slopes, unit)[:, None]
            input_slopes[:, columns] = stack.backward((slopes - radial * unit) / norm, on_layer)
        no_slopes = np.zeros(len(self._batch), self._table.dtype)
        return self._table_gradient(Slopes(no_slopes, input_slopes, np.zeros_like(self._table)))

    def _table_gradient(self, slopes: Slopes) -> Array:
        """Add what comes by the margins and the layers' inputs to the slopes of the table, and return them."""
        batch, sizes = self._batch, self._architecture
        rows = batch.indptr, batch.inverse, batch.field, batch.x, self._table
        slope_arrays = np.ascontiguousarray(slopes.margins), self._sums, slopes.inputs
        embed_backward(*rows, sizes.num_linear, sizes.input_fields, *slope_arrays, sizes.has_pairs, slopes.table)
        return slopes.table


def tower(architecture: Architecture, layers: Sequence[Array], right: bool, batch: Batch, table: Array) -> Array:
    """Return a tower's vectors, shape (n, size of the last layer); the batch has only its fields, numbered from 0."""
    half, k, n = len(architecture.hidden), architecture.k, len(batch)
    fields = architecture.fields - architecture.deep if right else architecture.deep
    inputs = np.empty((n, fields * k), table.dtype)
    unused = np.empty(n, table.dtype), np.empty((n, k), table.dtype), np.empty(n, table.dtype)
    embed(batch.indptr, batch.inverse, batch.field, batch.x, table, 0, fields, *unused, inputs)
    return _normalize(Stack(layers[half:] if right else layers[:half]).forward(inputs))[0]


def logistic_loss(margins: Array, labels: Array, weights: Array | None, divisor: float = 1.0) -> tuple[float, Array]:
    """Return the summed logistic loss, and the slopes of the margins, divided by ``divisor``, shape (n,).

    The division is in float64, because weights can exceed float32's range.
    """
    z = margins.astype(np.float64)
    losses, slopes = np.logaddexp(0.0, z) - labels * z, expit(z) - labels
    if weights is not None:
        losses, slopes = losses * weights, slopes * weights
    return float(losses.sum()), (slopes / divisor).astype(margins.dtype)


@dataclass(frozen=True, eq=False)
class PositivePairs:
    """n rows that are positive pairs of a user and an item.

    Attributes:
        items: an id of each row's item, int64 of shape (n,). Rows with the same item are not negatives of each other.
        log_shares: the logarithm of the fraction of all rows with the item, shape (n,), which is subtracted from the
            margins.
        weights: the weights of the rows, shape (n,); None: all weights are 1.
    """

    items: Int64s
    log_shares: Array
    weights: Array | None = None


def softmax_loss(
    left: Array, right: Array, pairs: PositivePairs, temperature: float, divisor: float = 1.0
) -> tuple[float, Array, Array]:
    """Return the sampled softmax loss whose negatives are the batch's other items (Yi et al., 2019, Equations 4 to 6).

    ``left`` and ``right`` are the towers' vectors, of norm 1, shape (n, d). Return the summed loss of the batch, and
    the slopes of both, divided by ``divisor``.
    """
    z = (left @ right.T) / left.dtype.type(temperature)
    z -= pairs.log_shares.astype(z.dtype)
    is_same_item = pairs.items[:, None] == pairs.items[None, :]
    np.fill_diagonal(is_same_item, False)
    z[is_same_item] = -np.inf
    z -= z.max(axis=1, keepdims=True)
    positive = z.diagonal().copy()
    np.exp(z, out=z)
    totals = z.sum(axis=1)
    losses = np.log(totals) - positive
    z /= totals[:, None]
    z[np.diag_indices_from(z)] -= 1
    scale = np.full(len(z), 1.0 / (temperature * divisor))
    if pairs.weights is not None:
        losses, scale = losses * pairs.weights, pairs.weights / divisor / temperature
    z *= scale[:, None].astype(z.dtype)
    return float(losses.sum(dtype=np.float64)), z @ right, z.T @ left


def _normalize(vectors: Array) -> tuple[Array, Array]:
    """Return the vectors divided by their norms (see ``MIN_NORM``), and the norms, shape (n, 1)."""
    norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))[:, None]
    norms = np.maximum(norms, vectors.dtype.type(MIN_NORM))
    return vectors / norms, norms
