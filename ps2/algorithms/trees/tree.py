"""Trees as arrays, and forests of them.

Thresholds and leaves are float64, as features, labels and margins are. A threshold is a float32 number wherever a
float32 number separates the values on both sides. So a model that is saved for xgboost splits rows in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from ps2.algorithms.frame.array_files import ArrayFiles, ModelFiles
from ps2.algorithms.trees.target_statistics import StatisticColumns, StatisticTable
from ps2.array_types import Float64s, Int32s, Int64s

Bools = npt.NDArray[np.bool_]

LossName = Literal["logistic", "softmax", "squared", "absolute", "huber", "poisson", "quantile", "lambdarank"]
ScoreName = Literal["weight", "split", "gain", "cover", "totalGain", "totalCover"]

Absent = Literal["zero", "missing"]

LEAF = -1
# The interval [low, high) of numbers that Java formats without an exponent.
JAVA_PLAIN = (1e-3, 1e7)
# A node in a file; set_size: the number of flags in ``set_flags`` for its set of categories.
NODE = np.dtype(
    [
        ("feature", "<i4"),
        ("threshold", "<f8"),
        ("default_left", "?"),
        ("left", "<i4"),
        ("right", "<i4"),
        ("value", "<f8"),
        ("gain", "<f8"),
        ("cover", "<f8"),
        ("count", "<i8"),
        ("set_size", "<i8"),
    ]
)
# An optional array in files of forests: see ``Tree.set_codes``.
SET_CODES = {"set_codes": "i"}
NODE_FIELDS = [name for name in NODE.fields or () if name != "set_size"]


@dataclass(frozen=True, eq=False)
class Tree:
    """A binary tree of n nodes; node 0 is the root, and children come after their parent.

    A row goes left if its feature is at most the threshold or, if the node has a set, if its category is in the set. A
    missing value (NaN) goes to the default side; at a node with a set, so does a value without a flag in the set.

    Attributes:
        feature: the feature of each split, int32, shape (n,); -1 at leaves.
        threshold: the threshold of each split, float64, shape (n,); 0 at leaves and where there is a set.
        default_left: whether missing values go left, bool, shape (n,).
        left, right: the numbers of the children, int32, shape (n,); -1 at leaves.
        value: what a leaf adds to the margin, after the learning rate, float64, shape (n,); of an inner node: what it
            would add as a leaf.
        gain: each split's gain, which is twice the decrease of the objective, float64, shape (n,); 0 at leaves.
        cover: the sum of the rows' hessians, float64, shape (n,).
        count: the number of training rows, int64, shape (n,).
        set_begin: the set of node i is ``set_flags[set_begin[i] : set_begin[i + 1]]``; empty for a numeric split;
            int64, shape (n + 1,).
        set_flags: for each category of a set, whether it goes left, bool.
        set_codes: the category of each flag, ascending within a set, int64; empty: a set has categories 0, 1, 2, ...
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
    set_codes: Int64s = field(default_factory=lambda: np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.feature)

    def __repr__(self) -> str:
        # The arrays would fill the screen.
        return f"Tree(depth={self.depth}, nodes={len(self)}, leaves={self.leaf_count})"

    @property
    def leaves(self) -> Int64s:
        """The numbers of the leaves, from left to right: in the order of pyspark.ml's ``predictLeaf``."""
        return np.array([node for node, _ in self._walk() if self.feature[node] == LEAF], np.int64)

    @property
    def is_leaf(self) -> Bools:
        return self.feature == LEAF

    @property
    def leaf_count(self) -> int:
        return int(self.is_leaf.sum())

    @property
    def depth(self) -> int:
        """The number of splits above the deepest leaf."""
        return max(depth for _, depth in self._walk())

    def set_of(self, node: int) -> Bools:
        """Return the flags of a node's set; empty for a numeric split."""
        return self.set_flags[self.set_begin[node] : self.set_begin[node + 1]]

    def node_codes(self, node: int) -> Int64s:
        """Return the category of each flag of ``set_of(node)``."""
        begin, end = self.set_begin[node], self.set_begin[node + 1]
        return self.set_codes[begin:end] if len(self.set_codes) else np.arange(end - begin)

    def to_debug_string(
        self, indent: int = 0, base: float = 0.0, column_name: Callable[[int], str] = "feature {}".format
    ) -> str:
        """Format the tree as pyspark.ml does, a line for each condition and leaf; ``base`` is added to leaves."""
        lines: list[str] = []
        stack: list[tuple[int | str, int]] = [(0, indent)]
        while stack:
            node, depth = stack.pop()
            if isinstance(node, str):
                lines.append(" " * depth + node)
            elif self.feature[node] == LEAF:
                lines.append(" " * depth + f"Predict: {java_number(self.value[node] + base)}")
            else:
                left, right = self._conditions(node, column_name(int(self.feature[node])))
                lines.append(" " * depth + f"If ({left})")
                stack += [
                    (int(self.right[node]), depth + 1),
                    (f"Else ({right})", depth),
                    (int(self.left[node]), depth + 1),
                ]
        return "".join(line + "\n" for line in lines)

    def _conditions(self, node: int, name: str) -> tuple[str, str]:
        flags, codes = self.set_of(node), self.node_codes(node)
        if len(flags):
            is_left = bool(flags.any())  # a set may list only the categories that go right
            categories = "{" + ",".join(java_number(c) for c in codes[flags == is_left]) + "}"
            conditions = f"{name} in {categories}", f"{name} not in {categories}"
            return conditions if is_left else conditions[::-1]
        threshold = java_number(as_float32_if_exact(self.threshold[node]))
        return f"{name} <= {threshold}", f"{name} > {threshold}"

    def _walk(self) -> Iterator[tuple[int, int]]:
        """Yield nodes with their depths, parents first, left before right."""
        stack = [(0, 0)]
        while stack:
            node, depth = stack.pop()
            yield node, depth
            if self.feature[node] != LEAF:
                stack += [(int(self.right[node]), depth + 1), (int(self.left[node]), depth + 1)]


def checked_absent(value: Any) -> Absent:
    """Return ``Forest.absent`` from a file; raise ValueError if it is not one of its values."""
    if value not in get_args(Absent):
        raise ValueError(f"absent: {value!r}")
    absent: Absent = value
    return absent


@dataclass(frozen=True, eq=False)
class Forest(ArrayFiles):
    """Trees whose leaf values add up to margins. Its files contain the nodes of all trees, tree by tree.

    Attributes:
        trees: the trees; tree t adds to output ``t % width``.
        base: the margins before any tree, float64, shape (width,); width is the number of classes ("softmax"), else 1.
        features: the number of features, with the columns of target statistics.
        loss: the loss that the trees were grown for.
        shape: the parameter of the loss (see ``Objective``).
        absent: how to read an entry that a sparse row does not store: as 0, or as missing.
        statistics: the target statistics of the training rows; None: there are none.
    """

    trees: tuple[Tree, ...]
    base: Float64s
    features: int
    loss: LossName = "squared"
    shape: float = 0.5
    absent: Absent = "zero"
    statistics: StatisticTable | None = None

    _FILES = ModelFiles(
        "ps2.forest.v2",
        "trees",
        {"nodes": "V", "sizes": "i", "sets": "b", "base": "f"},
        {"features": int, "loss": str, "shape": float, "absent": checked_absent},
        optional={**SET_CODES, "statistic_keys": "i", "statistic_sums": "i"},
        optional_values={"statistic_columns": StatisticColumns.from_json},
    )

    def arrays(self) -> dict[str, Any]:
        """Return the arrays of the trees that the files contain."""
        nodes = np.zeros(self.nodes, NODE)
        begin = 0
        for tree in self.trees:
            tree_nodes = nodes[begin : begin + len(tree)]
            for name in NODE_FIELDS:
                tree_nodes[name] = getattr(tree, name)
            tree_nodes["set_size"] = np.diff(tree.set_begin)
            begin += len(tree)
        sizes = np.array([len(tree) for tree in self.trees], np.int64)
        sets = np.concatenate([np.empty(0, np.bool_), *(tree.set_flags for tree in self.trees)])
        arrays = {"nodes": nodes, "sizes": sizes, "sets": sets, "base": np.asarray(self.base, np.float64)}
        codes = all_set_codes(self.trees)
        return arrays | ({"set_codes": codes} if len(codes) else {})

    @staticmethod
    def from_arrays(**parts: Any) -> Forest:
        """Return a forest from the result of ``arrays`` and from the other attributes."""
        nodes, sizes, sets = (parts.pop(name) for name in ("nodes", "sizes", "sets"))
        codes = parts.pop("set_codes", np.empty(0, np.int64))
        trees: list[Tree] = []
        begin = set_flag_begin = 0
        for size in sizes.tolist():
            tree_nodes = nodes[begin : begin + size]
            set_begin = np.append(0, np.cumsum(tree_nodes["set_size"]))
            span = slice(set_flag_begin, set_flag_begin + int(set_begin[-1]))
            fields: dict[str, Any] = {name: np.ascontiguousarray(tree_nodes[name]) for name in NODE_FIELDS}
            trees.append(Tree(**fields, set_begin=set_begin, set_flags=sets[span], set_codes=codes[span]))
            begin, set_flag_begin = begin + size, set_flag_begin + int(set_begin[-1])
        return Forest(tuple(trees), **parts)

    def _arrays_to_write(self) -> dict[str, Any]:
        table = self.statistics
        statistics = {} if table is None else {"statistic_keys": table.keys, "statistic_sums": table.sums}
        return {**self.arrays(), **statistics}

    @property
    def statistic_columns(self) -> StatisticColumns | None:
        return None if self.statistics is None else self.statistics.columns

    @classmethod
    def _make(cls, arrays: dict[str, Any], values: dict[str, Any]) -> Forest:
        columns = values.pop("statistic_columns", None)
        if columns is not None:
            values["statistics"] = StatisticTable(columns, arrays.pop("statistic_keys"), arrays.pop("statistic_sums"))
        return cls.from_arrays(**arrays, **values)

    @property
    def inputs(self) -> int:
        """The number of features of rows, without the columns of target statistics."""
        return self.features if self.statistics is None else self.statistics.columns.features

    def with_statistics(self, x: Any) -> Any:
        """Return rows, shape (n, inputs), with the columns of target statistics."""
        if self.statistics is None:
            return x
        return self.statistics.with_columns(x, 0.0 if self.absent == "zero" else np.nan)

    def by_input(self, values: Float64s) -> Float64s:
        """Return values of features, shape (..., features), by input, shape (..., inputs)."""
        return values if self.statistics is None else self.statistics.columns.by_feature(values)

    @property
    def width(self) -> int:
        """The number of margins of a row."""
        return len(self.base)

    @property
    def nodes(self) -> int:
        return sum(map(len, self.trees))

    def to_debug_string(self, header: str, rate: float = 1.0) -> str:
        """Format all trees as pyspark.ml does, below ``header``; rate: see ``parts``."""
        columns = self.statistic_columns
        column_name = "feature {}".format if columns is None else columns.column_name
        texts = (
            f"  Tree {t} (weight {java_number(weight)}):\n"
            + part.trees[0].to_debug_string(4, float(part.base[0]), column_name)
            for t, (weight, part) in enumerate(zip(self.weights(rate), self.parts(rate), strict=True))
        )
        return f"{header}\n{''.join(texts)}"

    def weights(self, rate: float) -> list[float]:
        """Return the weight of each of ``parts`` in the margins: 1 for the first tree of an output, else the rate."""
        return [1.0 if number < self.width else rate for number in range(len(self.trees))]

    def parts(self, rate: float) -> Iterator[Forest]:
        """Yield a forest of each tree, without the learning rate; the first of an output has the output's base."""
        for number, (tree, weight) in enumerate(zip(self.trees, self.weights(rate), strict=True)):
            base = self.base[number : number + 1] if number < self.width else np.zeros(1)
            value = (tree.value.astype(np.float64) / weight).astype(tree.value.dtype)
            part = Forest((replace(tree, value=value),), base, self.features, absent=self.absent)
            yield replace(part, statistics=self.statistics)

    def importances(self) -> Float64s:
        """Return each feature's fraction of all gains, float64, shape (inputs,); zeros if there are no splits."""
        total = self.scores("totalGain")
        return total / total.sum() if total.any() else total

    def scores(self, kind: ScoreName) -> Float64s:
        """Return the importance of each feature, shape (inputs,), as xgboost's ``get_score``; 0: no split uses it."""
        count, total = np.zeros((2, self.features))
        for tree in self.trees:
            inner = tree.feature != LEAF
            np.add.at(count, tree.feature[inner], 1)
            np.add.at(total, tree.feature[inner], (tree.gain if kind in ("gain", "totalGain") else tree.cover)[inner])
        count, total = self.by_input(count), self.by_input(total)
        if kind in ("weight", "split"):
            return count
        if kind in ("totalGain", "totalCover"):
            return total
        return np.divide(total, count, where=count > 0, out=np.zeros(self.inputs))


def all_set_codes(trees: Sequence[Tree]) -> Int64s:
    """Return the category of each flag of all trees' sets; empty: the sets of all trees have categories 0, 1, ..."""
    codes = [np.empty(0, np.int64)]
    if any(len(tree.set_codes) for tree in trees):
        codes += [tree.node_codes(node) for tree in trees for node in range(len(tree))]
    return np.concatenate(codes)


def tree_as_data(tree: Tree) -> list[Any]:
    """Return the arrays of a tree, in the order of its attributes."""
    return [getattr(tree, field.name) for field in fields(Tree)]


def leaf_range(trees: Sequence[Tree]) -> tuple[float, float]:
    """Return the smallest and the largest possible sum of the trees' leaf values."""
    leaves = [tree.value[tree.is_leaf] for tree in trees]
    return sum(float(values.min()) for values in leaves), sum(float(values.max()) for values in leaves)


def leaf_tree(value: float) -> Tree:
    leaf, zero, flag = np.full(1, LEAF, np.int32), np.zeros(1), np.zeros(1, np.bool_)
    count = np.zeros(1, np.int64)
    return Tree(leaf, zero, flag, leaf, leaf, np.full(1, value), zero, zero, count, np.zeros(2, np.int64), flag[:0])


def as_float32_if_exact(threshold: np.float64) -> np.generic:
    """Return a threshold as float32, which prints fewer decimals, if it is exactly a float32 number."""
    with np.errstate(over="ignore"):
        as_float32 = np.float32(threshold)
    return as_float32 if as_float32 == threshold else threshold


def java_number(value: float | np.generic) -> str:
    """Format a number as Java formats a double."""
    number = float(str(value))  # str() gives a float32 its shortest decimals, float() alone does not
    magnitude = abs(number)
    if number != number or magnitude == float("inf"):
        return "NaN" if number != number else "Infinity" if number > 0 else "-Infinity"
    if magnitude == 0 or JAVA_PLAIN[0] <= magnitude < JAVA_PLAIN[1]:
        return str(number)
    digits, _, exponent = np.format_float_scientific(number, trim="0").partition("e")
    return f"{digits}E{int(exponent)}"
