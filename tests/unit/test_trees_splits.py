"""Splits are found where the histograms lie, on any number of servers; what does not fit them is an error."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from ps2 import DCV
from ps2.algorithms.trees import ops
from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.gradients import Objective
from ps2.algorithms.trees.growth import LAYOUT
from ps2.algorithms.trees.layout import layout_of
from ps2.algorithms.trees.nonempty_bins import rows_with_marks
from ps2.algorithms.trees.problem import TreeProblem
from ps2.algorithms.trees.quantiles import Quantiles
from ps2.algorithms.trees.row_blocks import build_histograms
from ps2.algorithms.trees.rows import SMALL_BYTES, DenseRows, Histograms, NodeRows
from ps2.algorithms.trees.tree_matrices import add_histograms, boosting_matrices
from ps2.client.batch import batch
from ps2.data.rows import LocalRows
from ps2.errors import LimitError
from tests import plans
from tests.in_process import training_context

NODES, FEATURES = 3, 40


@pytest.fixture(scope="module", params=[1, 3])
def ps(request):
    with training_context(request.param) as ps:
        yield ps


def test_best_splits_when_on_servers_then_match_one_histogram(ps):
    rng = np.random.default_rng(0)
    sizes = rng.integers(2, 9, FEATURES)
    cuts = np.concatenate([np.arange(size - 1.0) for size in sizes])
    none = np.zeros(FEATURES, np.int32)
    bins = Bins(cuts, np.append(0, np.cumsum(sizes - 1)), none, none > 0, block_width=8)
    layout = layout_of(bins.num_bins, bins.first_columns, None, np.zeros(FEATURES, np.int64), 2)
    m = DCV.dense(len(layout), NODES + 1, dtype="int64", align=16).matrix()
    m.push([0], layout[None])
    histograms = np.zeros((NODES, len(layout)), np.int64)
    begins = bins.first_columns[:-1] - (np.cumsum(sizes) - sizes)
    filled = np.repeat(begins, sizes) + np.arange(sizes.sum())
    histograms.reshape(NODES, -1, 2)[:, filled] = rng.integers(1, 50, (NODES, len(filled), 2))
    for part in (histograms // 2, histograms - histograms // 2):
        m.add(np.arange(1, NODES + 1), part)
    inputs = {
        "totals": np.tile([1000, 300, 1000], (NODES, 1)),
        "bounds": np.tile([-np.inf, np.inf], (NODES, 1)),
        "keys": np.zeros(NODES, np.int64),
        "rules": np.array([0.5, 0.25, 1.0, 0.0, 1.0]),
        "allowed": np.empty((NODES, 0), np.int64),
    }
    result = m.apply("trees.best_splits", rows=np.arange(1, NODES + 1), words=1, **inputs)
    whole = np.vstack((layout[None], histograms))
    expected = ops.best_splits(whole, np.arange(1, NODES + 1), **inputs, words=1)
    assert (expected[1][:, 0] >= 0).all()
    for one, other in zip(result, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_features_when_rows_exceed_int32_then_are_not_too_rare(ps):
    quantiles = Quantiles.make(TreeProblem(Objective("logistic"), 2, (0.0,)), 16, None, min_rows=4)
    quantiles.stored_rows.add(np.array([2**31 - 1, 3]))
    quantiles.stored_rows.add(np.array([2**31 - 1, 0]))
    rows = LocalRows(np.arange(2), sp.csr_array(np.ones((1, 2))), np.zeros(1))
    assert quantiles.without_rare_features(rows).keys.tolist() == [0]
    quantiles.free()


@pytest.mark.parametrize("channels", [2, 3])
def test_add_histograms_when_bins_are_mixed_then_marks_are_kept(ps, channels):
    """Dense rows, whose histograms are large; in the last nodes there are few of them."""
    rng = np.random.default_rng(1)
    features, size, count = 600, 32, 400
    none = np.zeros(features, np.int32)
    cuts, offsets = np.tile(np.arange(size - 1.0), features), np.arange(features + 1) * (size - 1)
    rows = DenseRows(
        Bins(cuts, offsets, none, none > 0, block_width=size), rng.integers(0, size, (features, count), np.uint8)
    )
    assert features * size * channels * 8 > SMALL_BYTES
    order = np.arange(count, dtype=np.int32)
    nodes = {2: order[:5], 3: order, 4: order[5:200], 5: order[200:203], 6: order[:4]}
    pairs = rng.integers(1, 50, (count, channels))
    histograms, parts = Histograms(rows.bins, channels), [{}, {}]
    for row, mine in nodes.items():
        for part, some in zip(parts, (mine[::2], mine[1::2]), strict=True):
            (part[row],) = build_histograms(histograms, NodeRows(rows, some), [0], pairs)
    assert {row for row, (bins, _) in parts[0].items() if bins is None} == {3, 4}
    m = DCV.dense(features * size * channels, rows_with_marks(6), "int64", align=size * channels).matrix()
    m.push([0], layout_of(rows.bins.num_bins, rows.bins.first_columns, None, none.astype(np.int64), channels)[None])
    for part in parts:
        with batch():
            moved = add_histograms(m, [(row, *result) for row, result in part.items()])
        assert moved == sum(sums.nbytes for _, sums in part.values())
    expected = np.zeros((len(nodes), features * size, channels), np.int64)
    for out, mine in zip(expected, nodes.values(), strict=True):
        rows.add_histogram(mine, pairs, out)
    np.testing.assert_array_equal(m.pull(list(nodes)), expected.reshape(len(nodes), -1))
    m.apply("trees.clear", rows=list(nodes), channels=channels)
    assert not m.pull(range(1, m.rows)).any()  # nothing that is not marked, and no mark


def test_histograms_when_too_many_then_names_count_and_size():
    features = 4_992  # of two bins, of which 32 lie together: 159,744 bytes are a histogram
    none = np.zeros(features, np.int32)
    bins = Bins(np.zeros(features), np.arange(features + 1), none, none > 0, block_width=32)
    problem, recipe = TreeProblem(Objective("logistic"), features, (0.0,)), plans.boosting(maxDepth=12)
    with training_context(2, 8 << 20):
        fleet = boosting_matrices(bins, problem, recipe, 10**5)
        assert fleet.histograms.rows == 18
        layout = fleet.histograms.pull([LAYOUT])
        fleet.reserve_rows(40)
        with pytest.raises(LimitError, match="growing to 200 rows") as raised:
            fleet.reserve_rows(200)
        message = (
            "4,992 features have 9,984 bins that can split rows: a tree that grows needs 200 histograms of 159,744"
        )
        assert str(raised.value).startswith(message)
        assert fleet.histograms.rows == 40
        np.testing.assert_array_equal(fleet.histograms.pull([LAYOUT]), layout)
        fleet.free()
