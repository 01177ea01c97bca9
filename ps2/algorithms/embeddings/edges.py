"""Edges between numbered vertices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ps2.data.ids import Ids
from ps2.ops.kernels import Float64s

Array = npt.NDArray[Any]

# Approximate edges numbered at once.
SOME_EDGES = 1 << 20


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


def edges_of(batches: Iterable[pa.RecordBatch], vertices: Ids) -> Iterator[Edges]:
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
