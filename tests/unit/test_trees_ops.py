"""Splits found in histograms are those that trying all finds."""

from __future__ import annotations

from itertools import chain, combinations, pairwise

import numpy as np
import pytest

from ps2.algorithms.trees import layout, ops, search_kernels
from ps2.algorithms.trees.nonempty_bins import is_marks_row, marked_rows, rows_with_marks
from ps2.errors import LimitError, OutOfRangeError, ShapeError
from ps2.ops.all import lookup
from ps2.ops.kernels import kernel
from ps2.ops.warm import _compile

FREE = (-np.inf, np.inf)
is_sampled = kernel(search_kernels.is_sampled)


class Case:
    """Features with random histograms of some nodes.

    Args:
        features: of each: bins, flags, the implied bin (-1: none).
    """

    def __init__(self, features, nodes=3, channels=2, seed=0, empty=0.3):
        rng = np.random.default_rng(seed)
        self.features, self.channels = features, channels
        sizes = np.array([size for size, _, _ in features])
        flags = np.array([flags for _, flags, _ in features])
        implied = np.array([implied for _, _, implied in features], np.int32)
        self.first = np.append(0, np.cumsum(sizes))
        self.totals = np.stack([rng.integers(400, 500, nodes), rng.integers(-50, 50, nodes), np.full(nodes, 90)], 1)
        self.full = np.zeros((nodes, self.first[-1], 3), np.int64)
        for node in range(nodes):
            for f, size in enumerate(sizes):
                some = np.flatnonzero(rng.random(size) >= empty)
                some = some if len(some) else np.array([0])
                h = rng.multinomial(self.totals[node, 0] - len(some), np.full(len(some), 1 / len(some))) + 1
                n = rng.multinomial(90 - len(some), np.full(len(some), 1 / len(some))) + 1
                g = rng.integers(-60, 60, len(some))
                g[-1] += self.totals[node, 1] - g.sum()
                self.full[node, self.first[f] + some] = np.stack([h, g, n], 1)
        held = self.full.copy()
        for f in np.flatnonzero(implied >= 0):
            held[:, self.first[f] + implied[f]] = 0
        self.m = np.zeros((nodes + 1, self.first[-1] * channels), np.int64)
        self.m[0] = layout.layout_of(sizes, self.first, implied, flags, channels)
        self.m[1:] = held[:, :, :channels].reshape(nodes, -1)
        self.rows = np.arange(1, nodes + 1)

    def found(self, rules=(1, 1, 0, 0, 0), bounds=FREE, keys=None, allowed=None, **scalars):
        nodes = len(self.totals)
        return ops.best_splits(
            self.m,
            self.rows,
            self.totals,
            np.tile(np.array(bounds, np.float64), (nodes, 1)),
            np.zeros(nodes, np.int64) if keys is None else keys,
            np.array(rules, np.float64),
            np.empty((nodes, 0), np.int64) if allowed is None else allowed,
            channels=self.channels,
            words=1,
            **scalars,
        )

    def expected(self, node, rules=(1, 1, 0, 0, 0), bounds=FREE, features=None, min_third=0):
        """Return the best gain, feature and bin of all that there are."""
        g_unit, h_unit, reg_lambda, reg_alpha, min_h = rules

        def score(part):
            h, g = part[0] * h_unit, part[1] * g_unit
            w = np.clip(-np.sign(g) * max(abs(g) - reg_alpha, 0) / (h + reg_lambda), *bounds)
            return -(2 * g * w + (h + reg_lambda) * w * w + 2 * reg_alpha * abs(w)), w

        total = self.totals[node] * [1, 1, self.channels == 3]
        best = (-np.inf, -1, -1)
        for f, (size, flags, _) in enumerate(self.features):
            if features is not None and f not in features:
                continue
            sums = self.full[node, self.first[f] : self.first[f + 1]] * [1, 1, self.channels == 3]
            plain = size - bool(flags & layout.HAS_MISSING)
            missing = sums[plain:].sum(axis=0)
            if flags & layout.CATEGORICAL:
                sides = [list(s) for s in chain.from_iterable(combinations(range(plain), k) for k in range(plain + 1))]
            else:
                sides = [list(range(b + 1)) for b in range(plain)]
            for side in sides:
                for to_left in (0, 1):
                    left = sums[side].sum(axis=0) + to_left * missing
                    right = total - left
                    if (left - to_left * missing)[0] <= 0:
                        continue  # the same parts come with missing values on the right
                    if min(left[0], right[0]) <= 0 or min(left[0], right[0]) * h_unit < min_h:
                        continue
                    if self.channels == 3 and min(left[2], right[2]) < min_third:
                        continue
                    (a, w_left), (b, w_right) = score(left), score(right)
                    wrong = w_left > w_right if flags & layout.INCREASING else w_left < w_right
                    if flags & (layout.INCREASING | layout.DECREASING) and wrong:
                        continue
                    gain = a + b - score(total)[0]
                    if gain > best[0] + 1e-9:
                        best = (gain, f, -1 if flags & layout.CATEGORICAL else side[-1])
        return best

    def check(self, found, **how):
        gain, where, left, sets = found
        for node in range(len(self.totals)):
            expected = self.expected(node, **how)
            np.testing.assert_allclose(gain[node], expected[0], rtol=1e-9)
            assert (where[node, 0], where[node, 1]) == expected[1:]
            if expected[1] >= 0:
                np.testing.assert_array_equal(left[node, : self.channels], self.left(node, where[node], sets[node]))

    def left(self, node, where, words):
        """Return the sums of what goes left by the answer."""
        f, bin, default = where
        size, flags, _ = self.features[f]
        lefts = layout.category_flags(words, size) if bin < 0 else np.arange(size) <= bin
        if flags & layout.HAS_MISSING:
            lefts[-1] = default
        return self.full[node, self.first[f] : self.first[f + 1]][lefts].sum(axis=0)[: self.channels]


MIXED = [
    (5, 0, -1),
    (6, layout.HAS_MISSING, -1),
    (4, 0, 1),
    (5, layout.HAS_MISSING, 4),
    (6, layout.CATEGORICAL, -1),
    (7, layout.CATEGORICAL | layout.HAS_MISSING, 0),
    (1, 0, -1),
    (2, 0, 0),
]


@pytest.mark.parametrize("seed", range(8))
def test_best_splits_when_features_are_mixed_then_finds_best(seed):
    case = Case(MIXED, seed=seed)
    case.check(case.found())


@pytest.mark.parametrize("channels", [2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_best_splits_when_penalties_and_minima_set_then_apply(seed, channels):
    case = Case([one for one in MIXED if not one[1] & layout.CATEGORICAL], seed=seed, channels=channels)
    rules = (0.5, 0.25, 1.5, 4.0, 20.0)
    min_third = 25 if channels == 3 else 0
    case.check(case.found(rules, min_third=min_third), rules=rules, min_third=min_third)


@pytest.mark.parametrize("seed", range(4))
def test_best_splits_when_bounded_or_monotone_then_obeys(seed):
    case = Case([(6, layout.INCREASING, -1), (6, layout.DECREASING | layout.HAS_MISSING, -1), (5, 0, 2)], seed=seed)
    case.check(case.found(bounds=(-0.02, 0.03)), bounds=(-0.02, 0.03))


def test_best_splits_when_gains_tie_then_takes_least_feature():
    case = Case([(4, 0, -1), (4, 0, -1), (4, 0, -1)], nodes=1, empty=0.0)
    case.m[1] = np.tile([10, -5, 0, 0, 0, 0, 10, 5], 3)
    case.totals[0, :2] = 20, 0
    gain, where, left, _ = case.found()
    assert (gain[0], where[0].tolist(), left[0, :2].tolist()) == (5.0, [0, 0, 1], [10, -5])


def test_best_splits_when_nothing_can_be_split_then_it_says_so():
    case = Case([(1, 0, -1), (3, layout.CATEGORICAL, 0)], nodes=2)
    case.m[1:] = 0
    case.m[1:, :2] = case.totals[:, :2]
    gain, where, left, _ = case.found()
    assert np.isneginf(gain).all()
    assert (where == -1).all()
    assert not left.any()


@pytest.mark.parametrize(("implied", "goes"), [(0, 1), (1, 1), (2, 0)])
def test_best_splits_when_no_missing_values_then_join_zeros(implied, goes):
    case = Case([(4, 0, implied)], nodes=1)
    sums = np.array([[10, -50], [10, -50], [10, 50], [10, 50]])
    case.totals[0, :2] = 40, 0
    sums[implied] = 0
    case.m[1] = sums.reshape(-1)
    assert case.found()[1][0].tolist() == [0, 1, goes]


@pytest.mark.parametrize(("gradient", "goes"), [(-50, 1), (50, 0)])
def test_best_splits_when_no_missing_category_then_joins_zeros(gradient, goes):
    case = Case([(3, layout.CATEGORICAL, 0)], nodes=1)
    case.totals[0, :2] = 60, gradient
    case.m[1] = np.array([[0, 0], [20, -50], [30, 50]]).reshape(-1)  # those of category 0: 10 and the gradient
    _, where, _, sets = case.found()
    assert where[0].tolist() == [0, -1, goes]
    np.testing.assert_array_equal(layout.category_flags(sets[0], 3), [goes, True, False])


@pytest.mark.parametrize(("counts", "goes"), [((30, 10), 1), ((10, 30), 0)])
def test_best_splits_when_dense_has_no_missing_then_join_most(counts, goes):
    case = Case([(3, layout.HAS_MISSING, -1)], nodes=1)
    case.totals[0, :2] = 40, 0
    case.m[1] = [counts[0], -50, counts[1], 50, 0, 0]
    assert case.found()[1][0].tolist() == [0, 0, goes]


def test_best_splits_when_shard_is_wide_then_threads_match_one():
    rng = np.random.default_rng(5)
    features = [(int(size), 0, -1) for size in rng.integers(1, 9, 40_000)]
    case = Case(features[:1], nodes=2)
    sizes = np.array([size for size, _, _ in features])
    m = np.zeros((3, sizes.sum() * 2), np.int64)
    ends = np.append(0, np.cumsum(sizes))
    m[0] = layout.layout_of(sizes, ends, None, np.zeros(len(sizes), np.int64), 2)
    m[1:] = rng.integers(1, 9, m[1:].shape)
    first = ends[:-1]
    best = 23_456 + int(np.argmax(sizes[23_456:] > 2))
    m[2, 2 * first[best] : 2 * first[best] + 4] = 50, -900, 50, 900
    case.m, case.totals = m, np.array([[400, 0, 0], [400, 0, 0]])
    gain, where, _, _ = case.found()
    assert where[1, :2].tolist() == [best, 0]
    case.m = np.ascontiguousarray(np.delete(m, np.s_[2 * first[30_000] :], axis=1))
    part = case.found()
    case.m = np.ascontiguousarray(m[:, 2 * first[30_000] :])
    rest = case.found()
    np.testing.assert_array_equal(np.maximum(part[0], rest[0]), gain)


def test_is_drawn_when_sampling_then_has_requested_number():
    for features, sample in ((1, 1), (28, 5), (1000, 333), (4097, 4096)):
        for key in (0, 7, -3):
            assert sum(is_sampled(f, features, sample, key) for f in range(features)) == sample
    chosen = {tuple(f for f in range(28) if is_sampled(f, 28, 5, key)) for key in range(50)}
    assert len(chosen) > 45
    counts = np.bincount([f for key in range(2000) for f in range(28) if is_sampled(f, 28, 5, key)])
    assert counts.min() > 250
    assert counts.max() < 470


def test_best_splits_when_features_are_drawn_then_differ_by_node():
    case = Case([(5, 0, -1)] * 20, nodes=4, seed=2)
    keys = np.arange(4) * 1000
    gain, where, _, _ = case.found(keys=keys, features=20, drawn=3)
    for node, key in enumerate(keys):
        mine = [f for f in range(20) if is_sampled(f, 20, 3, key)]
        expected = case.expected(node, features=mine)
        np.testing.assert_allclose(gain[node], expected[0])
        assert tuple(where[node, :2]) == expected[1:]


def test_best_splits_when_declared_then_server_can_warm_it():
    op = lookup("trees.best_splits")
    assert op.reduce == "best"
    assert not op.writes
    assert op.check(0, "int64", {"words": 3})["channels"] == 2
    for name in ("add", "subtract", "clear", "mark", "best_splits"):
        _compile(lookup(f"trees.{name}"))


def test_best_splits_when_layout_is_missing_then_error_says_so():
    case = Case([(2, 0, -1)])
    with pytest.raises(OutOfRangeError, match=r"row 9 is outside \[0, 4\)"):
        case.found(layout=9)


def test_layout_of_when_feature_has_too_many_bins_then_names_it():
    with pytest.raises(LimitError, match="feature 1: expected at most 4,096 bins, got 4,097"):
        layout.layout_of(np.array([2, 4097]), np.array([0, 2, 4099]), None, np.zeros(2, np.int64), 2)


def test_best_splits_when_features_have_gaps_then_skips_them():
    case = Case(MIXED, seed=3)
    gain, where, left, sets = case.found()
    first = case.first + np.arange(len(case.first)) * 3
    sizes = np.diff(case.first)
    m = np.zeros((len(case.m), first[-1], 2), np.int64)
    columns = np.repeat(first[:-1], sizes) + np.arange(sizes.sum()) - np.repeat(case.first[:-1], sizes)
    m[:, columns] = case.m.reshape(len(m), -1, 2)
    case.m = m.reshape(len(m), -1)
    for one, other in zip(case.found(), (gain, where, left, sets), strict=True):
        np.testing.assert_array_equal(one, other)


def test_subtract_when_histograms_are_many_then_pairs_match():
    m = np.random.default_rng(0).integers(-9, 9, (7, 50))
    expected = m.copy()
    expected[[5, 2]] -= m[[1, 6]]
    ops.subtract(m, np.array([5, 2]), np.array([1, 6]))
    np.testing.assert_array_equal(m, expected)
    with pytest.raises(OutOfRangeError):
        ops.subtract(m, np.array([7]), np.array([0]))


def marked(case, rng):
    """Return a matrix with marks that holds the case's histograms, each added in two parts, and their rows."""
    channels, bins = case.channels, -(-case.first[-1] // 32) * 32
    count = rows_with_marks(len(case.m))
    rows = np.array([row for row in range(count) if not is_marks_row(row)])
    m = np.zeros((count, bins * channels), case.m.dtype)
    m[0, : case.m.shape[1]] = case.m[0]
    for row, histogram in zip(rows[1:], case.m[1:], strict=True):
        sums = histogram.reshape(-1, channels)
        some = np.flatnonzero(sums[:, 0])
        parts = rng.random(len(some)) < 0.5
        for part in (some[parts], some[~parts]):
            ops.add(m, part * channels, sums[part], row=row, marks=True)
    return m, rows[1:]


@pytest.mark.parametrize("channels", [2, 3])
def test_best_splits_when_bins_are_marked_then_finds_the_same(channels):
    case = Case(MIXED * 12, seed=3, channels=channels, nodes=70)
    plain = case.found()
    case.m, case.rows = marked(case, np.random.default_rng(0))
    for one, other in zip(case.found(marks=True), plain, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("channels", [2, 3])
def test_subtract_when_bins_are_marked_then_matches_whole_rows(channels):
    case = Case(MIXED * 12, channels=channels, nodes=4)
    m, rows = marked(case, np.random.default_rng(1))
    some = np.flatnonzero(case.m[2, ::channels])
    ops.add(m, some * channels, case.m[2].reshape(-1, channels)[some], row=rows[0], marks=True)
    ops.subtract(m, rows[:1], rows[1:2], marks=True, channels=channels)
    np.testing.assert_array_equal(m[rows[0], : case.m.shape[1]], case.m[1])


def test_clear_when_histograms_are_marked_then_clears_only_those():
    case = Case(MIXED * 12, nodes=70)
    m, rows = marked(case, np.random.default_rng(2))
    ops.clear(m, rows[[0, 69]])
    np.testing.assert_array_equal(m[rows[1:-1], : case.m.shape[1]], case.m[2:-1])
    ops.clear(m, rows[1:-1])
    assert not m[1:].any()


@pytest.mark.parametrize("columns", [[-1], [127]])
def test_add_when_a_bin_is_outside_then_nothing_is_added(columns):
    m = np.zeros((3, 128), np.int32)
    with pytest.raises(OutOfRangeError):
        ops.add(m, np.array([0, *columns]), np.ones((2, 2), np.int32), row=2, marks=True)
    assert not m.any()


@pytest.mark.parametrize(("shape", "row"), [((3, 62), 0), ((3, 64), 1), ((1, 64), 0), ((66, 64), 65)])
def test_clear_when_rows_have_no_marks_then_the_error_says_so(shape, row):
    with pytest.raises(ShapeError, match="and rows with marks"):
        ops.clear(np.zeros(shape, np.int32), np.array([row]))


@pytest.mark.parametrize("count", [2, 63, 64, 65, 66, 128, 129, 1000])
def test_rows_with_marks_when_counted_then_others_have_room(count):
    rows = rows_with_marks(count)
    others = [row for row in range(rows) if not is_marks_row(row)]
    assert len(others) == count
    assert all(row // 65 * 65 + 1 < rows for row in others[:-1])


def test_best_splits_when_many_cannot_gain_then_result_is_same():
    case = Case([(4, 0, 1)] * 60, nodes=3, empty=0.2)
    for rules in ((1, 1, 0, 0, 0), (0.5, 0.25, 1.5, 0, 60.0), (1, 1, 1.0, 3.0, 10.0)):
        case.check(case.found(rules), rules=rules)


@pytest.mark.parametrize("channels", [2, 3])
def test_add_rows_when_bins_are_empty_then_they_are_not_marked(channels):
    case = Case(MIXED * 12, channels=channels, nodes=70)
    m, rows = marked(case, np.random.default_rng(3))
    whole = np.zeros_like(m)
    whole[0] = m[0]
    for some in (rows[:40], rows[40:]):
        ops.add_rows(whole, some, m[some], channels=channels)
    np.testing.assert_array_equal(whole, m)


@pytest.mark.parametrize("channels", [2, 3])
def test_mark_when_matrix_is_recut_then_marks_are_the_same(channels):
    rng = np.random.default_rng(4)
    sums = rng.integers(1, 9, (70, 32 * 7, channels)) * (rng.random((70, 32 * 7, 1)) < 0.1)
    rows = marked_rows(rows_with_marks(71))[1:]

    def added(first, last):
        """Return a shard to whose blocks of bins, from ``first`` on, histograms were added."""
        m = np.zeros((rows_with_marks(71), (last - first) * 32 * channels), np.int64)
        ops.add_rows(m, np.array(rows), sums[:, 32 * first : 32 * last].reshape(70, -1), channels=channels)
        return m

    whole = np.hstack([added(0, 3), added(3, 7)])
    for ends in ([0, 7], [0, 2, 5, 7]):
        for first, last in pairwise(ends):
            m = np.ascontiguousarray(whole[:, 32 * channels * first : 32 * channels * last])
            ops.mark(m, channels=channels)
            used = 2 * 32 * (last - first)  # what is beside the marks of 64 rows is never read
            np.testing.assert_array_equal(m[:, :used], added(first, last)[:, :used])
