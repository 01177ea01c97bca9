"""Scores of exported deep models, without Spark and servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.deep.architecture import Architecture
from ps2.algorithms.deep.batches import Batch, batch_of
from ps2.algorithms.deep.network import Pass, tower
from ps2.array_types import Float32s, Float64s
from ps2.data.key_rows import KeyRows, check_margins
from ps2.errors import ShapeError

if TYPE_CHECKING:
    from ps2.data.hashing import FieldHasher

Array = npt.NDArray[Any]


def score(config: dict[str, Any], rows: KeyRows, embeddings: Array, dense: Mapping[str, Array]) -> Float64s:
    """Return each row's score, float64 of shape (n,): the probability of label 1, or the cosine of two towers.

    Args:
        config: JSON data; "architecture" is the result of ``Architecture.to_json``.
        embeddings: the weights of each pair's key, float32 of shape (pairs, ``Architecture.width``).
        dense: the layers by name, each of shape (inputs + 1, outputs).

    Raises:
        ShapeError: an array has another shape than in the architecture, or a field is not in the architecture.
        InputError: a score is not finite, because values of the row are too large.
    """
    architecture = Architecture.from_json(config["architecture"])
    layers = [_checked(dense, layer.name, layer.shape) for layer in architecture.layers()]
    expected = len(rows.keys), architecture.width
    if embeddings.shape != expected:
        raise ShapeError(f"embeddings: expected shape {expected}, got {embeddings.shape}")
    check_fields(rows, architecture.fields)
    batch, keys = batch_of(rows)
    table = np.empty((len(keys), architecture.width), np.float32)
    table[batch.inverse] = embeddings
    margins = margins_of(architecture, layers, batch, table)
    if architecture.has_towers:
        return margins
    with np.errstate(over="ignore"):
        return np.asarray(1.0 / (1.0 + np.exp(-margins)))


def tower_fields(hasher: FieldHasher, num_left: int, right: bool) -> FieldHasher:
    """Return the hasher of one tower's columns; the left tower has the first ``num_left`` fields of rows."""
    # All fields of a column belong to the same tower.
    numbered = zip(hasher.fields, hasher.first_numbers, strict=True)
    return replace(hasher, fields=tuple(field for field, first in numbered if (first >= num_left) == right))


def user_vectors(config: Mapping[str, Any], rows: KeyRows, embeddings: Array, dense: Mapping[str, Array]) -> Float32s:
    """Return the left tower's vectors, of norm 1, for rows with its fields; the arguments are those of ``score``."""
    architecture = Architecture.from_json(config["architecture"])
    layers = [_checked(dense, layer.name, layer.shape) for layer in architecture.layers()]
    check_fields(rows, architecture.deep)
    batch, keys = batch_of(rows)
    table = np.empty((len(keys), architecture.width), np.float32)
    table[batch.inverse] = embeddings
    vectors = tower(architecture, layers, False, batch, table)
    check_margins(vectors.sum(axis=1))  # a sum is not finite if a value is not
    return vectors


def margins_of(architecture: Architecture, layers: Sequence[Array], batch: Batch, table: Array) -> Float64s:
    """Return the margins of a batch, or towers' cosines, as float64; raise InputError if a margin is not finite."""
    margins = Pass(architecture, layers, batch, table).margins()
    check_margins(margins)
    cosine_scale = architecture.temperature if architecture.has_towers else 1.0
    return np.asarray(margins.astype(np.float64) * cosine_scale)


def check_fields(rows: KeyRows, fields: int) -> None:
    """Raise ShapeError if a pair's field is not in [0, fields)."""
    if len(rows.fields) and not 0 <= rows.fields.min() <= rows.fields.max() < fields:
        raise ShapeError(f"fields: expected numbers below {fields}, got {rows.fields.min()} to {rows.fields.max()}")


def _checked(dense: Mapping[str, Array], name: str, shape: tuple[int, int]) -> Array:
    """Return a layer; raise ShapeError if it is missing or has another shape."""
    if name not in dense or dense[name].shape != shape:
        got = f"shape {dense[name].shape}" if name in dense else f"{', '.join(sorted(dense)) or 'no arrays'}"
        raise ShapeError(f"layer {name!r}: expected shape {shape}, got {got}")
    return dense[name]
