"""A model of boosted trees that needs neither Spark nor servers, and its SHAP values.

SHAP values are each feature's contribution to the margin of a row: S. Lundberg et al., "From local explanations to
global understanding with explainable AI for trees", 2020, algorithm 2, path by path as in R. Mitchell et al.,
"GPUTreeShap", 2022. Each path from the root to a leaf is a game. Its players are the features of its splits. If a
player is present, a row passes the feature's splits or not. If it is absent, a fraction of a row passes them: the
fraction of the training rows, weighted by hessians, that does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from ps2.algorithms.frame.heads import ClassHead, ValueHead
from ps2.algorithms.trees.layout import Array, Bools, category_goes_left, goes_left
from ps2.algorithms.trees.predict import TreesModel, dense_rows, matrix_of
from ps2.algorithms.trees.tree import LEAF, Forest, Tree, all_set_codes
from ps2.algorithms.trees.xgboost_file import save_xgboost
from ps2.array_types import Float64s, Int32s, Int64s
from ps2.errors import ConfigError
from ps2.ops.guards import readable
from ps2.ops.kernels import inline, kernel
from ps2.ops.parallel import over_blocks

# An inner node: its feature's column in a block of rows, its threshold, whether missing values go left, and its set's
# interval in ``Paths.set_flags``.
SPLIT = np.dtype(
    [
        ("column", np.int32),
        ("default_left", np.bool_),
        ("threshold", np.float64),
        ("set_begin", np.int64),
        ("set_end", np.int64),
    ]
)
# A path: the interval of its players, the value of its leaf, and the output to whose margin the leaf adds.
PATH = np.dtype([("players", np.int64), ("end", np.int64), ("value", np.float64), ("output", np.int64)])
# A player: its feature's column, the fraction of training rows that pass its splits, and the interval of its steps.
PLAYER = np.dtype([("column", np.int32), ("fraction", np.float64), ("steps", np.int64), ("end", np.int64)])
# The maximum number of values in a dense block of rows.
MAX_BLOCK_VALUES = 1 << 22


class Paths(NamedTuple):
    """The paths of all trees.

    Attributes:
        splits, paths, players: arrays of SPLIT, PATH and PLAYER.
        set_flags, set_codes: the flags of all sets of categories, and their categories; see ``category_goes_left``.
        step_split, step_left: the index of the split of each step of a player, and whether the path goes left at it.
    """

    splits: Array
    set_flags: Bools
    set_codes: Int64s
    paths: Array
    players: Array
    step_split: Int32s
    step_left: Bools


@inline
def _is_left(value: float, split: Any, forest: Paths) -> bool:
    if split.set_end == split.set_begin:
        return goes_left(value, split.threshold, bool(split.default_left))
    begin, end, default_left = split.set_begin, split.set_end, bool(split.default_left)
    return category_goes_left(value, forest.set_flags, forest.set_codes, begin, end, default_left)


@kernel
def add_contributions(x: Float64s, out: Float64s, forest: Paths, max_length: int) -> None:
    """Add SHAP values to ``out``, shape (rows, outputs, columns); max_length: the maximum number of players."""
    splits, paths, players = forest.splits, forest.paths, forest.players
    goes_left_by_split = np.empty(len(splits), np.bool_)
    passes, weights = np.empty(max_length, np.bool_), np.empty(max_length + 1)
    for row in range(x.shape[0]):
        for s in range(len(splits)):
            goes_left_by_split[s] = _is_left(x[row, splits[s].column], splits[s], forest)
        for p in range(len(paths)):
            for i in range(paths[p].end - paths[p].players):
                player, is_passed = paths[p].players + i, True
                for step in range(players[player].steps, players[player].end):
                    is_passed &= goes_left_by_split[forest.step_split[step]] == forest.step_left[step]
                passes[i] = is_passed
            _set_shapley_weights(forest, p, passes, weights)
            _add_to_players(forest, p, passes, weights, out[row, paths[p].output])


@inline
def _set_shapley_weights(forest: Paths, path: int, passes: Bools, weights: Float64s) -> None:
    """Set weights[k] to the Shapley-weighted sum, over sets of k present players, of the fraction that passes."""
    begin, end = forest.paths[path].players, forest.paths[path].end
    weights[0] = 1.0
    for i in range(end - begin):
        fraction, divisor = forest.players[begin + i].fraction, i + 2.0
        weights[i + 1] = 0.0
        for k in range(i, -1, -1):
            if passes[i]:
                weights[k + 1] += weights[k] * (k + 1) / divisor
            weights[k] *= fraction * (i + 1 - k) / divisor


@inline
def _add_to_players(forest: Paths, path: int, passes: Bools, weights: Float64s, out: Float64s) -> None:
    """Add each player's contribution to a leaf's value."""
    # All players whose splits the row does not pass contribute ``absent_weight * value``.
    players, begin, value = forest.players, forest.paths[path].players, forest.paths[path].value
    count, absent_weight = forest.paths[path].end - begin, 0.0
    for k in range(count):
        absent_weight -= weights[k] * (count + 1) / (count - k)
    for i in range(count):
        if not passes[i]:
            out[players[begin + i].column] += absent_weight * value
            continue
        # ``total``: the sum of the weights of sets without the player.
        fraction, total, remainder = players[begin + i].fraction, 0.0, weights[count]
        for k in range(count - 1, -1, -1):
            weight_without = remainder * (count + 1) / (k + 1)
            total += weight_without
            remainder = weights[k] - weight_without * fraction * (count - k) / (count + 1)
        out[players[begin + i].column] += total * (1.0 - fraction) * value


@dataclass
class _Player:
    """A feature of a path: the fraction of rows that pass its splits; steps: its splits, and whether these go left."""

    fraction: float = 1.0
    steps: list[tuple[int, bool]] = field(default_factory=list)


class Explainer:
    """A forest as arguments of kernels; expected: the mean margin of the training rows, shape (width,)."""

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
                begin, fraction = len(players), 1.0
                for feature, player in path.items():
                    column = int(np.searchsorted(self._used, feature))
                    players.append((column, player.fraction, len(steps), len(steps) + len(player.steps)))
                    steps += player.steps
                    fraction *= player.fraction
                value = float(tree.value[leaf])
                self.expected[output] += fraction * value
                if path:
                    paths.append((begin, len(players), value, output))
        step_splits = np.array([split for split, _ in steps], np.int32)
        step_lefts = np.array([is_left for _, is_left in steps], np.bool_)
        sets = np.concatenate(flags), all_set_codes(forest.trees)
        arrays = np.array(splits, SPLIT), *sets, np.array(paths, PATH), np.array(players, PLAYER)
        self._paths = Paths(*map(readable, (*arrays, step_splits, step_lefts)))

    def contributions(self, x: Any) -> Float64s:
        """Return SHAP values, shape (n, width, features + 1); the last column is ``expected``."""
        forest = self._forest
        x = forest.with_statistics(matrix_of(x, forest.inputs))
        out = np.zeros((x.shape[0], forest.width, forest.features))
        paths = self._paths.paths
        if not len(paths):
            return self._with_expected(out)
        lengths = paths["end"] - paths["players"]
        row_cost, max_length = int((lengths**2).sum()) * 3 + len(self._paths.splits), int(lengths.max())
        block_rows = max(MAX_BLOCK_VALUES // (len(self._used) * self._forest.width), 1)
        for begin in range(0, x.shape[0], block_rows):
            block = x[begin : begin + block_rows, self._used]
            if sp.issparse(block):
                block = dense_rows(sp.csr_array(block), self._forest.absent)
            block = np.ascontiguousarray(block, np.float64)
            values = np.zeros((len(block), self._forest.width, len(self._used)))
            over_blocks(add_contributions, (readable(block), values), self._paths, max_length, cost=row_cost)
            out[begin : begin + block_rows, :, self._used] = values
        return self._with_expected(out)

    def _with_expected(self, contributions: Float64s) -> Float64s:
        """Return contributions by input, shape (n, width, inputs + 1)."""
        expected = np.broadcast_to(self.expected[:, None], (*contributions.shape[:2], 1))
        return np.concatenate([self._forest.by_input(contributions), expected], axis=2)

    def _append_splits(self, tree: Tree, splits: list[tuple[Any, ...]], flags: list[Array]) -> dict[int, int]:
        """Append the splits of a tree, and their sets; return the index of each inner node's split."""
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
    """Yield the number of each leaf, and the players of its path by feature."""
    stack: list[tuple[int, dict[int, _Player]]] = [(0, {})]
    while stack:
        node, path = stack.pop()
        feature = int(tree.feature[node])
        if feature == LEAF:
            yield node, path
            continue
        previous = path.get(feature, _Player())
        for child, is_left in ((int(tree.right[node]), False), (int(tree.left[node]), True)):
            fraction = tree.cover[child] / tree.cover[node] if tree.cover[node] > 0 else 0.0
            player = _Player(previous.fraction * float(fraction), [*previous.steps, (split_numbers[node], is_left)])
            stack.append((child, {**path, feature: player}))


class GBTModel(TreesModel):
    """Boosted trees: a trained ``GBTClassifier``, ``GBTRegressor`` or ``GBTRanker`` without Spark; picklable.

    Example::

        model = GBTModel.load("models/clicks")
        model.predict(X)  # NumPy or scipy CSR
    """

    def __init__(self, forest: Forest) -> None:
        self.forest = forest

    @staticmethod
    def load(path: str) -> GBTModel:
        """Read a model that ``model.save(path)`` of an estimator's model wrote.

        Raises:
            CheckpointMissingError: the folder holds no model.
            UsageError: the folder holds another model, or its version is unknown.
            CheckpointCorruptError: the files do not match the metadata.
        """
        return GBTModel(Forest.load(path))

    @property
    def classes(self) -> int | None:
        """The number of classes; None: predictions are numbers."""
        return {"logistic": 2, "softmax": self.forest.width}.get(self.forest.loss)

    def margins(self, x: Any) -> Float64s:
        """Compute the margins of rows: the base plus the leaves of the trees.

        Args:
            x: shape (n, features), NumPy, scipy CSR or pandas; NaN is missing. An entry that a sparse row does not
                store is 0 or missing, as in training (``forest.absent``).

        Returns:
            float64, shape (n, 1), or with a column for each class.

        Raises:
            ShapeError, DTypeError: x has another shape or type.
        """
        return self._predictor.margins(x)

    def first(self, numTrees: int) -> GBTModel:
        """Return a model that has only the first trees.

        Args:
            numTrees: the number of trees of each output, which is the number of rounds.

        Raises:
            ConfigError: the model has fewer trees.
        """
        rounds = len(self.forest.trees) // self.forest.width
        if not 1 <= numTrees <= rounds:
            raise ConfigError(f"numTrees: expected a number from 1 to {rounds}, got {numTrees}")
        return GBTModel(replace(self.forest, trees=self.forest.trees[: numTrees * self.forest.width]))

    def contributions(self, x: Any, numTrees: int | None = None) -> Float64s:
        """Compute SHAP values: each feature's contribution to the margins of rows (path-dependent TreeSHAP, exact).

        Args:
            x, numTrees: see ``predict``.

        Returns:
            float64, shape (n, features + 1), or for several classes (n, classes, features + 1), as xgboost's
            ``pred_contribs``: the sum of a row is its margin, and the last column is the mean margin of the training
            rows, weighted by their hessians.

        Raises:
            ConfigError, ShapeError, DTypeError: see ``predict``.
        """
        contributions = self._first_trees(numTrees)._explainer.contributions(x)
        return contributions[:, 0] if self.forest.width == 1 else contributions

    def predict(self, x: Any, numTrees: int | None = None) -> Float64s:
        """Return classes or values, float64, shape (n,).

        Args:
            x: see ``margins``.
            numTrees: use only this many trees (of each class), the first ones; None: all.

        Raises:
            ConfigError: the model has fewer trees.
            ShapeError, DTypeError: see ``margins``.
        """
        return self.head.prediction(self.head.raw(self._first_trees(numTrees).margins(x)))

    def predictProbability(self, x: Any, numTrees: int | None = None) -> Float64s | None:
        """Return the probability of each class, float64, shape (n, classes); None: predictions are numbers.

        For Args and Raises, see ``predict``.
        """
        return self.head.probability(self.head.raw(self._first_trees(numTrees).margins(x)))

    def _first_trees(self, rounds: int | None) -> GBTModel:
        return self if rounds is None else self.first(rounds)

    def saveXGBoost(self, path: str) -> None:
        """Write xgboost's JSON model: ``xgboost.Booster(model_file=path)`` predicts the same, up to float32's rounding.

        To xgboost, entries that a sparse matrix does not store are missing, whatever ``forest.absent`` is.

        Raises:
            UsageError: in xgboost's float32, training rows would go to other leaves, or leaf values would be lost.
            RecoveryError: the file system refuses.
        """
        save_xgboost(path, self.forest)

    @property
    def head(self) -> ClassHead | ValueHead:
        """The function from margins to predictions."""
        if self.classes is None:
            return ValueHead(link="exp" if self.forest.loss == "poisson" else None)
        return ClassHead(self.classes, "softmax" if self.forest.loss == "softmax" else "logistic")

    def __repr__(self) -> str:
        return f"GBTModel(trees={len(self.forest.trees)}, features={self.dim}, loss={self.forest.loss!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {"forest": self.forest}

    @cached_property
    def _explainer(self) -> Explainer:
        return Explainer(self.forest)
