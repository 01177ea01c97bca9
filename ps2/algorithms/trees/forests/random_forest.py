"""A trained random forest that needs neither Spark nor servers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.frame.array_files import ArrayFiles, ModelFiles
from ps2.algorithms.frame.heads import ValueHead, VotesHead
from ps2.algorithms.trees.predict import TreesModel
from ps2.algorithms.trees.tree import SET_CODES, Forest, checked_absent
from ps2.array_types import Float64s, Int32s, Int64s
from ps2.ops.guards import readable
from ps2.ops.kernels import kernel
from ps2.ops.parallel import over_blocks

# The cost of adding a leaf's vote, in additions of array elements.
LEAF_COST = 8


@dataclass(frozen=True, eq=False)
class RandomForest(TreesModel):
    """Trees that vote: a trained ``RandomForestClassifier`` or ``RandomForestRegressor`` without Spark; picklable.

    Example::

        model = RandomForest.load("models/clicks")
        model.predictProbability(X)  # NumPy or scipy CSR

    Attributes:
        forest: the trees. A node's value is the mean label, or the class with the largest weight.
        shares: for each tree, the fraction of each class in the weight of each node's rows, float64, shape (nodes,
            classes); empty: regression.
    """

    forest: Forest
    shares: tuple[Float64s, ...]

    @staticmethod
    def load(path: str) -> RandomForest:
        """Read a model that ``model.save(path)`` of an estimator's model wrote.

        Raises:
            CheckpointMissingError: the folder holds no model.
            UsageError: the folder holds another model, or its version is unknown.
            CheckpointCorruptError: the files do not match the metadata.
        """
        return RandomForestFiles.load(path).model

    @property
    def classes(self) -> int | None:
        """The number of classes; None: predictions are numbers."""
        return self.shares[0].shape[1] if self.shares else None

    def margins(self, x: Any) -> Float64s:
        """Compute the margins of rows: the mean of the leaves' values, or for each class the sum of its fractions.

        Args:
            x: shape (n, features), NumPy, scipy CSR or pandas; NaN is missing.

        Returns:
            float64, shape (n, 1) or (n, classes).

        Raises:
            ShapeError, DTypeError: x has another shape or type.
        """
        nodes = self.nodes(x)
        out = np.zeros((len(nodes), self.classes or 1))
        cost = LEAF_COST * max(nodes.shape[1], 1) * out.shape[1]
        over_blocks(add_leaves, (nodes, out), *self._tables, cost=cost)
        return out if self.shares else out / nodes.shape[1]

    def votes(self, x: Any, counts: npt.NDArray[np.bool_]) -> tuple[Float64s, Int64s]:
        """Sum the votes of the trees that count for a row; return the sums, and the number of these trees.

        Args:
            x: see ``margins``.
            counts: whether a tree counts for a row, bool, shape (n, trees).

        Returns:
            The sums, float64, shape (n, 1) or (n, classes), and the numbers of trees, int64, shape (n,).
        """
        nodes = self.nodes(x)
        out, trees = np.zeros((len(nodes), self.classes or 1)), np.zeros(len(nodes), np.int64)
        cost = LEAF_COST * max(nodes.shape[1], 1) * out.shape[1]
        over_blocks(add_votes, (nodes, counts, out, trees), *self._tables, cost=cost)
        return out, trees

    def predict(self, x: Any) -> Float64s:
        """Return classes or values, float64, shape (n,); for args and errors, see ``margins``."""
        return self.head.prediction(self.head.raw(self.margins(x)))

    def predictProbability(self, x: Any) -> Float64s | None:
        """Return the probability of each class, float64, shape (n, classes); None: predictions are numbers."""
        return self.head.probability(self.head.raw(self.margins(x)))

    @property
    def head(self) -> VotesHead | ValueHead:
        """The function from margins to predictions."""
        return ValueHead() if self.classes is None else VotesHead(self.classes)

    def importances(self) -> Float64s:
        """Return the features' importances, as pyspark.ml: a feature's fraction of a tree's gains, averaged over trees.

        They are float64, of shape (features,), and their sum is 1; zeros: there are no splits.
        """
        total = np.zeros(self.dim)
        for tree in self.forest.trees:
            inner = tree.feature >= 0
            gains = np.bincount(tree.feature[inner], tree.gain[inner], self.dim)
            if gains.sum() > 0:
                total += gains / gains.sum()
        return total / total.sum() if total.any() else total

    def part(self, tree: int) -> RandomForest:
        """Return a forest of only one tree; tree: its number."""
        forest = Forest(self.forest.trees[tree : tree + 1], self.forest.base, self.dim, absent=self.forest.absent)
        return RandomForest(forest, self.shares[tree : tree + 1])

    def __repr__(self) -> str:
        return f"RandomForest(trees={len(self.forest.trees)}, features={self.dim}, classes={self.classes})"

    def __getstate__(self) -> dict[str, Any]:
        return {"forest": self.forest, "shares": self.shares}

    @cached_property
    def _tables(self) -> tuple[Int64s, Float64s]:
        """The index of each tree's first node, and the votes of all trees' nodes, shape (nodes, classes or 1)."""
        begins = np.append(0, np.cumsum([len(tree) for tree in self.forest.trees])).astype(np.int64)
        votes = self.shares or [tree.value[:, None] for tree in self.forest.trees]
        return readable(begins), readable(np.concatenate(votes))


class RandomForestFiles(ArrayFiles):
    """The files of a random forest; the array "shares" exists only for classification."""

    _FILES = ModelFiles(
        "ps2.random_forest.v1",
        "random forests",
        {"nodes": "V", "sizes": "i", "sets": "b", "base": "f"},
        {"features": int, "absent": checked_absent, "classes": int},
        optional={"shares": "f"} | SET_CODES,
    )

    def __init__(self, model: RandomForest) -> None:
        self.model = model

    def _arrays_to_write(self) -> dict[str, Any]:
        shares = {"shares": np.concatenate(self.model.shares)} if self.model.shares else {}
        return self.model.forest.arrays() | shares

    def _values_to_write(self) -> dict[str, Any]:
        model = self.model
        return {"features": model.dim, "absent": model.forest.absent, "classes": model.classes or 0}

    @classmethod
    def _make(cls, arrays: dict[str, Any], values: dict[str, Any]) -> RandomForestFiles:
        classes, shares = values.pop("classes"), arrays.pop("shares", None)
        forest = Forest.from_arrays(**arrays, **values)
        if not classes:
            return RandomForestFiles(RandomForest(forest, ()))
        ends = np.cumsum([len(tree) for tree in forest.trees])
        if shares is None:
            raise ValueError(f"shares: expected those of {classes} classes")
        return RandomForestFiles(RandomForest(forest, tuple(np.split(shares.reshape(-1, classes), ends[:-1]))))


@kernel
def add_leaves(nodes: Int32s, out: Float64s, begins: Int64s, votes: Float64s) -> None:
    """Add the votes of each row's leaves to ``out``, shape (n, width); nodes: shape (n, trees)."""
    for row in range(nodes.shape[0]):
        for tree in range(nodes.shape[1]):
            node = begins[tree] + nodes[row, tree]
            for c in range(out.shape[1]):
                out[row, c] += votes[node, c]


@kernel
def add_votes(
    nodes: Int32s, counts: npt.NDArray[np.bool_], out: Float64s, trees: Int64s, begins: Int64s, votes: Float64s
) -> None:
    """Add the votes of the trees that count for each row, and count these trees; votes: shape (nodes, width)."""
    for row in range(nodes.shape[0]):
        for tree in range(nodes.shape[1]):
            if counts[row, tree]:
                trees[row] += 1
                for c in range(out.shape[1]):
                    out[row, c] += votes[begins[tree] + nodes[row, tree], c]
