"""Histograms are sums, parts keep their order, and quantised gradients do not depend on where rows lie."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from ps2.algorithms.trees import growing_kernels
from ps2.algorithms.trees import rows as rows_module
from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.boosted_growth import child_bounds
from ps2.algorithms.trees.cut_points import FeatureColumns
from ps2.algorithms.trees.gradients import integer_scales, quantise_pairs
from ps2.algorithms.trees.rows import DenseRows, Scratch, SparseRows, Split
from ps2.errors import ConfigError
from tests.tree_builder import split_test

ROWS, FEATURES, VALUES = 5000, 9, 6
NO_SET = np.empty(0, np.int64)


def rows_of(sparse, seed=0):
    """Return rows, and their bins in the histogram, shape (rows, features)."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-2, VALUES - 2, size=(ROWS, FEATURES)).astype(float)
    cuts = np.tile(np.arange(-2, VALUES - 3) + 0.5, FEATURES)
    bins = Bins(cuts, np.arange(FEATURES + 1) * (VALUES - 1), np.zeros(FEATURES, np.int32), np.zeros(FEATURES, bool))
    positions = (x + 2).astype(int) + np.arange(FEATURES) * VALUES
    if sparse:
        return SparseRows(bins, *bins.bin_sparse(sp.csr_array(x), "zero"), "zero"), positions, x != 0
    return DenseRows(bins, bins.bin_dense(FeatureColumns.of_dense(x))), positions, np.ones(x.shape, bool)


def pairs_of(channels, most=1000, seed=1):
    rng = np.random.default_rng(seed)
    pairs = rng.integers(-most, most, size=(ROWS, channels))
    pairs[:, [0, *range(2, channels)]] = rng.integers(1, most, size=(ROWS, channels - 1))
    return pairs


def expected(order, places, held, pairs):
    out = np.zeros((FEATURES * VALUES, pairs.shape[1]), np.int64)
    np.add.at(out, places[order][held[order]], np.repeat(pairs[order], held[order].sum(axis=1), axis=0))
    return out


@pytest.mark.parametrize("channels", [2, 3])
@pytest.mark.parametrize("share", [0.0, 0.003, 0.1, 0.3, 1.0])
def test_histogram_when_rows_are_dense_then_sums_by_bin(channels, share, monkeypatch):
    monkeypatch.setattr(rows_module, "MIN_PART_ADDITIONS", 500)  # pieces of few rows
    rows, positions, held = rows_of(sparse=False)
    order = np.flatnonzero(np.random.default_rng(2).random(ROWS) < share).astype(np.int32)
    pairs, out = pairs_of(channels), np.ones((FEATURES * VALUES, channels), np.int64)
    rows.add_histogram(order, pairs, out)
    np.testing.assert_array_equal(out, 1 + expected(order, positions, held, pairs))


@pytest.mark.parametrize("channels", [2, 3])
@pytest.mark.parametrize("most", [9, 300])
def test_histogram_when_features_are_many_then_skips_binless(most, channels):
    rng = np.random.default_rng(5)
    rows, sizes = 700, np.full(77, 4)
    sizes[[0, 20]], sizes[40] = 1, most
    cuts = np.concatenate([np.arange(size - 1) + 0.5 for size in sizes])
    nothing = np.zeros(77)
    bins = Bins(cuts, np.append(0, np.cumsum(sizes - 1)), nothing.astype(np.int32), nothing.astype(bool))
    positions = rng.integers(0, sizes, (rows, 77))
    dense = DenseRows(bins, bins.bin_dense(FeatureColumns.of_dense(positions.astype(float))))
    assert dense.columns.itemsize == (1 if most < 256 else 2)
    order = np.flatnonzero(rng.random(rows) < 0.8).astype(np.int32)
    pairs = rng.integers(1, 1000, (rows, channels))
    out, requested = (np.zeros((int(bins.first_columns[-1]), channels), np.int64) for _ in range(2))
    dense.add_histogram(order, pairs, out)
    for f in np.flatnonzero(sizes > 1):
        np.add.at(requested, bins.first_columns[f] + positions[order, f], pairs[order])
    np.testing.assert_array_equal(out, requested)


@pytest.mark.parametrize("channels", [2, 3])
@pytest.mark.parametrize("count", [0, 1, 3, ROWS])
def test_histogram_when_rows_are_sparse_then_has_nonempty_bins(channels, count):
    rows, positions, held = rows_of(sparse=True)
    scratch, pairs = Scratch(FEATURES * VALUES, channels), pairs_of(channels)
    order = np.sort(np.random.default_rng(3).permutation(ROWS)[:count]).astype(np.int32)
    requested = expected(order, positions, held, pairs)
    for _ in range(2):
        bins, sums = rows.histogram(order, pairs, scratch)
        np.testing.assert_array_equal(bins, np.flatnonzero(requested[:, 0]))
        np.testing.assert_array_equal(sums, requested[bins])
        assert not scratch.sums.any()
        assert not scratch.touched.any()


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("bin", [0, 1, 2, 4])
def test_part_when_node_is_split_then_both_sides_keep_order(sparse, bin):
    rows, positions, _ = rows_of(sparse)
    order = np.flatnonzero(np.random.default_rng(4).random(ROWS) < 0.4).astype(np.int32)
    before = order.copy()
    left = rows.partition(order, Split(3, bin, False, NO_SET), np.empty_like(order))
    goes = positions[before, 3] - 3 * VALUES <= bin
    np.testing.assert_array_equal(order[:left], before[goes])
    np.testing.assert_array_equal(order[left:], before[~goes])


@pytest.mark.parametrize("default", [False, True])
def test_part_when_missing_or_categorical_then_follows_split(default):
    x = np.array([[0.0, 1], [1, np.nan], [2, 1], [np.nan, 0], [1, 0]])
    bins = Bins(np.array([0, 1, 2, 0.5]), np.array([0, 3, 4]), np.array([3, 0], np.int32), np.array([True, True]))
    dense = DenseRows(bins, bins.bin_dense(FeatureColumns.of_dense(x)))
    filled = sp.csr_array((x.reshape(-1), np.tile([0, 1], 5), np.arange(6) * 2), shape=x.shape)
    sparse = SparseRows(bins, *bins.bin_sparse(filled, "missing"), "missing")
    some = Split(0, -1, default, np.array([0b101]))
    numeric = Split(1, 0, default, NO_SET)
    assert split_test(some, bins).tolist() == [True, False, True]
    assert split_test(numeric, bins) == 0.5
    for rows in (dense, sparse):
        for split, plain, lost in ((some, [0, 2], 3), (numeric, [3, 4], 1)):
            order = np.arange(5, dtype=np.int32)
            left = rows.partition(order, split, np.empty_like(order))
            assert order[:left].tolist() == sorted(plain + [lost] * default)


def test_sums_when_a_node_is_summed_then_they_are_of_its_rows():
    pairs = np.full((3, 2), 2**31 - 1)
    assert growing_kernels.sum_pairs(np.array([0, 2], np.int32), pairs) == (2**32 - 2, 2**32 - 2)


def test_leaf_values_when_two_leaves_then_each_changes_its_rows():
    margins, ends = np.zeros((4, 2)), np.array([[0, 2], [3, 4]])
    leaves = ends, np.array([0.5, 2.0]), np.array([1, 3, 0, 2], np.int32)
    growing_kernels.add_leaf_values(np.arange(1), *leaves, margins[:, 1])
    assert margins.tolist() == [[0, 0], [0, 0.5], [0, 2.0], [0, 0.5]]


def test_leaf_values_when_rows_fill_tiles_then_each_row_has_one():
    leaf_of_row = np.random.default_rng(0).integers(0, 3, 40_000)
    order = np.argsort(leaf_of_row, kind="stable").astype(np.int32)
    last = np.cumsum(np.bincount(leaf_of_row))
    ends, values, margins = (
        np.column_stack([np.append(0, last[:-1]), last]),
        np.array([0.5, 2.0, -1.0]),
        np.zeros(40_000),
    )
    for tiles in (np.array([2, 0]), np.array([1])):
        growing_kernels.add_leaf_values(tiles, ends, values, order, margins)
    assert margins.tolist() == values[leaf_of_row].tolist()


@pytest.mark.parametrize("rows", [1, 1000, 10**6, 2**24])
def test_scales_when_all_rows_are_rounded_up_then_sums_still_fit(rows):
    for below in (1e-9, 0.25, 1.0, 3.7, 1e12):
        scales = integer_scales(below, 2 * below)
        assert scales[0] == 2.0 ** round(np.log2(scales[0])) == 2 * scales[1]
        assert below * scales[0] >= 2.0**60
        assert below * scales[0] + rows <= np.iinfo(np.int64).max


def test_scales_when_gradients_are_zero_then_are_1():
    assert integer_scales(0.0, 0.0) == (1.0, 1.0)
    with pytest.raises(ConfigError, match="finite"):
        integer_scales(1.0, np.inf)


def test_scales_when_gradients_are_subnormal_then_are_finite():
    scales = integer_scales(5e-324, 1e-310)
    assert np.isfinite([*scales, 1 / scales[0], 1 / scales[1]]).all()


def whole(pairs, ids, key=5, scales=(8.0, 4.0)):
    return quantise_pairs(pairs, ids, key, scales)


def test_quantise_when_numbers_are_integers_then_keeps_them():
    top = 2.0**62
    pairs = np.array([[1.0, -1.0], [top, -top], [min(top, 2.0**53) - 1, 1 - min(top, 2.0**53)]])
    result = whole(pairs, np.arange(3), scales=(1.0, 1.0))
    assert result.dtype == np.int64
    np.testing.assert_array_equal(result, pairs.astype(np.int64))


def test_quantise_when_rows_are_permuted_then_each_is_the_same():
    rng = np.random.default_rng(6)
    pairs, ids = rng.random((1000, 2)) - [0, 0.5], rng.integers(0, 2**62, 1000)
    order = rng.permutation(1000)
    np.testing.assert_array_equal(whole(pairs[order], ids[order]), whole(pairs, ids)[order])
    assert (whole(pairs, ids, key=6) != whole(pairs, ids)).any()


def test_quantise_when_many_are_summed_then_is_unbiased():
    pairs = np.tile([0.3, -0.07], (200_000, 1))
    result = whole(pairs, np.arange(len(pairs)))
    np.testing.assert_allclose(result.mean(axis=0), pairs[0] * [8, 4], atol=0.01)
    assert set(np.unique(result[:, 0])) == {2, 3}
    assert set(np.unique(result[:, 1])) == {-1, 0}


def test_quantise_when_hessian_is_small_then_is_at_least_1():
    result = whole(np.array([[1e-16, 0.25], [0.0, 0.0]]), np.arange(2))
    assert result.tolist() == [[1, 1], [0, 0]]


@pytest.mark.parametrize(
    ("sign", "left", "right"), [(1, [-1, 3], [3, 9]), (-1, [3, 9], [-1, 3]), (0, [-1, 9], [-1, 9])]
)
def test_child_bounds_when_monotone_then_meet_in_middle(sign, left, right):
    w_left, w_right = (2.0, 4.0) if sign >= 0 else (4.0, 2.0)
    result = child_bounds(w_left, w_right, sign, np.array([-1.0, 9.0]))
    assert [one.tolist() for one in result] == [left, right]
