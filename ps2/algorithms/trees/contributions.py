"""SHAP values: what each feature contributes to the margin of a row, without Spark and without servers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ps2.algorithms.trees import contribution_kernels as kernels
from ps2.algorithms.trees.predict import matrix_of
from ps2.algorithms.trees.tree import LEAF, Forest, Tree
from ps2.array_types import Float64s
from ps2.ops.guards import readable
from ps2.ops.parallel import over_blocks

Array = npt.NDArray[Any]

# Numbers of a block of rows that is laid out at a time.
LAID_OUT = 1 << 22


@dataclass
class _Player:
    """A feature of a path: the share of rows that pass its splits, and its splits with the path's side."""

    share: float = 1.0
    steps: list[tuple[int, bool]] = field(default_factory=list)


class Explainer:
    """A forest as the kernels of SHAP values take it; expected: the mean margin of training rows, shape (width,)."""

    def __init__(self, forest: Forest) -> None:
        self._forest = forest
        self.expected = np.array(forest.base, np.float64)
        inner = [tree.feature[tree.feature != LEAF] for tree in forest.trees]
        self._used = np.unique(np.concatenate([np.empty(0, np.int32), *inner]))
        splits: list[tuple[Any, ...]] = []
        flags: list[Array] = [np.empty(0, np.bool_)]
        paths: list[tuple[Any, ...]] = []
        players: list[tuple[Any, ...]] = []
        steps: list[tuple[int, bool]] = []
        for number, tree in enumerate(forest.trees):
            output, places = number % forest.width, self._lay_splits(tree, splits, flags)
            for leaf, path in _paths(tree, places):
                begin, share = len(players), 1.0
                for feature, player in path.items():
                    column = int(np.searchsorted(self._used, feature))
                    players.append((column, player.share, len(steps), len(steps) + len(player.steps)))
                    steps += player.steps
                    share *= player.share
                value = float(tree.value[leaf])
                self.expected[output] += share * value
                if path:
                    paths.append((begin, len(players), value, output))
        self._splits, self._paths = np.array(splits, kernels.SPLIT), np.array(paths, kernels.PATH)
        self._players, self._flags = np.array(players, kernels.PLAYER), np.concatenate(flags)
        self._steps = (np.array([s for s, _ in steps], np.int32), np.array([left for _, left in steps], np.bool_))

    def contributions(self, x: Any) -> Float64s:
        """Return SHAP values, shape (n, width, features + 1); the last ones are ``expected``."""
        x = matrix_of(x, self._forest.features)
        out = np.zeros((x.shape[0], self._forest.width, self._forest.features + 1))
        out[:, :, -1] = self.expected
        if not len(self._paths):
            return out
        lengths = self._paths["end"] - self._paths["players"]
        cost, max_length = int((lengths**2).sum()) * 3 + len(self._splits), int(lengths.max())
        held = map(readable, (self._splits, self._flags, self._paths, self._players, *self._steps))
        arguments = (*held, max_length)
        size = max(LAID_OUT // (len(self._used) * self._forest.width), 1)
        for begin in range(0, x.shape[0], size):
            block = self._laid_out(x[begin : begin + size])
            values = np.zeros((len(block), self._forest.width, len(self._used)))
            over_blocks(kernels.contributions, (readable(block), values), *arguments, cost=cost)
            out[begin : begin + size, :, self._used] = values
        return out

    def _laid_out(self, x: Any) -> Float64s:
        """Return the features that trees ask for, dense."""
        if not sp.issparse(x):
            return np.ascontiguousarray(x[:, self._used], np.float64)
        part = sp.csr_array(x[:, self._used])
        out: Float64s = part.toarray().astype(np.float64)
        if self._forest.absent == "missing":
            held = sp.csr_array((np.ones(part.nnz, np.bool_), part.indices, part.indptr), shape=part.shape)
            out[~held.toarray()] = np.nan
        return out

    def _lay_splits(self, tree: Tree, splits: list[tuple[Any, ...]], flags: list[Array]) -> dict[int, int]:
        """Append the splits of a tree, and their sets; return the place of each inner node."""
        places = {}
        begin = sum(map(len, flags))
        for node in np.flatnonzero(tree.feature != LEAF).tolist():
            places[node], mine = len(splits), tree.set_of(node)
            column = int(np.searchsorted(self._used, tree.feature[node]))
            splits.append((column, tree.default_left[node], tree.threshold[node], begin, begin + len(mine)))
            flags.append(mine)
            begin += len(mine)
        return places


def _paths(tree: Tree, places: dict[int, int]) -> Iterator[tuple[int, dict[int, _Player]]]:
    """Yield each leaf with its path: a player for each feature."""
    todo: list[tuple[int, dict[int, _Player]]] = [(0, {})]
    while todo:
        node, path = todo.pop()
        feature = int(tree.feature[node])
        if feature == LEAF:
            yield node, path
            continue
        before = path.get(feature, _Player())
        for child, is_left in ((int(tree.right[node]), False), (int(tree.left[node]), True)):
            share = tree.cover[child] / tree.cover[node] if tree.cover[node] > 0 else 0.0
            player = _Player(before.share * float(share), [*before.steps, (places[node], is_left)])
            todo.append((child, {**path, feature: player}))
