"""A table whose columns are partitioned among servers, which compute on them (``skipgrams.ops``)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ps2.algorithms.embeddings.settings import EmbeddingSettings
from ps2.array_types import Float32s
from ps2.client.dcv import DCV
from ps2.client.matrix import DCVMatrix
from ps2.matrix.partition import partition_bounds

# Alias table entries sent at once.
MAX_ALIASES = 1 << 22


@dataclass(frozen=True, eq=False)
class SlicedTable:
    """One table; picklable.

    Attributes:
        settings: of the training.
        matrix: float32, one row; the last ``vocabulary`` numbers of each server's part belong to the alias table.
    """

    settings: EmbeddingSettings
    matrix: DCVMatrix

    @property
    def parts(self) -> int:
        """Number of servers that hold columns."""
        return len(self._bounds) - 1

    def fill(self, seed: int) -> None:
        """Initialize as gensim does: uniform in [-1, 1) / size."""
        most = 1.0 / self.settings.size
        self.matrix.fillRandom("uniform", seed, low=-most, high=most)

    def pull(self) -> Float32s:
        """Return all vectors, shape (vocabulary, size)."""
        return _joined(self.settings, self.matrix.pull([0])[0], self._bounds)

    def free(self) -> None:
        self.matrix.free()

    @property
    def _bounds(self) -> tuple[int, ...]:
        bounds: tuple[int, ...] = self.matrix._first._route.bounds
        return bounds


def make_row(settings: EmbeddingSettings, servers: int, name: str | None) -> DCV:
    """Allocate the row of a ``SlicedTable``."""
    words, parts = settings.vocabulary, min(servers, settings.size)
    # With more servers than columns, each part is one column and its share of the alias table.
    align = words if servers < settings.size else 2 * words
    return DCV.dense(words * (settings.size + parts), 1, align=align, name=name)


def recut(settings: EmbeddingSettings, found: DCV, servers: int, name: str) -> DCV:
    """Return a row partitioned among this number of servers; a repartitioned row has no alias table.

    Args:
        found: what ``make_row`` made; freed if another row is returned.
        name: of both rows.

    Raises:
        LimitError: there is no room for a second row.
    """
    parts = found.dim // settings.vocabulary - settings.size
    if parts == min(servers, settings.size):
        return found
    bounds = partition_bounds(found._spec, parts)
    vectors = _joined(settings, found.pull(), bounds)
    found.free()
    row = make_row(settings, servers, name)
    none = np.zeros(settings.vocabulary, np.float32)
    cut, begin = [], 0
    for first, end in pairwise(SlicedTable(settings, row.matrix())._bounds):
        width = (end - first) // settings.vocabulary - 1
        cut += [vectors[:, begin : begin + width].reshape(-1), none]
        begin += width
    row.push(np.concatenate(cut))
    return row


def _joined(settings: EmbeddingSettings, numbers: Any, bounds: tuple[int, ...]) -> Float32s:
    words = settings.vocabulary
    parts = [numbers[begin : end - words].reshape(words, -1) for begin, end in pairwise(bounds)]
    return np.ascontiguousarray(np.hstack(parts))


def put_aliases(vectors: SlicedTable, contexts: SlicedTable, thresholds: Any, aliases: Any) -> None:
    """Send an alias table to all servers."""
    matrix, other = vectors.matrix, contexts.matrix
    for begin in range(0, len(thresholds), MAX_ALIASES):
        some = slice(begin, begin + MAX_ALIASES)
        matrix.apply(
            "skipgrams.put_aliases",
            contexts=other,
            thresholds=thresholds[some],
            aliases=aliases[some].view(np.uint32),
            words=len(thresholds),
            begin=begin,
        )
