"""SHAP values: the contribution of each feature to the margin of a row, without Spark and servers.

S. Lundberg et al., "From local explanations to global understanding with explainable AI for trees", 2020, algorithm 2,
path by path as in R. Mitchell et al., "GPUTreeShap", 2022: a path from the root to a leaf is a game of its own, whose
players are the features of its splits. A player that is absent lets a row pass with the share of the training rows (by
their hessians) that pass its splits; one that is present, if the row itself passes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from ps2.algorithms.trees.layout import Array, Bools, category_goes_left, goes_left
from ps2.algorithms.trees.predict import matrix_of
from ps2.algorithms.trees.tree import LEAF, Forest, Tree
from ps2.array_types import Float64s, Int32s
from ps2.ops.guards import readable
from ps2.ops.kernels import inline, kernel
from ps2.ops.parallel import over_blocks

# An inner node: its feature's column, the threshold, whether missing values go left, and its interval of all set flags.
SPLIT = np.dtype(
    [
        ("column", np.int32),
        ("default_left", np.bool_),
        ("threshold", np.float64),
        ("set_begin", np.int64),
        ("set_end", np.int64),
    ]
)
# A path: the interval of its players, the value of its leaf, and the output that this adds to.
PATH = np.dtype([("players", np.int64), ("end", np.int64), ("value", np.float64), ("output", np.int64)])
# A player: its feature's column, the share of rows that pass its splits, and the interval of its steps.
PLAYER = np.dtype([("column", np.int32), ("share", np.float64), ("steps", np.int64), ("end", np.int64)])


# The maximum size of a dense block of rows, in numbers.
BLOCK_SIZE = 1 << 22


class Paths(NamedTuple):
    """The paths of all trees.

    Attributes:
        splits, paths, players: arrays of SPLIT, PATH and PLAYER.
        set_flags: the flags of all sets of categories.
        step_split, step_left: the split of each step of a player, and whether the path goes left there.
    """

    splits: Array
    set_flags: Bools
    paths: Array
    players: Array
    step_split: Int32s
    step_left: Bools


@inline
def _is_left(value: float, split: Any, set_flags: Bools) -> bool:
    if split.set_end == split.set_begin:
        return goes_left(value, split.threshold, bool(split.default_left))
    return category_goes_left(value, set_flags, split.set_begin, split.set_end, bool(split.default_left))


@kernel
def add_contributions(x: Float64s, out: Float64s, forest: Paths, max_length: int) -> None:
    """Add the SHAP values of rows to ``out``, shape (rows, outputs, columns); a path has at most so many players."""
    splits, paths, players = forest.splits, forest.paths, forest.players
    lefts = np.empty(len(splits), np.bool_)
    passes, weights = np.empty(max_length, np.bool_), np.empty(max_length + 1)
    for row in range(x.shape[0]):
        for s in range(len(splits)):
            lefts[s] = _is_left(x[row, splits[s].column], splits[s], forest.set_flags)
        for p in range(len(paths)):
            for i in range(paths[p].end - paths[p].players):
                player, is_passed = paths[p].players + i, True
                for step in range(players[player].steps, players[player].end):
                    is_passed &= lefts[forest.step_split[step]] == forest.step_left[step]
                passes[i] = is_passed
            _weigh(forest, p, passes, weights)
            _add(forest, p, passes, weights, out[row, paths[p].output])


@inline
def _weigh(forest: Paths, path: int, passes: Bools, weights: Float64s) -> None:
    """Set weights[k] to the sum, by Shapley's weights, over all sets of k players of the share that passes."""
    begin, end = forest.paths[path].players, forest.paths[path].end
    weights[0] = 1.0
    for i in range(end - begin):
        share, size = forest.players[begin + i].share, i + 2.0
        weights[i + 1] = 0.0
        for k in range(i, -1, -1):
            if passes[i]:
                weights[k + 1] += weights[k] * (k + 1) / size
            weights[k] *= share * (i + 1 - k) / size


@inline
def _add(forest: Paths, path: int, passes: Bools, weights: Float64s, out: Float64s) -> None:
    """Add each player's share of a leaf's value."""
    # Players whose splits the row does not pass have the same share.
    players, begin, value = forest.players, forest.paths[path].players, forest.paths[path].value
    count, stopped = forest.paths[path].end - begin, 0.0
    for k in range(count):
        stopped -= weights[k] * (count + 1) / (count - k)
    for i in range(count):
        if not passes[i]:
            out[players[begin + i].column] += stopped * value
            continue
        # The weights without the player, summed.
        share, total, rest = players[begin + i].share, 0.0, weights[count]
        for k in range(count - 1, -1, -1):
            without = rest * (count + 1) / (k + 1)
            total += without
            rest = weights[k] - without * share * (count - k) / (count + 1)
        out[players[begin + i].column] += total * (1.0 - share) * value


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
            output, split_numbers = number % forest.width, self._append_splits(tree, splits, flags)
            for leaf, path in _paths(tree, split_numbers):
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
        step_splits = np.array([split for split, _ in steps], np.int32)
        step_lefts = np.array([is_left for _, is_left in steps], np.bool_)
        arrays = np.array(splits, SPLIT), np.concatenate(flags), np.array(paths, PATH), np.array(players, PLAYER)
        self._paths = Paths(*map(readable, (*arrays, step_splits, step_lefts)))

    def contributions(self, x: Any) -> Float64s:
        """Return SHAP values, shape (n, width, features + 1); the last ones are ``expected``."""
        x = matrix_of(x, self._forest.features)
        out = np.zeros((x.shape[0], self._forest.width, self._forest.features + 1))
        out[:, :, -1] = self.expected
        paths = self._paths.paths
        if not len(paths):
            return out
        lengths = paths["end"] - paths["players"]
        cost, max_length = int((lengths**2).sum()) * 3 + len(self._paths.splits), int(lengths.max())
        size = max(BLOCK_SIZE // (len(self._used) * self._forest.width), 1)
        for begin in range(0, x.shape[0], size):
            block = self._to_dense(x[begin : begin + size])
            values = np.zeros((len(block), self._forest.width, len(self._used)))
            over_blocks(add_contributions, (readable(block), values), self._paths, max_length, cost=cost)
            out[begin : begin + size, :, self._used] = values
        return out

    def _to_dense(self, x: Any) -> Float64s:
        """Return the features that trees use, dense."""
        if not sp.issparse(x):
            return np.ascontiguousarray(x[:, self._used], np.float64)
        part = sp.csr_array(x[:, self._used])
        out: Float64s = part.toarray().astype(np.float64)
        if self._forest.absent == "missing":
            is_stored = sp.csr_array((np.ones(part.nnz, np.bool_), part.indices, part.indptr), shape=part.shape)
            out[~is_stored.toarray()] = np.nan
        return out

    def _append_splits(self, tree: Tree, splits: list[tuple[Any, ...]], flags: list[Array]) -> dict[int, int]:
        """Append the splits of a tree, and their sets; return the number of each inner node's split."""
        split_numbers = {}
        begin = sum(map(len, flags))
        for node in np.flatnonzero(tree.feature != LEAF).tolist():
            split_numbers[node], set_flags = len(splits), tree.set_of(node)
            column = int(np.searchsorted(self._used, tree.feature[node]))
            splits.append((column, tree.default_left[node], tree.threshold[node], begin, begin + len(set_flags)))
            flags.append(set_flags)
            begin += len(set_flags)
        return split_numbers


def _paths(tree: Tree, split_numbers: dict[int, int]) -> Iterator[tuple[int, dict[int, _Player]]]:
    """Yield each leaf with its path: a player for each feature."""
    stack: list[tuple[int, dict[int, _Player]]] = [(0, {})]
    while stack:
        node, path = stack.pop()
        feature = int(tree.feature[node])
        if feature == LEAF:
            yield node, path
            continue
        before = path.get(feature, _Player())
        for child, is_left in ((int(tree.right[node]), False), (int(tree.left[node]), True)):
            share = tree.cover[child] / tree.cover[node] if tree.cover[node] > 0 else 0.0
            player = _Player(before.share * float(share), [*before.steps, (split_numbers[node], is_left)])
            stack.append((child, {**path, feature: player}))
