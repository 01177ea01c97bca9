"""The k largest dot products against NumPy: ties, sizes around the blocks', and that no cut changes a bit."""

from __future__ import annotations

import numpy as np
import pytest

from ps2.algorithms.factors.top_k import LEFT, RIGHT, Candidates, Excluded, pair_products, rounding_slack


def sequential(left, right):
    """All dot products, added up in float32 from the first element on, shape (m, n)."""
    total = np.zeros((len(left), len(right)), np.float32)
    for at in range(left.shape[1]):
        total += left[:, at, None] * right[None, :, at]
    return total


def expected(left, right, k):
    scores = sequential(left, right)
    positions = np.stack([np.lexsort((-np.arange(len(right)), -row))[:k] for row in scores])
    return np.take_along_axis(scores, positions, 1), positions


def vectors(rng, count, dim):
    return rng.normal(size=(count, dim)).astype(np.float32)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 7, 5), (LEFT + 3, RIGHT + 5, 16), (2, 3 * RIGHT, 64), (5, 300, 257)])
@pytest.mark.parametrize("k", [1, 10, 100])
def test_best_when_sizes_differ_then_is_numpys_to_the_bit(sizes, k):
    m, n, dim = sizes
    rng = np.random.default_rng(1)
    left, right = vectors(rng, m, dim), vectors(rng, n, dim)
    result = Candidates(right).best(left, k)
    for array, requested in zip(result, expected(left, right, min(k, n)), strict=True):
        np.testing.assert_array_equal(array, requested)


def test_best_when_scores_are_equal_then_higher_place_is_first():
    rng = np.random.default_rng(2)
    left = vectors(rng, 9, 3)
    right = rng.integers(-1, 2, (2 * RIGHT + 9, 3)).astype(np.float32)
    scores, positions = Candidates(right).best(left, 50)
    np.testing.assert_array_equal(positions, expected(left, right, 50)[1])
    assert (np.diff(positions, axis=1)[np.diff(scores, axis=1) == 0] < 0).all()


def test_best_when_all_scores_are_equal_then_last_places_come():
    scores, positions = Candidates(np.zeros((RIGHT + 2, 4), np.float32)).best(np.ones((1, 4), np.float32), 3)
    assert (scores.tolist(), positions.tolist()) == ([[0.0, 0.0, 0.0]], [[RIGHT + 1, RIGHT, RIGHT - 1]])


def test_best_when_left_is_cut_anyhow_then_no_bit_changes():
    rng = np.random.default_rng(3)
    left, right = vectors(rng, 700, 33), vectors(rng, 2500, 33)
    candidates = Candidates(right)
    whole = candidates.best(left, 20)
    for cuts in ([1, 2, 300], [256, 512], [699]):
        parts = [candidates.best(part, 20) for part in np.split(left, cuts)]
        for at, array in enumerate(whole):
            np.testing.assert_array_equal(np.concatenate([part[at] for part in parts]), array)


@pytest.mark.parametrize("scale", [1e-30, 1e-18, 1e15])
def test_best_when_vectors_are_tiny_or_huge_then_still_exact(scale):
    rng = np.random.default_rng(4)
    left, right = vectors(rng, 4, 8) * np.float32(scale), vectors(rng, 3000, 8) * np.float32(scale)
    result = Candidates(right).best(left, 10)
    for array, requested in zip(result, expected(left, right, 10), strict=True):
        np.testing.assert_array_equal(array, requested)


def test_best_when_scores_ascend_then_every_item_is_considered():
    right = np.arange(5000, dtype=np.float32)[:, None]
    _, positions = Candidates(right).best(np.ones((1, 1), np.float32), 4)
    assert positions.tolist() == [[4999, 4998, 4997, 4996]]


@pytest.mark.parametrize("sizes", [(1, 2000, 3), (LEFT + 3, RIGHT + 5, 8)])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.995, 1.0])
def test_best_when_some_are_excluded_then_best_of_the_others(sizes, share):
    m, n, dim = sizes
    rng = np.random.default_rng(7)
    left, right = vectors(rng, m, dim), vectors(rng, n, dim)
    is_excluded = rng.random((m, n)) < share
    pairs = [np.concatenate([both, both[::-1][:5], [-1]]) for both in np.nonzero(is_excluded)]  # repeated, unknown
    pairs[0][-6:-1] = np.nonzero(is_excluded)[0][::-1][:5]
    scores, positions = Candidates(right).best(left, 10, Excluded.from_pairs(*pairs, m))
    own = sequential(left, right)
    for row in range(m):
        others = np.flatnonzero(~is_excluded[row])
        best = others[np.lexsort((-others, -own[row, others]))][:10]
        chosen = positions[row] >= 0
        np.testing.assert_array_equal(positions[row, chosen], best)
        np.testing.assert_array_equal(scores[row, chosen], own[row, best])
        assert np.isnan(scores[row, ~chosen]).all()


def test_slack_when_sums_are_in_any_order_then_bounds_difference():
    rng = np.random.default_rng(5)
    left, right = vectors(rng, 20, 500), vectors(rng, 300, 500)
    lengths = np.linalg.norm(left.astype(float), axis=1)[:, None] * np.linalg.norm(right.astype(float), axis=1)
    difference = np.abs((left @ right.T).astype(float) - sequential(left, right))
    assert (difference <= rounding_slack(lengths, 500)).all()
    assert (rounding_slack(lengths, 500) < 1e-3 * lengths).all()


def test_products_when_a_place_is_missing_then_nan():
    rng = np.random.default_rng(6)
    left, right = vectors(rng, 3, 5), vectors(rng, 4, 5)
    result = pair_products(left, right, np.array([0, -1, 2, 2]), np.array([3, 0, -1, 1]))
    scores = sequential(left, right)
    np.testing.assert_array_equal(result, np.array([scores[0, 3], np.nan, np.nan, scores[2, 1]], np.float32))
