"""The results of ``mapPartitions`` and what can be made of them."""

from __future__ import annotations

import pytest

from ps2.client.zipped import PartitionResults

RESULTS = PartitionResults([(2, "b"), (9, "a"), (4, "c")])


def test_results_when_collected_then_are_in_partition_order():
    assert RESULTS.collect() == list(RESULTS) == [(2, "b"), (9, "a"), (4, "c")]
    assert len(RESULTS) == 3


def test_collect_when_list_is_changed_then_results_are_not():
    RESULTS.collect().clear()
    assert len(RESULTS) == 3


def test_sum_when_results_only_add_then_zero_is_not_needed():
    assert PartitionResults(["a", "b"]).sum() == "ab"


@pytest.mark.parametrize(
    ("key", "largest", "smallest"), [(None, 9, 2), (lambda r: -r[0], 2, 9), (lambda r: r[1], 4, 9)]
)
def test_max_and_min_when_given_a_key_then_it_decides(key, largest, smallest):
    assert RESULTS.max(key)[0] == largest
    assert RESULTS.min(key)[0] == smallest


def test_reduce_when_f_is_not_commutative_then_is_left_to_right():
    assert PartitionResults([10, 3, 2]).reduce(lambda a, b: a - b) == 5


def test_repr_when_shown_then_it_shows_the_results():
    assert repr(PartitionResults([1])) == "PartitionResults([1])"
