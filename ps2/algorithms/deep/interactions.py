"""The interactions of deep models: what a margin has beside its linear weights and its fully connected layers.

An interaction is a frozen dataclass of sizes, whose weights are layers on the servers like all others. It computes a
term of the margin from the fields' vectors, or changes the vectors before the layers read them. A row has m fields, and
their vectors have k numbers: x_0 of DCN V2, X^0 of xDeepFM, the e_m of AutoInt.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ps2.algorithms.deep.batches import EmbeddedRows, Slopes
from ps2.algorithms.deep.kernels import add_rows, multiply_pairs, multiply_pairs_backward
from ps2.algorithms.deep.layers import (
    Layer,
    OnLayer,
    Stack,
    affine_gradient,
    on_later_layer,
    product,
    stacked,
)
from ps2.errors import ConfigError

Array = npt.NDArray[Any]


class Interaction(ABC):
    """A part of a model between the embeddings and the margin. Instances hold sizes only."""

    @abstractmethod
    def layers(self, fields: int, k: int) -> tuple[Layer, ...]:
        """Return the layers for rows with this number of fields, whose vectors have k numbers."""

    @abstractmethod
    def forward(self, weights: Sequence[Array], rows: EmbeddedRows) -> tuple[Array, Any]:
        """Return the term of each row's margin, shape (n,), and what ``backward`` needs; ``weights``: of ``layers``.

        It may change ``rows.inputs``, in the same way if it is called again.
        """

    @abstractmethod
    def backward(
        self, weights: Sequence[Array], rows: EmbeddedRows, saved: Any, slopes: Slopes, on_layer: OnLayer
    ) -> None:
        """Add the slopes of the inputs to ``slopes.inputs``, or the keys' slopes to ``slopes.table``.

        Call ``on_layer`` with each layer's gradient.

        ``saved`` is the second result of ``forward``; ``slopes.margins`` are the slopes of the margins.
        """

    def _check_positive(self, **sizes: int) -> None:
        for name, size in sizes.items():
            if size < 1:
                raise ConfigError(f"{name}: expected at least 1, got {size}")


@dataclass(frozen=True)
class CrossNetwork(Interaction):
    """The cross network of DCN-V2 in its parallel structure (Wang et al., 2021, Section 3.2 and Figure 1b).

    Attributes:
        crossLayers: the number of cross layers. With l layers, the term has products of up to l + 1 inputs.
    """

    crossLayers: int = 3

    def __post_init__(self) -> None:
        self._check_positive(crossLayers=self.crossLayers)

    def layers(self, fields: int, k: int) -> tuple[Layer, ...]:
        width = fields * k
        crosses = (Layer(f"cross{index}", width, width) for index in range(self.crossLayers))
        return *crosses, Layer("cross-output", width, 1, has_bias=False)

    def forward(self, weights: Sequence[Array], rows: EmbeddedRows) -> tuple[Array, Any]:
        first = x = rows.inputs
        saved = []
        for layer in weights[:-1]:
            factors = product(x, layer[:-1]) + layer[-1]
            saved.append((x, factors))
            x = first * factors + x  # Equation 1
        return product(x, weights[-1])[:, 0], (saved, x)

    def backward(
        self, weights: Sequence[Array], rows: EmbeddedRows, saved: Any, slopes: Slopes, on_layer: OnLayer
    ) -> None:
        first, (crosses, last) = rows.inputs, saved
        on_layer(len(weights) - 1, last.T @ slopes.margins[:, None])
        x_slopes = slopes.margins[:, None] * weights[-1][:, 0]
        for index, (x, factors) in reversed([*enumerate(crosses)]):
            slopes.inputs[:] += x_slopes * factors
            factor_slopes = x_slopes * first
            on_layer(index, affine_gradient(x, factor_slopes))
            x_slopes += factor_slopes @ weights[index][:-1].T
        slopes.inputs[:] += x_slopes


@dataclass(frozen=True)
class CompressedInteraction(Interaction):
    """The compressed interaction network of xDeepFM (Lian et al., 2018, Section 3.1), with identity activations.

    A number of all vectors, at the same position, is a row of its own here: feature map i of layer l is Equation 6, a
    product of such a row with the outer product of the map before and the fields.

    Attributes:
        cinLayers: the number of feature maps of each layer.
    """

    cinLayers: tuple[int, ...] = (64, 64)
    # The outer products of so many numbers are in memory at the same time.
    MAX_BLOCK: ClassVar[int] = 1 << 22

    def __post_init__(self) -> None:
        object.__setattr__(self, "cinLayers", tuple(int(size) for size in self.cinLayers))
        if not self.cinLayers:
            raise ConfigError("cinLayers: expected at least one layer, got none")
        self._check_positive(cinLayers=min(self.cinLayers))

    def layers(self, fields: int, k: int) -> tuple[Layer, ...]:
        maps = (fields, *self.cinLayers)
        filters = (
            Layer(f"cin{index}", maps[index] * fields, size, has_bias=False)
            for index, size in enumerate(self.cinLayers)
        )
        return *filters, Layer("cin-output", sum(self.cinLayers), 1, has_bias=False)

    def forward(self, weights: Sequence[Array], rows: EmbeddedRows) -> tuple[Array, Any]:
        first = _by_position(rows.inputs, rows.k)
        maps = [first]
        for filters in weights[:-1]:
            x = maps[-1]
            maps.append(np.empty((len(x), filters.shape[1]), x.dtype))
            for block in self._blocks(x, first):
                maps[-1][block] = product(multiply_pairs(x[block], first[block]), filters)
        output = weights[-1][:, 0]
        pools = np.concatenate(maps[1:], axis=1).reshape(len(rows.inputs), rows.k, -1).sum(axis=1)  # Equation 7
        return product(pools, output[:, None])[:, 0], (maps, pools)

    def backward(
        self, weights: Sequence[Array], rows: EmbeddedRows, saved: Any, slopes: Slopes, on_layer: OnLayer
    ) -> None:
        maps, pools = saved
        first, ends = maps[0], np.cumsum(self.cinLayers)
        on_layer(len(weights) - 1, pools.T @ slopes.margins[:, None])
        repeated = np.repeat(slopes.margins, rows.k)[:, None]
        first_slopes, x_slopes = np.zeros_like(first), np.zeros((1, 1), first.dtype)
        for index in reversed(range(len(weights) - 1)):
            filters, x, size = weights[index], maps[index], self.cinLayers[index]
            map_slopes = repeated * weights[-1][ends[index] - size : ends[index], 0] + x_slopes
            x_slopes, gradient = np.empty_like(x), np.zeros_like(filters)
            for block in self._blocks(x, first):
                gradient += multiply_pairs(x[block], first[block]).T @ map_slopes[block]
                pair_slopes = map_slopes[block] @ filters.T
                multiply_pairs_backward(pair_slopes, x[block], first[block], x_slopes[block], first_slopes[block])
            on_layer(index, gradient)
        slopes.inputs[:] += _by_field(first_slopes + x_slopes, rows.k)

    def _blocks(self, x: Array, first: Array) -> list[slice]:
        """Return slices of the rows whose outer products fit ``MAX_BLOCK``."""
        size = max(1, self.MAX_BLOCK // (x.shape[1] * first.shape[1]))
        return [slice(begin, begin + size) for begin in range(0, len(x), size)]


@dataclass(frozen=True)
class SelfAttention(Interaction):
    """The interacting layers of AutoInt: multi-head self-attention of a row's fields (Song et al., 2019, Section 4.4).

    Attributes:
        interactingLayers: the number of layers.
        numHeads: the number of heads of each layer.
        headSize: the size of a head's vectors: d' in the paper.
    """

    interactingLayers: int = 3
    numHeads: int = 2
    headSize: int = 16

    def __post_init__(self) -> None:
        sizes = self.interactingLayers, self.numHeads, self.headSize
        self._check_positive(**dict(zip(("interactingLayers", "numHeads", "headSize"), sizes, strict=True)))

    def layers(self, fields: int, k: int) -> tuple[Layer, ...]:
        # One layer has the matrices of queries, keys, values and residuals side by side.
        width = self.numHeads * self.headSize
        inputs = (k, *[width] * (self.interactingLayers - 1))
        projections = (Layer(f"attention{index}", size, 4 * width, False) for index, size in enumerate(inputs))
        return *projections, Layer("attention-output", fields * width, 1, has_bias=False)

    def forward(self, weights: Sequence[Array], rows: EmbeddedRows) -> tuple[Array, Any]:
        n = len(rows.inputs)
        x, saved = rows.inputs.reshape(-1, rows.k), []
        for projection in weights[:-1]:
            queries, keys, values, residuals = self._heads(product(x, projection), n)
            shares = queries @ keys.swapaxes(2, 3)  # Equations 5 and 6
            shares -= shares.max(axis=3, keepdims=True)
            np.exp(shares, out=shares)
            shares /= shares.sum(axis=3, keepdims=True)
            outputs = np.maximum(shares @ values + residuals, 0)  # Equations 6 to 8
            saved.append((x, (queries, keys, values), shares, outputs))
            x = self._fields(outputs)
        x = x.reshape(n, -1)
        return product(x, weights[-1])[:, 0], (saved, x)

    def backward(
        self, weights: Sequence[Array], rows: EmbeddedRows, saved: Any, slopes: Slopes, on_layer: OnLayer
    ) -> None:
        n, (layers, last) = len(rows.inputs), saved
        on_layer(len(weights) - 1, last.T @ slopes.margins[:, None])
        x_slopes = (slopes.margins[:, None] * weights[-1][:, 0]).reshape(-1, self.numHeads * self.headSize)
        for index, (x, (queries, keys, values), shares, outputs) in reversed([*enumerate(layers)]):
            (sum_slopes,) = self._heads(x_slopes, n)
            sum_slopes = sum_slopes * (outputs > 0)
            share_slopes = sum_slopes @ values.swapaxes(2, 3)
            share_slopes -= np.einsum("nhij,nhij->nhi", share_slopes, shares)[..., None]
            share_slopes *= shares
            parts = (
                share_slopes @ keys,
                share_slopes.swapaxes(2, 3) @ queries,
                shares.swapaxes(2, 3) @ sum_slopes,
                sum_slopes,
            )
            projection_slopes = np.concatenate([self._fields(part) for part in parts], axis=1)
            on_layer(index, x.T @ projection_slopes)
            x_slopes = projection_slopes @ weights[index].T
        slopes.inputs[:] += x_slopes.reshape(n, -1)

    def _heads(self, x: Array, n: int) -> list[Array]:
        """Split (n * m, parts * heads * size) into parts of shape (n, heads, m, size)."""
        parts = x.reshape(n, len(x) // max(n, 1), -1, self.numHeads, self.headSize)
        return [parts[:, :, part].swapaxes(1, 2) for part in range(parts.shape[2])]

    def _fields(self, heads: Array) -> Array:
        """Join the heads of each field: (n, heads, m, size) to (n * m, heads * size)."""
        return heads.swapaxes(1, 2).reshape(-1, self.numHeads * self.headSize)


@dataclass(frozen=True)
class HistoryAttention(Interaction):
    """The local activation unit of DIN (Zhou et al., 2018, Section 4.3, Equation 3), with ReLU.

    The vector of a history, which has several keys in a row, becomes the sum of their vectors, each multiplied by the
    output of layers whose inputs are the candidate's vector q, the key's vector e, q - e and the product q e. There is
    no softmax: the sum of the outputs says how strong the interest is. This is no term of the margin.

    Attributes:
        histories: for each history, the number of its field, and that of its candidate's field.
        attentionLayers: the sizes of the hidden layers of each history's unit.
    """

    histories: tuple[tuple[int, int], ...] = ((1, 0),)
    attentionLayers: tuple[int, ...] = (36,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "histories", tuple((int(a), int(b)) for a, b in self.histories))
        object.__setattr__(self, "attentionLayers", tuple(int(size) for size in self.attentionLayers))
        self._check_positive(attentionLayers=min(self.attentionLayers, default=1), histories=len(self.histories))

    def layers(self, fields: int, k: int) -> tuple[Layer, ...]:
        if max(map(max, self.histories)) >= fields:
            raise ConfigError(f"histories: expected numbers of fields below {fields}, got {self.histories}")
        units = (stacked(f"unit{unit}-", 4 * k, (*self.attentionLayers, 1)) for unit in range(len(self.histories)))
        return tuple(layer for unit in units for layer in unit)

    def forward(self, weights: Sequence[Array], rows: EmbeddedRows) -> tuple[Array, Any]:
        batch, k = rows.batch, rows.k
        row_of_pair = np.repeat(np.arange(len(batch)), np.diff(batch.indptr))
        saved = []
        for unit, (history, candidate) in enumerate(self.histories):
            pairs = np.flatnonzero(batch.field == history)
            owners, stack = row_of_pair[pairs], Stack(self._weights(weights, unit))
            vectors = batch.x[pairs, None] * rows.table[batch.inverse[pairs], rows.vector_offset :]
            candidates = rows.inputs[owners, candidate * k : (candidate + 1) * k]
            features = candidates, vectors, candidates - vectors, candidates * vectors
            outputs = stack.forward(np.concatenate(features, axis=1))
            rows.inputs[:, history * k : (history + 1) * k] = 0
            add_rows(owners, outputs * vectors, history * k, rows.inputs)
            saved.append((pairs, owners, stack, vectors, candidates, outputs))
        return np.zeros(len(batch), rows.table.dtype), saved

    def backward(
        self, weights: Sequence[Array], rows: EmbeddedRows, saved: Any, slopes: Slopes, on_layer: OnLayer
    ) -> None:
        batch, k, depth = rows.batch, rows.k, len(self.attentionLayers) + 1
        for unit, (history, candidate) in reversed([*enumerate(self.histories)]):
            pairs, owners, stack, vectors, candidates, outputs = saved[unit]
            columns = slice(history * k, (history + 1) * k)
            sum_slopes = slopes.inputs[owners, columns]
            output_slopes = np.einsum("pj,pj->p", sum_slopes, vectors)[:, None]
            on_unit = partial(on_later_layer, on_layer, unit * depth)
            parts = np.split(stack.backward(output_slopes, on_unit), 4, axis=1)
            vector_slopes = outputs * sum_slopes + parts[1] - parts[2] + parts[3] * candidates
            candidate_slopes = parts[0] + parts[2] + parts[3] * vectors
            # The keys of a history are not summed up as those of other fields are.
            slopes.inputs[:, columns] = 0
            add_rows(owners, candidate_slopes, candidate * k, slopes.inputs)
            key_slopes = batch.x[pairs, None] * vector_slopes
            add_rows(batch.inverse[pairs].astype(np.int64), key_slopes, rows.vector_offset, slopes.table)

    def _weights(self, weights: Sequence[Array], unit: int) -> Sequence[Array]:
        depth = len(self.attentionLayers) + 1
        return weights[unit * depth : (unit + 1) * depth]


def _by_position(inputs: Array, k: int) -> Array:
    """Return (n, m * k) as rows of the same position of all vectors: (n * k, m)."""
    vectors = inputs.reshape(len(inputs), -1, k)
    return np.ascontiguousarray(vectors.swapaxes(1, 2)).reshape(-1, vectors.shape[1])


def _by_field(rows: Array, k: int) -> Array:
    """Do the opposite of ``_by_position``."""
    return rows.reshape(-1, k, rows.shape[1]).swapaxes(1, 2).reshape(-1, k * rows.shape[1])
