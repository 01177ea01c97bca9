"""Cut points come of sums that do not depend on how rows lie; bins agree with NumPy's searchsorted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from cut_points import cells_of, cuts_from
from hypothesis import example, given
from hypothesis import strategies as st
from tree_builder import threshold

from ps2.algorithms.trees import cut_points
from ps2.algorithms.trees.ascending import sort_pairs
from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.cut_points import Cells, DistinctValues, FeatureColumns, Refinement, cuts_between, from_bits
from ps2.errors import ConfigError, InputError

floats = st.floats(allow_nan=False)
TURNS = 6


def exact_cuts(values, weights, bins):
    """Return the cuts that distinct values with weights lead to: the reference."""
    distinct, position = np.unique(values + 0.0, return_inverse=True)
    bits = cut_points.ordered_bits(distinct)
    return cuts_from(bits, bits, np.bincount(position, weights).astype(np.int64), bins)


def summed_up(parts, bins):
    """Return the cuts of all features by the way that workers and servers go."""
    columns = [FeatureColumns.of_dense(x) for x, _ in parts]
    weights = [w for _, w in parts]
    result = [cut_points.distinct_values(c, bins, w) for c, w in zip(columns, weights, strict=True)]
    held = np.concatenate([np.column_stack([d.features.astype(np.uint64), d.bits]) for d in result])
    values, position = np.unique(held, axis=0, return_inverse=True)
    summed = np.zeros(len(values), np.int64)
    np.add.at(summed, position.reshape(-1), np.concatenate([d.weights for d in result]))
    many = np.unique(np.concatenate([d.many_valued for d in result]))
    few = DistinctValues(values[:, 0].astype(np.int64), values[:, 1], summed, many).without(many, bins)
    cells = cells_after(list(zip(columns, weights, strict=True)), few.many_valued, bins)
    cuts = []
    for feature in range(columns[0].num_features):
        if feature in few.many_valued:
            cuts.append(cuts_from(*cells_of(cells, int(np.searchsorted(few.many_valued, feature))), bins))
        else:
            mine = few.features == feature
            cuts.append(cuts_from(few.bits[mine], few.bits[mine], few.weights[mine], bins))
    return cuts


def cells_after(parts, features, bins, absent=None, turns=TURNS):
    """Return the cells of some features of (columns, weights) of several workers, all turns taken."""
    cells = Cells.uncut(len(features))
    for turn in range(turns):
        refinement = Refinement.of(cells, bins, turn)
        sums = sum(cut_points.child_weights(c, features, cells, refinement, w) for c, w in parts)
        if absent is not None and not turn:
            sums[refinement.child_offsets[:-1] + (int(cut_points.ZERO) >> 52)] += absent
        held = np.flatnonzero(sums)
        cells = cells.refine(refinement, held, sums[held])
    return cells


@pytest.mark.parametrize("bins", [2, 7, 40, 100])
@pytest.mark.parametrize("zeros", [0, 1, 20])
def test_cuts_of_many_when_cut_at_once_then_match_each_feature(bins, zeros):
    rng = np.random.default_rng(bins)
    x = np.exp(rng.normal(size=(60, 5))) * rng.choice([-1, 1], (60, 5))
    x[:20, 2], x[:, 3] = 7.0, np.abs(x[:, 3])
    absent = zeros * np.arange(1, 6)
    cells = cells_after([(FeatureColumns.of_dense(x), np.ones(60, np.int64))], np.arange(5), bins, absent)
    assert [int(cells_of(cells, position)[2].sum()) for position in range(5)] == (60 + absent).tolist()
    cuts, sizes = cut_points.cuts_of_cells(cells, bins)
    for position, result in enumerate(np.split(cuts, np.cumsum(sizes)[:-1])):
        np.testing.assert_allclose(result, cuts_from(*cells_of(cells, position), bins), rtol=2.0**-22, atol=1e-40)
        assert (np.diff(result) > 0).all()


def test_cuts_of_many_when_values_are_spread_then_are_float32():
    x = np.random.default_rng(0).normal(size=(20_000, 1))
    cells = cells_after([(FeatureColumns.of_dense(x), np.ones(len(x), np.int64))], np.arange(1), 64)
    cuts, _ = cut_points.cuts_of_cells(cells, 64)
    assert len(cuts) == 63
    np.testing.assert_array_equal(cuts, cuts.astype(np.float32))


@pytest.mark.parametrize("base", [1.0, 20240115.0, 1.7e12, -1e-9])
def test_cells_when_values_are_close_then_bins_are_as_even(base):
    step = np.spacing(base)
    x = base + np.append(np.arange(5000) * step, [1e300, -1e300])
    cells = cells_after([(FeatureColumns.of_dense(x[:, None]), np.ones(len(x), np.int64))], np.arange(1), 32)
    cuts, _ = cut_points.cuts_of_cells(cells, 32)
    held = np.bincount(np.searchsorted(cuts, x))
    assert len(held) >= 30
    assert held.max() < 1.5 * len(x) / 32


def test_value_counts_when_zeros_are_absent_then_zero_is_a_value():
    values = cut_points.ordered_bits(np.array([0.0, 2.0, 2.0, 3.0]))
    result = DistinctValues(np.array([0, 0, 2, 2]), values, np.array([1, 1, 1, 0]), np.empty(0, np.int64))
    assert cut_points.value_counts(result, np.array([3, 1, 1, 0])).tolist() == [2, 1, 2, 0]


def table(rows=3000, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 7))
    x[:, 1] = rng.integers(0, 3, rows)
    x[:, 2] = np.exp(3 * x[:, 2])
    x[:, 3] = np.where(rng.random(rows) < 0.7, 0, x[:, 3])
    x[:, 4] = rng.integers(0, 40, rows) / 7
    x[rng.random(rows) < 0.3, 5] = np.nan
    x[:, 6] = 5
    return x, rng.integers(0, 5, rows)


@given(st.lists(floats, min_size=1))
def test_ordered_bits_when_values_ascend_then_are_invertible(values):
    values = np.array(values)
    bits = cut_points.ordered_bits(values)
    np.testing.assert_array_equal(from_bits(bits), values)
    np.testing.assert_array_equal(bits[:, None] < bits, values[:, None] < values)


@given(st.lists(floats, min_size=2, max_size=20, unique=True))
@example([float(np.finfo(np.float32).min), -np.inf])
@example([float(np.finfo(np.float32).max), np.inf])
@example([float(np.finfo(np.float64).min), float(np.finfo(np.float64).max), np.inf])
@example([20240115.0, 20240116.0])
@example([1.0 - 2.0**-30, 1.0 + 2.0**-30])
def test_cuts_between_when_values_are_adjacent_then_split_them(values):
    values = np.unique(np.array(values) + 0.0)
    cuts = cuts_between(values[:-1], values[1:])
    assert (values[:-1] <= cuts).all()
    assert (cuts < values[1:]).all()
    with np.errstate(over="ignore"):
        short, cut = values.astype(np.float32), cuts.astype(np.float32)
        apart = short[:-1] < short[1:]
        # As float32, whose cuts are no others, too.
        fits = apart & (np.floor(cuts) == cuts) & (np.abs(cuts) < 1e6)
        assert (cut == cuts)[fits].all()
        exact = cut == cuts
        assert (short[:-1] <= cut)[exact & apart].all()
        assert (cut < short[1:])[exact & apart].all()
        assert not exact[~apart & (np.nextafter(values[:-1], np.inf) < values[1:])].any()
    assert np.isfinite(cuts[np.isfinite(values[1:]) & np.isfinite(values[:-1])]).all()


@pytest.mark.parametrize("bins", [2, 16, 100])
def test_cuts_when_rows_lie_otherwise_then_they_are_the_same(bins):
    x, weights = table()
    whole = summed_up([(x, weights)], bins)
    order = np.random.default_rng(1).permutation(len(x))
    pieces = [(x[part], weights[part]) for part in np.array_split(order, 5)]
    for one, other in zip(whole, summed_up(pieces, bins), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("bins", [4, 32, 100])
def test_cuts_when_values_are_few_then_split_each_pair(bins):
    x, weights = table()
    cuts = summed_up([(x, weights)], bins)
    assert len(cuts[1]) == 2
    assert len(cuts[6]) == 0
    np.testing.assert_array_equal(cuts[1], [0.5, 1.5])
    if bins >= 40:
        np.testing.assert_array_equal(cuts[4], exact_cuts(x[:, 4], weights, bins))


@pytest.mark.parametrize("bins", [16, 64, 255])
def test_cuts_when_values_are_many_then_weights_are_near_exact(bins):
    x, weights = table(rows=20_000)
    for feature in (0, 2, 3, 5):
        mine = ~np.isnan(x[:, feature])
        values = x[mine, feature]
        cuts = summed_up([(x, weights)], bins)[feature]
        exact = exact_cuts(values, weights[mine], bins)
        assert bins * 0.8 <= len(cuts) + 1 <= bins

        def heaviest(cuts, values=values, mine=mine):
            held = np.bincount(np.searchsorted(cuts, values), weights[mine])
            return np.sort(held)[-2]  # zeros may have a bin of their own

        assert heaviest(cuts) <= 1.5 * heaviest(exact)


def test_cuts_from_when_zeros_are_absent_then_count_them():
    values = np.array([-2.0, -1.0, 0.0, 3.0, 4.0])
    bits, weights = cut_points.ordered_bits(values), np.array([1, 1, 7, 1, 1])
    rest = values != 0
    for bins in (2, 3, 5, 9):
        expected = cuts_from(bits, bits, weights, bins)
        np.testing.assert_array_equal(cuts_from(bits[rest], bits[rest], weights[rest], bins, absent=7), expected)
        np.testing.assert_array_equal(cuts_from(bits, bits, weights - [0, 0, 4, 0, 0], bins, absent=4), expected)


def test_cuts_of_few_when_cut_at_once_then_match_each_feature():
    rng = np.random.default_rng(7)
    x = sp.random_array((40, 300), density=0.1, rng=rng, format="csr")
    x.data = np.round(x.data * 8 - 4)
    columns, weights = FeatureColumns.of_sparse(x), rng.integers(0, 2, 40)
    result = cut_points.distinct_values(columns, 5, weights)
    held = np.bincount(columns_of(columns), weights[columns.rows], minlength=300)
    absent = (weights.sum() - held).astype(np.int64)
    absent[::10] = 0
    cuts, begins = cut_points.cuts_between_values(result, absent)
    assert len(begins) == 301
    for feature in range(300):
        mine = result.features == feature
        bits, one = result.bits[mine], cuts[begins[feature] : begins[feature + 1]]
        if feature in result.many_valued:
            assert not len(one)
        else:
            np.testing.assert_array_equal(one, cuts_from(bits, bits, result.weights[mine], 9, int(absent[feature])))


def columns_of(columns):
    return np.repeat(np.arange(columns.num_features), np.diff(columns.begin))


def test_cuts_from_when_nothing_is_there_then_there_is_none():
    empty = np.empty(0, np.uint64)
    assert len(cuts_from(empty, empty, np.empty(0, np.int64), 8)) == 0
    assert len(cuts_from(empty, empty, np.empty(0, np.int64), 8, absent=3)) == 0


@pytest.mark.parametrize("shape", [(2, 1), (2, 3), (2, 0)])
def test_columns_when_sparse_rows_are_empty_then_are_not_dense(shape):
    assert not FeatureColumns.of_sparse(sp.csr_array(shape)).is_dense


def test_distinct_when_columns_are_sparse_then_match_entries():
    rng = np.random.default_rng(3)
    x = sp.random_array((200, 300), density=0.1, rng=rng, format="csr")
    x.data = np.round(x.data * 4)  # zeros among them
    weights = rng.integers(0, 4, 200)
    result = cut_points.distinct_values(FeatureColumns.of_sparse(x), 3, weights)
    entries = x.tocoo()
    for feature in range(300):
        mine = entries.col == feature
        values, position = np.unique(entries.data[mine], return_inverse=True)
        if len(values) > 3:
            assert feature in result.many_valued
        else:
            got = result.features == feature
            np.testing.assert_array_equal(from_bits(result.bits[got]), values)
            np.testing.assert_array_equal(
                result.weights[got], np.bincount(position, weights[entries.row[mine]], len(values))
            )


def bins_of(cuts, categories, missing):
    offsets = np.append(0, np.cumsum([len(c) for c in cuts]))
    return Bins(np.concatenate(cuts).astype(np.float64), offsets, np.array(categories, np.int32), np.array(missing))


def sample(rows=500, seed=4):
    rng = np.random.default_rng(seed)
    x = rng.choice([-1.0, -0.0, 0.0, 0.5, 1.0, 2.0, np.inf, -np.inf, 0.1], size=(rows, 4))
    x[:, 2] = rng.integers(0, 3, rows)
    x[rng.random(rows) < 0.2, 1] = np.nan
    x[::9, 2] = np.array([7, -1, 0.5, np.nan])[np.arange(len(x[::9])) % 4]
    cuts = [[-1, 0.1, 1], [0], [0, 1, 2], []]
    return x, bins_of([np.array(c) for c in cuts], [0, 0, 3, 0], [False, True, True, False])


def expected_bins(x, bins):
    out = np.empty(x.T.shape, np.int64)
    for f in range(bins.num_features):
        cuts, values = bins.cuts[bins.cut_offsets[f] : bins.cut_offsets[f + 1]], x[:, f]
        out[f] = np.searchsorted(cuts, values)
        lost = np.isnan(values) | (~np.isin(values, cuts) if bins.categories[f] else False)
        out[f][lost] = bins.missing_bin[f]
    return out


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rows", [1, 500])
def test_bin_dense_when_binned_then_matches_searchsorted(dtype, rows):
    x, bins = sample()
    x = x[:rows].astype(dtype)
    assert bins.num_bins.tolist() == [4, 3, 4, 1]
    result = bins.bin_dense(FeatureColumns.of_dense(x))
    assert result.dtype == np.uint8
    np.testing.assert_array_equal(result, expected_bins(x.astype(np.float64), bins))


def test_bin_dense_when_cuts_are_close_then_matches_searchsorted():
    cuts = 20240115.0 + np.arange(300) / 8
    x = 20240114.5 + np.arange(1000)[:, None] / 16
    bins = bins_of([cuts], [0], [False])
    np.testing.assert_array_equal(bins.bin_dense(FeatureColumns.of_dense(x)), expected_bins(x, bins))
    begins, columns = bins.bin_sparse(sp.csr_array(x), "zero")
    result = np.zeros(1000, np.int64)
    result[np.diff(begins) > 0] = columns
    np.testing.assert_array_equal(result, expected_bins(x, bins)[0])


@pytest.mark.parametrize("absent", ["zero", "missing"])
def test_bin_sparse_when_binned_then_implied_bins_are_left_out(absent):
    x, bins = sample()
    if absent == "missing":
        bins = bins_of([[-1, 0.1, 1], [0], [0, 1, 2], []], [0, 0, 3, 0], [True] * 4)
    implied = bins.implied(absent)
    mask = np.random.default_rng(5).random(x.shape) < 0.5
    x[mask] = 0 if absent == "zero" else np.nan
    held = sp.csr_array((x[~mask], np.nonzero(~mask)[1], np.append(0, np.cumsum((~mask).sum(axis=1)))), shape=x.shape)
    begins, columns = bins.bin_sparse(held, absent)
    expected = expected_bins(x, bins)
    for row in range(len(x)):
        mine = [bins.first_columns[f] + expected[f, row] for f in range(4) if expected[f, row] != implied[f]]
        assert columns[begins[row] : begins[row + 1]].tolist() == mine


def test_implied_when_zeros_are_then_it_is_the_bin_of_zero():
    _, bins = sample()
    assert bins.implied("zero").tolist() == [1, 0, 0, 0]


def test_bin_dense_when_feature_exceeds_256_bins_then_are_wider():
    bins = bins_of([np.arange(300)], [0], [False])
    result = bins.bin_dense(FeatureColumns.of_dense(np.arange(301.0)[:, None]))
    assert result.dtype == np.uint16
    assert result[0].tolist() == list(range(301))


@pytest.mark.parametrize(("feature", "value", "said"), [(0, np.nan, "NaN"), (2, 3.0, "none of its 3 categories")])
def test_bins_when_missing_values_have_none_then_names_feature(feature, value, said):
    bins = bins_of([[-1, 0.1, 1], [0], [0, 1, 2], []], [0, 0, 3, 0], [False] * 4)
    x = np.zeros((2, 4))
    x[1, feature] = value
    with pytest.raises(InputError, match=f"feature {feature}: .*{said}"):
        bins.bin_dense(FeatureColumns.of_dense(x))
    with pytest.raises(InputError, match=f"feature {feature}: .*{said}"):
        bins.bin_sparse(sp.csr_array(x), "zero")


def test_threshold_then_is_cut_and_infinity_at_end():
    _, bins = sample()
    assert [threshold(bins, 0, b) for b in range(4)] == [-1.0, 0.1, 1.0, np.inf]


def test_first_when_columns_are_in_blocks_then_features_fit_one():
    cuts = [np.arange(size) for size in (3, 2, 0, 4, 3, 3)]
    bins = bins_of(cuts, [0] * 6, [False, False, True, False, False, False])
    assert bins.first_columns.tolist() == [0, 4, 7, 9, 14, 18, 22]
    blocks = replace(bins, block_width=8)
    assert blocks.first_columns.tolist() == [0, 4, 8, 10, 16, 20, 24]
    assert (blocks.first_columns[:-1] // 8 == (blocks.first_columns[:-1] + blocks.num_bins - 1) // 8).all()
    with pytest.raises(ConfigError, match="expected at least 5"):
        replace(bins, block_width=4)


@pytest.mark.parametrize("count", [0, 1, 16, 17, 33, 100])
def test_pairs_when_sorted_then_equal_ones_keep_their_order(count):
    values, numbers = np.round(np.random.default_rng(count).normal(size=count), 1), np.arange(count + 2)
    values[::7] = np.nan
    order = np.argsort(values, kind="stable")
    sort_pairs(values, numbers)
    assert numbers.tolist() == [*order.tolist(), count, count + 1]
    assert np.array_equal(values, np.sort(values), equal_nan=True)
