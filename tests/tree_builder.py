"""Trees that tests write down node by node."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.layout import category_flags
from ps2.algorithms.trees.rows import Split
from ps2.algorithms.trees.tree import LEAF, Bools, Tree


@dataclass
class _Node:
    """One that a draft has; attributes as in ``Tree``."""

    value: float
    cover: float
    count: int
    feature: int = LEAF
    threshold: float = 0.0
    default_left: bool = False
    left: int = LEAF
    right: int = LEAF
    gain: float = 0.0
    flags: Bools = field(default_factory=lambda: np.empty(0, np.bool_))


class TreeBuilder:
    """A growing tree; at first a root with its hessian and number of rows."""

    def __init__(self, value: float, cover: float, count: int) -> None:
        self._nodes = [_Node(value, cover, count)]

    def __len__(self) -> int:
        return len(self._nodes)

    def set_value(self, node: int, value: float) -> None:
        """Set the value of a node."""
        self._nodes[node].value = value

    def split(self, node: int, feature: int, test: float | Bools, default_left: bool, gain: float) -> None:
        """Part a leaf.

        Args:
            test: threshold, or flags of the categories that go left.
        """
        at = self._nodes[node]
        at.feature, at.default_left, at.gain = feature, default_left, gain
        if isinstance(test, np.ndarray):
            at.flags = test
        else:
            at.threshold = test

    def add_child(self, parent: int, value: float, cover: float, count: int) -> int:
        """Add the left child of a node that has been split or, if it has that, the right one; return its number."""
        number, at = len(self), self._nodes[parent]
        if at.left == LEAF:
            at.left = number
        else:
            at.right = number
        self._nodes.append(_Node(value, cover, count))
        return number

    def finish(self, rate: float = 1.0) -> Tree:
        """Return the tree, its values times a learning rate."""

        def all_of(name: str, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
            return np.array([getattr(node, name) for node in self._nodes], dtype)

        return Tree(
            all_of("feature", np.int32),
            all_of("threshold", np.float64),
            all_of("default_left", np.bool_),
            all_of("left", np.int32),
            all_of("right", np.int32),
            all_of("value", np.float64) * rate,
            all_of("gain", np.float64),
            all_of("cover", np.float64),
            all_of("count", np.int64),
            np.append(0, np.cumsum([len(node.flags) for node in self._nodes])),
            np.concatenate([node.flags for node in self._nodes]),
        )


def threshold(bins: Bins, feature: int, bin: int) -> float:
    """Return the upper limit of the values in a bin; infinity for the last bin."""
    cut = bins.cut_offsets[feature] + bin
    return float(bins.cuts[cut]) if cut < bins.cut_offsets[feature + 1] else float("inf")


def split_test(split: Split, bins: Bins) -> float | Bools:
    """Return the threshold of a split, or the flags of the categories that go left."""
    if split.bin < 0:
        return category_flags(split.words, int(bins.categories[split.feature]))
    return threshold(bins, split.feature, split.bin)
