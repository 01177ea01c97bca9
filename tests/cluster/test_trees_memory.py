"""Histograms take as much memory of the servers as trees need, or an error says what does not fit."""

from __future__ import annotations

import numpy as np
import pytest

from ps2 import PS2Context
from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.gradients import Objective
from ps2.algorithms.trees.growth import LAYOUT
from ps2.algorithms.trees.problem import BoostingOptions, TreeProblem
from ps2.algorithms.trees.tree_matrices import TreeMatrices
from ps2.errors import LimitError

# Of two bins, of which 32 lie together: 79,872 bytes are a histogram.
FEATURES = 4_992


def test_histograms_when_too_many_then_names_count_and_size():
    none = np.zeros(FEATURES, np.int32)
    bins = Bins(np.zeros(FEATURES), np.arange(FEATURES + 1), none, none > 0, block=32)
    problem, recipe = TreeProblem(Objective("logistic"), FEATURES, (0.0,)), BoostingOptions(depth=12)
    with PS2Context.getOrCreate(servers=2, memoryLimit=4 << 20):
        fleet = TreeMatrices.make(bins, problem, recipe, 10**5)
        assert fleet.histograms.rows == 18
        layout = fleet.histograms.pull([LAYOUT])
        fleet.make_room(40)
        with pytest.raises(LimitError, match="growing to 200 rows") as raised:
            fleet.make_room(200)
        told = (
            "4,992 features have 9,984 bins that can part rows: a tree that grows needs 200 histograms of 79,872 bytes"
        )
        assert str(raised.value).startswith(told)
        assert fleet.histograms.rows == 40
        np.testing.assert_array_equal(fleet.histograms.pull([LAYOUT]), layout)
        fleet.free()
