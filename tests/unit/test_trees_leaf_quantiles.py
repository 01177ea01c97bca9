"""Quantiles of residuals by leaf, of sums that workers add up in two steps."""

from __future__ import annotations

import numpy as np
import pytest

from ps2.algorithms.trees import leaf_quantiles as quantiles
from ps2.algorithms.trees.cut_points import ordered_bits


def added(parts):
    """Add up what several workers found."""
    keys, position = np.unique(np.concatenate([keys for keys, _ in parts]), return_inverse=True)
    return keys, np.bincount(position, np.concatenate([sums for _, sums in parts])).astype(np.int64)


def quantiles_of(workers, share, leaves):
    """What the driver and workers, each with (leaves, residuals, weights), come to."""

    def round_of(cells):
        return added([quantiles.sum_by_cell(some, ordered_bits(x), weights, cells) for some, x, weights in workers])

    keys, weights = round_of(None)
    cells, left = quantiles.find_cells(keys, weights, share * quantiles._totals(keys, weights, leaves))
    fine, _ = quantiles.find_cells(*round_of(cells), left)
    return quantiles.cell_values(cells, fine)


def dealt(x, leaf, weights, workers, leaves):
    for worker in range(workers):
        mine = np.arange(len(x)) % workers == worker
        of_leaves = [np.flatnonzero(leaf[mine] == number).astype(np.int32) for number in range(leaves)]
        yield of_leaves, x[mine], None if weights is None else weights[mine]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.77])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("leaves", [3, 200])
def test_quantiles_when_found_in_two_steps_then_match_exact(share, weighted, leaves):
    rng = np.random.default_rng(0)
    x = rng.normal(size=3000) * 10.0 ** rng.integers(-3, 4, 3000)
    leaf = np.append(np.arange(leaves), rng.integers(0, leaves, 3000 - leaves))
    weights = rng.integers(1, 5, 3000) if weighted else None
    times = np.ones(3000, int) if weights is None else weights
    exact = [
        np.quantile(np.repeat(x[leaf == n], times[leaf == n]), share, method="inverted_cdf") for n in range(leaves)
    ]
    one, three = (quantiles_of(list(dealt(x, leaf, weights, w, leaves)), share, leaves) for w in (1, 3))
    np.testing.assert_allclose(one, exact, rtol=2.0**-20)
    np.testing.assert_array_equal(one, three)


def test_values_when_they_are_short_numbers_then_are_exact():
    x = np.array([-3.0, -0.5, 0.0, 0.25, 7.0, 1024.0])
    cells = (ordered_bits(x) >> np.uint64(quantiles.BELOW_FINE)).astype(np.int64)
    values = quantiles.cell_values(cells >> quantiles.CELL_BITS, cells & (quantiles.CELLS - 1))
    np.testing.assert_array_equal(values, x)


def test_quantiles_when_leaf_has_no_row_then_finds_none():
    cells, left = quantiles.find_cells(
        np.array([5, (2 << quantiles.CELL_BITS) + 7]), np.array([4, 6]), np.array([2.0, 0.0, 3.0])
    )
    assert cells.tolist() == [5, 0, 7]
    assert left.tolist() == [2.0, 0.0, 3.0]


def test_totals_when_earlier_tree_was_larger_then_ignores_it():
    keys = np.array([3, (1 << quantiles.CELL_BITS) + 1, 7 << quantiles.CELL_BITS])
    assert quantiles._totals(keys, np.array([2, 5, 0]), 2).tolist() == [2.0, 5.0]
