"""A trained random forest where there is no Spark and no server."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.frame.array_files import load_content, read_array, reading, write_arrays
from ps2.algorithms.frame.heads import ValueHead, VotesHead
from ps2.algorithms.trees.files import arrays_of, forest_of
from ps2.algorithms.trees.predict import TreesModel
from ps2.algorithms.trees.tree import Forest
from ps2.array_types import Float64s, Int32s, Int64s
from ps2.ops.guards import readable
from ps2.ops.kernels import kernel
from ps2.ops.parallel import over_blocks

FORMAT = "ps2.random_forest.v1"
# The cost of adding a leaf's vote, in additions.
LEAF_COST = 8


@dataclass(frozen=True, eq=False)
class RandomForest(TreesModel):
    """Trees that vote: a trained ``RandomForestClassifier`` or ``RandomForestRegressor`` without Spark; picklable.

    Example::

        model = RandomForest.load("models/clicks")
        model.predictProbability(X)  # NumPy or scipy CSR

    Attributes:
        forest: the trees. Their values are means of labels, or the classes with the largest share.
        shares: for classes, float64, shape (nodes, classes) for each tree: the shares of its rows' weight; else empty.
    """

    forest: Forest
    shares: tuple[Float64s, ...]

    @staticmethod
    def load(path: str) -> RandomForest:
        """Read a model that ``model.save(path)`` of an estimator's model wrote.

        Raises:
            CheckpointMissingError: the folder holds no model.
            UsageError: it is no random forest, or of a version that is not known here.
            CheckpointCorruptError: the files are not what the metadata say.
        """
        return read_random_forest(path, path, load_content(path))

    @property
    def classes(self) -> int | None:
        """The number of classes; None: predictions are numbers."""
        return self.shares[0].shape[1] if self.shares else None

    def margins(self, x: Any) -> Float64s:
        """Compute the margins of rows: the mean of the trees' values, or by class the sum of their shares.

        Args:
            x: shape (n, features), NumPy, scipy CSR or pandas; NaN is missing.

        Returns:
            float64, shape (n, 1) or (n, classes).

        Raises:
            ShapeError, DTypeError: x is no such matrix.
        """
        nodes = self.nodes(x)
        out = np.zeros((len(nodes), self.classes or 1))
        cost = LEAF_COST * max(nodes.shape[1], 1) * out.shape[1]
        if self.shares:
            over_blocks(add_shares, (nodes, out), *self._tables, cost=cost)
        else:
            over_blocks(add_values, (nodes, out), *self._tables, cost=cost)
        return out

    def votes(self, x: Any, counts: npt.NDArray[np.bool_]) -> tuple[Float64s, Int64s]:
        """Return the sum of some trees' votes for each row, float64, shape (n, 1) or (n, classes), and their number.

        Args:
            x: see ``margins``.
            counts: bool, shape (n, trees), whether a tree counts for a row.
        """
        nodes, (begins, votes) = self.nodes(x), self._tables
        out, trees = np.zeros((len(nodes), self.classes or 1)), np.zeros(len(nodes), np.int64)
        cost = LEAF_COST * max(nodes.shape[1], 1) * out.shape[1]
        over_blocks(add_votes, (nodes, counts, out, trees), begins, readable(votes.reshape(len(votes), -1)), cost=cost)
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
        """Return the features' importances, as pyspark.ml's: the mean over trees of shares of all gains; zeros if none.

        float64, shape (features,); they sum up to 1.
        """
        total = np.zeros(self.dim)
        for tree in self.forest.trees:
            inner = tree.feature >= 0
            gains = np.bincount(tree.feature[inner], tree.gain[inner], self.dim)
            if gains.sum() > 0:
                total += gains / gains.sum()
        return total / total.sum() if total.any() else total

    def part(self, tree: int) -> RandomForest:
        """Return the forest of one tree."""
        forest = Forest(self.forest.trees[tree : tree + 1], self.forest.base, self.dim, absent=self.forest.absent)
        return RandomForest(forest, self.shares[tree : tree + 1])

    def __repr__(self) -> str:
        return f"RandomForest(trees={len(self.forest.trees)}, features={self.dim}, classes={self.classes})"

    def __getstate__(self) -> dict[str, Any]:
        return {"forest": self.forest, "shares": self.shares}

    @cached_property
    def _tables(self) -> tuple[Int64s, Float64s]:
        """The first node of each tree, and the votes of all nodes."""
        begins = np.append(0, np.cumsum([len(tree) for tree in self.forest.trees])).astype(np.int64)
        votes = self.shares or [tree.value for tree in self.forest.trees]
        return readable(begins), readable(np.concatenate(votes))


def write_random_forest(url: str, model: RandomForest) -> dict[str, Any]:
    """Write a forest; return its part of the metadata."""
    arrays = arrays_of(model.forest)
    if model.shares:
        arrays["shares.npy"] = np.concatenate(model.shares)
    return {
        "format": FORMAT,
        "features": model.dim,
        "absent": model.forest.absent,
        "classes": model.classes or 0,
        "files": write_arrays(url, arrays),
    }


def read_random_forest(path: str, url: str, content: Any) -> RandomForest:
    """Read a forest; path: the user's name of the folder; content: the result of ``write_random_forest``."""
    with reading(path, content, FORMAT, "random forests"):
        forest = forest_of(url, content["files"], int(content["features"]), content["absent"])
        if not content["classes"]:
            return RandomForest(forest, ())
        shares = read_array(url, "shares.npy", content["files"])
        ends = np.cumsum([len(tree) for tree in forest.trees])
        return RandomForest(forest, tuple(np.split(shares.reshape(-1, content["classes"]), ends[:-1])))


@kernel
def add_shares(nodes: Int32s, out: Float64s, begins: Int64s, shares: Float64s) -> None:
    """Add the shares of the classes in each row's leaves; nodes: shape (n, trees), out: shape (n, classes)."""
    for row in range(nodes.shape[0]):
        for tree in range(nodes.shape[1]):
            node = begins[tree] + nodes[row, tree]
            for c in range(out.shape[1]):
                out[row, c] += shares[node, c]


@kernel
def add_values(nodes: Int32s, out: Float64s, begins: Int64s, values: Float64s) -> None:
    """Set ``out``, shape (n, 1), to the mean of the values of each row's leaves."""
    for row in range(nodes.shape[0]):
        total = 0.0
        for tree in range(nodes.shape[1]):
            total += values[begins[tree] + nodes[row, tree]]
        out[row, 0] = total / nodes.shape[1]


@kernel
def add_votes(
    nodes: Int32s, counts: npt.NDArray[np.bool_], out: Float64s, trees: Int64s, begins: Int64s, votes: Float64s
) -> None:
    """Add the votes of the leaves of trees that count for a row, and count these trees; votes: shape (nodes, width)."""
    for row in range(nodes.shape[0]):
        for tree in range(nodes.shape[1]):
            if counts[row, tree]:
                trees[row] += 1
                for c in range(out.shape[1]):
                    out[row, c] += votes[begins[tree] + nodes[row, tree], c]
