"""How rows are dealt out to workers."""

from __future__ import annotations

import numpy as np
import pytest

from ps2.algorithms.frame.dealing import choose_dealing
from ps2.algorithms.training.table import Load, loads_of, unevenness


def alike(counts):
    """Rows that all cost as much."""
    return [Load(count, count, count) for count in counts]


@pytest.mark.parametrize(
    ("counts", "workers", "expected"),
    [
        ([5, 5], 2, "keep"),
        ([5, 0], 2, "shuffle"),
        ([4, 4, 4, 4], 2, "coalesce"),
        ([3, 0, 3, 0], 2, "shuffle"),
        ([0, 0, 9, 1], 2, "shuffle"),
        ([9, 1, 1, 1], 2, "shuffle"),
        ([9, 1, 1], 3, "shuffle"),
        ([90, 1, 1, 1, 1, 1], 3, "shuffle"),
        ([10], 2, "shuffle"),
        ([1, 0, 0, 1], 2, "deal"),
        ([0, 0, 1, 1], 2, "deal"),
        ([1, 1, 0], 2, "deal"),
        ([1, 1, 1], 2, "coalesce"),
        ([1], 1, "keep"),
    ],
)
def test_way_when_rows_lie_so_then_workers_get_them_so(counts, workers, expected):
    assert choose_dealing(alike(counts), workers) == expected


SHORT, LONG = 10.0, 1000.0


@pytest.mark.parametrize(
    ("costs", "workers", "expected"),
    [
        ([SHORT, SHORT], 2, "keep"),
        ([LONG, SHORT, SHORT], 3, "shuffle"),
        ([LONG, SHORT, SHORT, LONG], 2, "coalesce"),
        ([LONG, LONG, SHORT, SHORT, SHORT, SHORT], 3, "shuffle"),
    ],
)
def test_way_when_equal_counts_cost_unlike_then_costs_decide(costs, workers, expected):
    rows = 10_000
    assert choose_dealing([Load(rows, rows * cost, rows * cost**2) for cost in costs], workers) == expected


def test_way_when_few_rows_cost_most_then_they_are_balanced():
    loads = [Load(10_000, 100_000.0, 1e6 + 10 * 1e4**2), Load(0, 0.0, 0.0)]
    assert choose_dealing(loads, 2) == "balance"


def test_unevenness_when_rows_go_anywhere_then_as_in_trials():
    rng = np.random.default_rng(3)
    costs, workers = rng.pareto(2.5, 500) + 1, 4
    dealt_rows = rng.permuted(np.tile(costs, (4_000, 1)), axis=1)[:, : 500 // workers]
    shares = dealt_rows.sum(axis=1) / (costs.sum() / workers)
    loads = [Load(500, costs.sum(), costs @ costs)]
    assert unevenness(loads, workers) == pytest.approx(shares.std(), rel=0.1)


def test_loads_when_costs_are_no_numbers_then_rows_count():
    result = [
        {"part": 3, "rows": 4, "cost": float("nan"), "cost_squared": 1.0},
        {"part": 3, "rows": 2, "cost": 8.0, "cost_squared": 40.0},
        {"part": 5, "rows": 1, "cost": 3.0, "cost_squared": 9.0},
    ]
    assert loads_of(result) == {3: Load(6, 12.0, 44.0), 5: Load(1, 3.0, 9.0)}
