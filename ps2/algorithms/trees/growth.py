"""A tree that grows level by level, in the driver: pure. Answers of the servers in, what workers are to do out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.trees import told
from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.growing import Split, child_bounds
from ps2.algorithms.trees.ops import weight_of
from ps2.algorithms.trees.problem import LEAST_GAIN, Recipe, key_of
from ps2.algorithms.trees.tree import Draft, Tree

Array = npt.NDArray[Any]
Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]

# Of a histogram matrix: its layout, and the histogram of a root.
LAYOUT, ROOT = 0, 1


@dataclass(frozen=True, eq=False)
class Found:
    """What ``best_splits`` says of open nodes, in their order: see there."""

    gains: Float64s
    where: Int64s
    left: Int64s
    sets: Int64s


@dataclass(frozen=True, eq=False)
class _Open:
    """A node that may be split.

    Attributes:
        number: in the tree.
        row: of its histogram.
        totals: int64: sums of hessians, gradients, and of the third channel.
        bounds: of the weights below it.
    """

    number: int
    row: int
    totals: Int64s
    bounds: Float64s


class Growth:
    """One tree.

    Args:
        scales: what hessians and gradients were multiplied by.
        totals: int64, shape (3,): the sums of all rows: hessians, gradients, and the third channel.
        tree: its number.
    """

    def __init__(self, recipe: Recipe, bins: Bins, scales: tuple[float, float], totals: Int64s, tree: int = 0) -> None:
        self._recipe, self._bins, self._tree = recipe, bins, tree
        self._h_unit, self._g_unit = 1 / scales[0], 1 / scales[1]
        self.rules = np.array(
            [self._g_unit, self._h_unit, recipe.reg_lambda, recipe.reg_alpha, recipe.min_child_weight]
        )
        root = _Open(0, ROOT, totals, recipe.bounds)
        self._draft = Draft(self._weight(root), self._cover(root), 0)
        self._depth = 0
        self._open = [root]
        self._free: list[int] = []
        self._unused = ROOT + 1  # the first row that no histogram has been in
        self._small: list[int] = []
        # Histograms of which others are to be subtracted when workers have added these, as pairs of rows.
        self.subtract: list[tuple[int, int]] = []
        # Rows that are to be zeros before workers add to them.
        self.clear: list[int] = []

    @property
    def is_over(self) -> bool:
        return not self._open

    @property
    def is_searched(self) -> bool:
        """Whether splits of the open nodes are to be found."""
        return any(map(self._may_part, self._open))

    @property
    def rows(self) -> Int64s:
        """Those of the open nodes' histograms."""
        return np.array([node.row for node in self._open], np.int64)

    @property
    def totals(self) -> Int64s:
        """Those of the open nodes, shape (n, 3)."""
        return np.array([node.totals for node in self._open], np.int64)

    @property
    def bounds(self) -> Float64s:
        """Those of the open nodes, shape (n, 2)."""
        return np.array([node.bounds for node in self._open])

    @property
    def keys(self) -> Int64s:
        """What the open nodes' features are drawn by."""
        if not self._recipe.features:
            return np.zeros(len(self._open), np.int64)
        return np.array([key_of(self._recipe.seed, self._tree, node.number) for node in self._open], np.int64)

    def go_on(self, found: Found | None) -> Int64s:
        """Split the open nodes that gain by it; the others are leaves.

        Args:
            found: what servers say of the open nodes; None: they were not asked.

        Returns:
            What workers are told of the nodes.
        """
        self.subtract, self.clear = [], []
        for row in self._small:
            self._release(row)
        self._small = []
        words = 0 if found is None else found.sets.shape[1]
        said = np.full((len(self._open), told.FIELDS + words), told.NONE, np.int64)
        nodes, self._open = self._open, []
        self._depth += 1
        least = max(LEAST_GAIN, self._recipe.min_gain)
        for i, node in enumerate(nodes):
            said[i, told.NODE] = node.number
            if found is not None and found.gains[i] > least:
                self._split(node, found, i, said[i])
            else:
                said[i, told.VALUE] = self._said(node)
                self._release(node.row)
        return said

    def finish(self) -> Tree:
        """Return the tree, when it is over; ``count`` is 0 everywhere."""
        return self._draft.finish(self._recipe.rate)

    def _split(self, node: _Open, found: Found, i: int, said: Int64s) -> None:
        where = found.where[i]
        split = Split(int(where[0]), int(where[1]), bool(where[2]), found.sets[i])
        said[told.FEATURE], said[told.BIN], said[told.DEFAULT_LEFT] = where
        said[told.FIELDS :] = found.sets[i]
        self._draft.split(node.number, split.feature, split.test(self._bins), split.default_left, float(found.gains[i]))
        sums = found.left[i], node.totals - found.left[i]
        weights = [self._weight(_Open(0, 0, total, node.bounds)) for total in sums]
        sign = self._recipe.monotone[split.feature] if self._recipe.monotone else 0
        both = child_bounds(weights[0], weights[1], sign, node.bounds)
        children = []
        for total, bounds, place, value in zip(
            sums, both, (told.LEFT, told.RIGHT), (told.VALUE_LEFT, told.VALUE_RIGHT), strict=True
        ):
            child = _Open(len(self._draft), node.row, total, bounds)
            self._draft.add_child(node.number, self._weight(child), self._cover(child), 0)
            said[place], said[value] = child.number, told.NONE if self._may_part(child) else self._said(child)
            children.append(child)
        self._hand_rows(node, children, said)

    def _hand_rows(self, node: _Open, children: list[_Open], said: Int64s) -> None:
        """Give rows to children that stay open: of the one with less, workers add a histogram."""
        may = [self._may_part(child) for child in children]
        if not any(may):
            self._release(node.row)
            return
        small = 0 if children[0].totals[0] <= children[1].totals[0] else 1
        row = self._take()
        said[told.BUILT], said[told.ROW] = small, row
        if may[1 - small]:
            self.subtract.append((node.row, row))
        else:
            self._release(node.row)
        for side in (0, 1):
            if may[side]:
                child = children[side]
                of_child = row if side == small else node.row
                self._open.append(_Open(child.number, of_child, child.totals, child.bounds))
        if not may[small]:
            self._small.append(row)

    def _take(self) -> int:
        if self._free:
            return self._free.pop()
        self._unused += 1
        return self._unused - 1

    def _release(self, row: int) -> None:
        self._free.append(row)
        self.clear.append(row)

    def _may_part(self, node: _Open) -> bool:
        """Tell whether both sides of a split could be heavy enough."""
        h, recipe = int(node.totals[0]), self._recipe
        return self._depth < recipe.depth and h > 1 and h * self._h_unit >= 2 * recipe.min_child_weight

    def _weight(self, node: _Open) -> float:
        h, g = node.totals[0] * self._h_unit, node.totals[1] * self._g_unit
        return float(weight_of(g, h, self._recipe.reg_lambda, self._recipe.reg_alpha, *node.bounds))

    def _cover(self, node: _Open) -> float:
        return float(node.totals[0] * self._h_unit)

    def _said(self, node: _Open) -> int:
        """Return the value of a leaf as it will be in the tree."""
        return told.as_bits(float(np.float32(self._weight(node) * self._recipe.rate)))
