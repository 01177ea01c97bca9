"""Edges whose ids are keys: check them, and read each worker's sentences."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from ps2.algorithms.embeddings.edges import Edges
from ps2.algorithms.embeddings.keyed import KeyedSentences
from ps2.algorithms.embeddings.ml.edges import EdgeColumns, checked
from ps2.algorithms.embeddings.sentences import EdgeSentences
from ps2.errors import InputError

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class KeyedEdges:
    """Checked edges, without a list of their vertices.

    Attributes:
        frame: source, target and, if edges have weights, weight (double).
        rows: number of rows.
        edges: number of directed edges in an epoch.
        weight: total weight of these.
        directed: whether edges have one direction.
    """

    frame: DataFrame
    rows: int
    edges: int
    weight: float
    directed: bool


def inspect_keys(frame: DataFrame, columns: EdgeColumns, directed: bool) -> KeyedEdges:
    """Check edges, in one more pass.

    Raises:
        InputError: as ``edges.checked`` raises; or ids are strings, an id is negative, there is only one vertex, or all
            edges have weight 0.
    """
    edges, kind, rows = checked(frame, columns)
    if isinstance(kind, StringType):
        raise InputError(
            f"columns {columns.source!r} and {columns.target!r}: expected integers, to be hashed, got strings"
        )
    weighted = columns.weight is not None
    ways = F.lit(1) if directed else F.when(F.col("source") == F.col("target"), 1).otherwise(2)
    weight = F.sum(ways * F.col("weight")) if weighted else F.sum(ways)
    ends = F.least(F.min("source"), F.min("target")), F.greatest(F.max("source"), F.max("target"))
    found = edges.agg(weight.alias("weight"), ends[0].alias("least"), ends[1].alias("most")).first()
    assert found is not None
    if found["least"] < 0:
        raise InputError(f"expected ids that are not negative, to be hashed, got {found['least']}")
    if found["least"] == found["most"]:
        raise InputError("expected at least two vertices, got one")
    if not found["weight"]:
        raise InputError("expected edges, got none of a weight above 0")
    count = (rows if directed else 2 * rows) if weighted else int(found["weight"])
    return KeyedEdges(edges, rows, count, float(found["weight"]), directed)


@dataclass(frozen=True)
class ReadKeys:
    """Makes a worker's sentences from its rows: edges between its own keys.

    Attributes:
        directed, edges, weight: as in ``KeyedEdges``.
        seed: of all draws.
    """

    directed: bool
    edges: int
    weight: float
    seed: int

    def __call__(self, worker: Any, batches: Iterable[pa.RecordBatch]) -> KeyedSentences:
        given = [(self._edges(batch)) for batch in batches if batch.num_rows]
        sources, targets = (
            np.concatenate([np.empty(0, np.int64), *(getattr(edges, name) for edges in given)])
            for name in ("sources", "targets")
        )
        keys, numbers = np.unique(np.concatenate([sources, targets]), return_inverse=True)
        first, second = np.split(numbers.astype(np.int32), 2)
        count, weights = len(first), None
        if given and given[0].weights is not None:
            weights = np.concatenate([edges.weights for edges in given if edges.weights is not None])
            count = round(self.edges * float(weights.sum()) / self.weight)
        come = np.bincount(second, weights, minlength=len(keys)) * (self.edges / self.weight)
        frequencies = np.maximum(np.rint(come).astype(np.int64), come > 0)
        sentences = EdgeSentences(first, second, weights, count, self.seed, worker.rank)
        if not len(keys):  # without a word there is no vocabulary
            keys, frequencies = np.zeros(1, np.int64), np.zeros(1, np.int64)
        return KeyedSentences(sentences, keys, frequencies)

    def _edges(self, batch: pa.RecordBatch) -> Edges:
        sources, targets = (batch.column(i).cast(pa.int64()).to_numpy() for i in (0, 1))
        edges = Edges(sources, targets, None)
        if batch.num_columns > 2:
            weights = batch.column(2).to_numpy()
            there = weights > 0
            edges = Edges(sources[there], targets[there], weights[there])
        return edges if self.directed else edges.both_directions()
