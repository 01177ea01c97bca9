"""Trees as arrays, and forests of them.

Thresholds and leaves are float64, as features, labels and margins are. Where float32 can part the values on both sides
of it, a threshold is a float32 number: so a model that is saved for xgboost parts the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ps2.array_types import Float64s, Int32s, Int64s

Bools = npt.NDArray[np.bool_]

LossName = Literal["logistic", "softmax", "squared", "absolute", "huber", "poisson", "quantile", "lambdarank"]
ScoreName = Literal["weight", "gain", "cover", "totalGain", "totalCover"]

Absent = Literal["zero", "missing"]

LEAF = -1
# Where Java turns to scientific notation.
JAVA_PLAIN = (1e-3, 1e7)


@dataclass(frozen=True, eq=False)
class Tree:
    """A binary tree of n nodes; node 0 is the root, and children come after their parent.

    A row goes left where its feature is at most the threshold, or, if there is a set, where its category is in it; NaN
    goes to the default side, and so does a category beyond the set's end, or what is none (negative, not whole).

    Attributes:
        feature: int32, shape (n,); -1 at leaves.
        threshold: float64, shape (n,); 0 at leaves and where there is a set.
        default_left: bool, shape (n,).
        left, right: int32, shape (n,), numbers of nodes; -1 at leaves.
        value: float64, shape (n,): what a leaf adds to the margin, learning rate included; at other nodes, what they
            would add if they were leaves.
        gain: float64, shape (n,): by how much the split lessens twice the objective; 0 at leaves.
        cover: float64, shape (n,): sum of the rows' hessians.
        count: int64, shape (n,): rows in training.
        set_begin: int64, shape (n + 1,): where each node's set begins in ``set_flags``; a numeric node's is empty.
        set_flags: bool: for each category from 0 on, whether it goes left.
    """

    feature: Int32s
    threshold: Float64s
    default_left: Bools
    left: Int32s
    right: Int32s
    value: Float64s
    gain: Float64s
    cover: Float64s
    count: Int64s
    set_begin: Int64s
    set_flags: Bools

    def __len__(self) -> int:
        return len(self.feature)

    def __repr__(self) -> str:
        # Its arrays would fill the screen.
        return f"Tree(depth={self.depth}, nodes={len(self)}, leaves={self.leaf_count})"

    @property
    def leaves(self) -> Int64s:
        """Numbers of the leaves, from left to right; a leaf's place is its index in pyspark.ml's ``predictLeaf``."""
        return np.array([node for node, _ in self._walk() if self.feature[node] == LEAF], np.int64)

    @property
    def leaf_count(self) -> int:
        """How many leaves there are."""
        return int((self.feature == LEAF).sum())

    @property
    def depth(self) -> int:
        """How many splits lie above the deepest leaf."""
        return max(depth for _, depth in self._walk())

    def set_of(self, node: int) -> Bools:
        """Return the flags of a node's set; none where the split is numeric."""
        return self.set_flags[self.set_begin[node] : self.set_begin[node + 1]]

    def to_debug_string(self, indent: int = 0, base: float = 0.0) -> str:
        """Print the tree as pyspark.ml does, a line per condition and leaf; ``base`` is added to leaves."""
        lines: list[str] = []
        todo: list[tuple[int | str, int]] = [(0, indent)]
        while todo:
            node, depth = todo.pop()
            if isinstance(node, str):
                lines.append(" " * depth + node)
            elif self.feature[node] == LEAF:
                lines.append(" " * depth + f"Predict: {java_number(self.value[node] + base)}")
            else:
                left, right = self._conditions(node)
                lines.append(" " * depth + f"If ({left})")
                todo += [
                    (int(self.right[node]), depth + 1),
                    (f"Else ({right})", depth),
                    (int(self.left[node]), depth + 1),
                ]
        return "".join(line + "\n" for line in lines)

    def _conditions(self, node: int) -> tuple[str, str]:
        what, flags = f"feature {self.feature[node]}", self.set_of(node)
        if len(flags):
            categories = "{" + ",".join(java_number(c) for c in np.flatnonzero(flags)) + "}"
            return f"{what} in {categories}", f"{what} not in {categories}"
        threshold = java_number(shortest(self.threshold[node]))
        return f"{what} <= {threshold}", f"{what} > {threshold}"

    def _walk(self) -> Iterator[tuple[int, int]]:
        """Yield nodes with their depths, parents first, left before right."""
        todo = [(0, 0)]
        while todo:
            node, depth = todo.pop()
            yield node, depth
            if self.feature[node] != LEAF:
                todo += [(int(self.right[node]), depth + 1), (int(self.left[node]), depth + 1)]


@dataclass(frozen=True, eq=False)
class Forest:
    """Trees whose leaves add up to margins.

    Attributes:
        trees: tree t adds to output ``t % width``.
        base: float64, shape (width,): the margins before any tree; one, or ("softmax") one a class.
        features: how many there are.
        loss: the loss that the trees were grown for.
        shape: the loss's shape: see ``Objective``.
        absent: how to read an entry that a sparse row does not store: as 0, or as missing, like NaN.
    """

    trees: tuple[Tree, ...]
    base: Float64s
    features: int
    loss: LossName = "squared"
    shape: float = 0.5
    absent: Absent = "zero"

    @property
    def width(self) -> int:
        """How many margins a row has."""
        return len(self.base)

    @property
    def nodes(self) -> int:
        return sum(map(len, self.trees))

    def to_debug_string(self, header: str, rate: float = 1.0) -> str:
        """Print all trees as pyspark.ml does, below ``header``; ``rate``: see ``parts``."""
        texts = (
            f"  Tree {t} (weight {java_number(weight)}):\n" + part.trees[0].to_debug_string(4, float(part.base[0]))
            for t, (weight, part) in enumerate(zip(self.weights(rate), self.parts(rate), strict=True))
        )
        return f"{header}\n{''.join(texts)}"

    def weights(self, rate: float) -> list[float]:
        """Return the factors of ``parts`` in the margins: 1 for the first tree of an output, else the rate."""
        return [1.0 if number < self.width else rate for number in range(len(self.trees))]

    def parts(self, rate: float) -> Iterator[Forest]:
        """Yield forests of one tree each, without learning rates; the first one of an output has its base."""
        for number, (tree, weight) in enumerate(zip(self.trees, self.weights(rate), strict=True)):
            base = self.base[number : number + 1] if number < self.width else np.zeros(1)
            value = (tree.value.astype(np.float64) / weight).astype(tree.value.dtype)
            yield Forest((replace(tree, value=value),), base, self.features, absent=self.absent)

    def importances(self) -> Float64s:
        """Return the features' shares of all gains, float64, shape (features,); zeros if nothing was split."""
        total = self.scores("totalGain")
        return total / total.sum() if total.any() else total

    def scores(self, kind: ScoreName) -> Float64s:
        """Return a number for each feature, shape (features,), as xgboost's ``get_score``; 0: no split."""
        count, total = np.zeros((2, self.features))
        for tree in self.trees:
            inner = tree.feature != LEAF
            np.add.at(count, tree.feature[inner], 1)
            np.add.at(total, tree.feature[inner], (tree.gain if kind in ("gain", "totalGain") else tree.cover)[inner])
        if kind == "weight":
            return count
        return total if kind in ("totalGain", "totalCover") else total / np.maximum(count, 1)


def tree_as_data(tree: Tree) -> list[Any]:
    """Return a tree as plain data."""
    return [getattr(tree, field.name) for field in fields(Tree)]


def leaf_range(trees: Sequence[Tree]) -> tuple[float, float]:
    """Return the smallest and the largest possible sum of the trees' leaves."""
    leaves = [tree.value[tree.feature == LEAF] for tree in trees]
    return sum(float(values.min()) for values in leaves), sum(float(values.max()) for values in leaves)


def leaf_tree(value: float) -> Tree:
    """Return a tree that is one leaf."""
    whole, real, flag = np.full(1, LEAF, np.int32), np.zeros(1), np.zeros(1, np.bool_)
    count = np.zeros(1, np.int64)
    return Tree(whole, real, flag, whole, whole, np.full(1, value), real, real, count, np.zeros(2, np.int64), flag[:0])


def shortest(threshold: np.float64) -> np.generic:
    """Return a threshold as float32, which has fewer decimals, if it is one."""
    with np.errstate(over="ignore"):
        short = np.float32(threshold)
    return short if short == threshold else threshold


def java_number(value: float | np.generic) -> str:
    """Format a number as Java formats a double."""
    number = float(str(value))  # a float32's shortest decimals, not those of the double that it equals
    size = abs(number)
    if number != number or size == float("inf"):
        return "NaN" if number != number else "Infinity" if number > 0 else "-Infinity"
    if size == 0 or JAVA_PLAIN[0] <= size < JAVA_PLAIN[1]:
        return str(number)
    digits, _, exponent = np.format_float_scientific(number, trim="0").partition("e")
    return f"{digits}E{int(exponent)}"
