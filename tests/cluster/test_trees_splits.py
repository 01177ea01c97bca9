"""Splits are found where the histograms lie, by real servers."""

from __future__ import annotations

import numpy as np
import pytest

from ps2 import DCV
from ps2.algorithms.trees import ops
from ps2.algorithms.trees.binning import Bins

pytestmark = pytest.mark.parametrize("ps", [1, 3], indirect=True, scope="module")

NODES, FEATURES = 3, 40


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_best_splits_when_servers_find_them_then_they_are_those_of_one_histogram(ps, dtype):
    rng = np.random.default_rng(0)
    sizes = rng.integers(2, 9, FEATURES)
    cuts = np.concatenate([np.arange(size - 1) for size in sizes]).astype(np.float32)
    none = np.zeros(FEATURES, np.int32)
    bins = Bins(cuts, np.append(0, np.cumsum(sizes - 1)), none, none > 0, block=8)
    layout = ops.layout_of(bins.sizes, bins.first, None, np.zeros(FEATURES, np.int64), 2)
    m = DCV.dense(len(layout), NODES + 1, dtype=dtype, align=16).matrix()
    m.push([0], layout[None].astype(dtype))
    histograms = np.zeros((NODES, len(layout)), dtype)
    filled = np.repeat(bins.first[:-1], sizes) + np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    histograms.reshape(NODES, -1, 2)[:, filled] = rng.integers(1, 50, (NODES, len(filled), 2))
    for part in (histograms // 2, histograms - histograms // 2):
        m.add(np.arange(1, NODES + 1), part)
    given = {
        "totals": np.tile([1000, 300, 1000], (NODES, 1)),
        "bounds": np.tile([-np.inf, np.inf], (NODES, 1)),
        "keys": np.zeros(NODES, np.int64),
        "rules": np.array([0.5, 0.25, 1.0, 0.0, 1.0]),
    }
    found = m.apply("trees.best_splits", rows=np.arange(1, NODES + 1), words=1, **given)
    whole = np.vstack((layout[None].astype(dtype), histograms))
    expected = ops.best_splits(whole, np.arange(1, NODES + 1), **given, words=1)
    assert (expected[1][:, 0] >= 0).all()
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
