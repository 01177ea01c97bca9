"""How rows are dealt out to workers."""

from __future__ import annotations

import pytest

from ps2.algorithms.estimators.dealing import way


@pytest.mark.parametrize(
    ("counts", "workers", "expected"),
    [
        ([5, 5], 2, "keep"),
        ([5, 0], 2, "shuffle"),
        ([4, 4, 4, 4], 2, "coalesce"),
        ([3, 0, 3, 0], 2, "shuffle"),
        ([0, 0, 9, 1], 2, "shuffle"),
        ([9, 1, 1, 1], 2, "coalesce"),
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
    assert way(counts, workers) == expected
