"""Vertex ids and their numbers, which follow the order of the ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ps2.errors import InputError
from ps2.ops.kernels import Float64s, Int64s

Array = npt.NDArray[Any]

# Approximate edges numbered at once.
SOME_EDGES = 1 << 20
WRONG = "the edges have ids that were missing at the first reading: persist the DataFrame"


@dataclass(frozen=True, eq=False)
class Vertices:
    """The ids of a graph's vertices.

    Attributes:
        ids: int64 or strings, ascending, distinct.
    """

    ids: pa.Array

    @staticmethod
    def of(ids: pa.Array) -> Vertices:
        """Number distinct ids, given in any order: integers by value, strings by their UTF-8 bytes."""
        if pa.types.is_integer(ids.type):
            return Vertices(pa.array(np.sort(ids.cast(pa.int64()).to_numpy())))
        return Vertices(ids.take(pc.sort_indices(ids)))

    def __len__(self) -> int:
        return len(self.ids)

    def numbers(self, ids: pa.Array) -> Int64s:
        """Return the numbers of vertices.

        Raises:
            InputError: an id is unknown.
        """
        if not pa.types.is_integer(self.ids.type):
            found = pc.index_in(ids, value_set=self.ids)
            if found.null_count:
                raise InputError(WRONG)
            return found.to_numpy().astype(np.int64)
        values = ids.cast(pa.int64()).to_numpy()
        known = self._integers
        if self._without_gaps:
            numbers = values - known[0]
            if len(values) and (values.min() < known[0] or values.max() > known[-1]):
                raise InputError(WRONG)
            return numbers
        numbers = np.minimum(np.searchsorted(known, values), len(known) - 1)
        if not np.array_equal(known[numbers], values):
            raise InputError(WRONG)
        return numbers

    def named(self, numbers: Array) -> pa.Array:
        """Return the ids of vertices."""
        if pa.types.is_integer(self.ids.type) and self._without_gaps:
            return pa.array(numbers + self._integers[0])
        return self.ids.take(pa.array(numbers))

    @cached_property
    def _integers(self) -> Int64s:
        return self.ids.to_numpy()

    @cached_property
    def _without_gaps(self) -> bool:
        return int(self._integers[-1]) - int(self._integers[0]) == len(self) - 1


@dataclass(frozen=True, eq=False)
class Edges:
    """Some edges.

    Attributes:
        sources, targets: integers: numbers of vertices.
        weights: float64, positive; None: unweighted.
    """

    sources: Array
    targets: Array
    weights: Float64s | None

    def both_directions(self) -> Edges:
        """Return these edges and the reverse ones; a loop stays one edge."""
        other = self.sources != self.targets
        sources, targets = np.append(self.sources, self.targets[other]), np.append(self.targets, self.sources[other])
        return Edges(sources, targets, None if self.weights is None else np.append(self.weights, self.weights[other]))


def edges_of(batches: Iterable[pa.RecordBatch], vertices: Vertices) -> Iterator[Edges]:
    """Read edges; skip those of weight 0.

    Args:
        batches: source, target and optionally weight.
    """
    for some in _gathered(batches):
        sources, targets = (vertices.numbers(some.column(i).combine_chunks()) for i in (0, 1))
        if some.num_columns == 2:
            yield Edges(sources, targets, None)
            continue
        weights = some.column(2).to_numpy()
        there = weights > 0
        yield Edges(sources[there], targets[there], weights[there])


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        held.append(batch)
        count += batch.num_rows
        if count >= SOME_EDGES:
            yield pa.Table.from_batches(held)
            held, count = [], 0
    if count:
        yield pa.Table.from_batches(held)
