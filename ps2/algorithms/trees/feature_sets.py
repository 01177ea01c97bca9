"""The features that the nodes of a tree may be split by: those that interact with the splits above, and weighted draws.

Pure. The driver makes a set for each open node, as bits, and the servers look at no other features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ps2.algorithms.trees.layout import WORD_BITS, Bools
from ps2.array_types import Float64s, Int64s
from ps2.ops.draws import GOLDEN, TO_UNIT, scrambled
from ps2.ops.guards import readable
from ps2.ops.kernels import kernel

Path = frozenset[int]


@dataclass(frozen=True)
class FeatureSets:
    """The features that nodes may use.

    Attributes:
        features: the number of features.
        groups: groups of features that interact, as xgboost's ``interaction_constraints``: a node may be split by the
            features of its path and of all groups that contain its path; a root by all features. Empty: no such rule.
        weights: the weight of each feature in the draw; empty: no draw.
        drawn: the number of features to draw for each node, without replacement, each by its weight among the rest.
    """

    features: int
    groups: tuple[tuple[int, ...], ...] = ()
    weights: tuple[float, ...] = ()
    drawn: int = 0

    def words(self, paths: Sequence[Path], keys: Int64s) -> Int64s:
        """Return the features of nodes as bits, int64, shape (n, words), by their paths; no words: all may use all."""
        if not (self.groups or self.weights):
            return np.empty((len(paths), 0), np.int64)
        words = -(-self.features // WORD_BITS)
        flags = np.zeros((len(paths), words * WORD_BITS), np.bool_)
        for row, path, key in zip(flags, paths, keys.tolist(), strict=True):
            row[: self.features] = self._draw(key) if self.weights else True
            if self.groups and path:
                row[: self.features] &= self._related(path)
        return np.packbits(flags, axis=1, bitorder="little").view(np.int64)

    def _related(self, path: Path) -> Bools:
        is_related = np.zeros(self.features, np.bool_)
        is_related[list(path)] = True
        for group in self.groups:
            if path.issubset(group):
                is_related[list(group)] = True
        return is_related

    def _draw(self, key: int) -> Bools:
        """Draw features by their weights (P. Efraimidis and P. Spirakis, "Weighted random sampling", 2006)."""
        times = np.empty(self.features)
        waiting_times(key, self._weights, times)
        is_drawn = np.isfinite(times)
        if is_drawn.sum() > self.drawn:
            is_drawn[np.argpartition(times, self.drawn)[self.drawn :]] = False
        return is_drawn

    @cached_property
    def _weights(self) -> Float64s:
        return readable(np.array(self.weights, np.float64))


@kernel
def waiting_times(key: int, weights: Float64s, out: Float64s) -> None:
    """Set ``out`` to random times that are exponential with the features' weights as rates; infinite for rate 0."""
    for feature in range(len(weights)):
        state = scrambled(scrambled(np.uint64(key)) + GOLDEN * np.uint64(feature + 1))
        unit = (np.float64(state >> np.uint64(11)) + 1.0) * TO_UNIT
        out[feature] = -np.log(unit) / weights[feature] if weights[feature] > 0.0 else np.inf
