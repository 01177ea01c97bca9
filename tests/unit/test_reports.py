"""Reports are merged in the order of the ranks, whatever the order in which they came; what does not fit is named."""

from __future__ import annotations

import numpy as np
import pytest

from ps2.errors import UsageError, WorkerError
from ps2.run.reports import merge_reports, report


def merge(how, *values):
    """Merge one report of each rank, which came in the opposite order."""
    reports = {rank: [report(3, value, how)] for rank, value in enumerate(values)}
    (result,) = merge_reports(3, dict(reversed(reports.items())))
    return result


def test_sum_when_numbers_are_floats_then_adds_by_rank():
    values = [0.1, 1e16, -1e16, 0.3]
    assert merge("sum", *values) == (((0.1 + 1e16) - 1e16) + 0.3)


def test_sum_when_numbers_are_integers_then_is_exact():
    assert merge("sum", 2**63 - 1, 2**63 - 1) == 2**64 - 2
    assert merge("sum", True, True) == 2
    assert merge("sum", 1, 0.5) == 1.5


def test_sum_when_arrays_are_float32_then_adds_in_float64():
    total = merge("sum", *[np.array([v], np.float32) for v in (1.0, 1e-10)])
    assert total.dtype == np.float64
    assert total[0] == 1.0 + float(np.float32(1e-10))


@pytest.mark.parametrize(
    ("dtype", "wide"), [("bool", "int64"), ("int8", "int64"), ("uint8", "int64"), ("uint64", "uint64")]
)
def test_sum_when_integers_are_narrow_then_does_not_wrap(dtype, wide):
    most = True if dtype == "bool" else min(np.iinfo(dtype).max, 2**62)
    total = merge("sum", *[np.array([most], dtype)] * 3)
    assert (total.dtype, int(total[0])) == (np.dtype(wide), 3 * int(most))


@pytest.mark.parametrize("values", [(2**63 - 1, 1), (-(2**63), -1)])
def test_sum_when_it_does_not_fit_64_bits_then_is_refused(values):
    with pytest.raises(WorkerError, match="clock 3: the sum of the workers' reports does not fit int64"):
        merge("sum", *[np.array([value]) for value in values])


def test_max_when_given_numbers_or_arrays_then_is_largest():
    assert merge("max", 1, 3, 2) == 3
    assert np.isnan(merge("max", 1.0, np.nan, 2.0))
    assert merge("max", np.array([1, 5]), np.array([4, 2])).tolist() == [4, 5]


def test_concat_when_given_then_is_in_the_order_of_ranks():
    assert merge("concat", 3, 1.5, 2) == [3, 1.5, 2]
    assert merge("concat", [1, "a"], [], [None]) == [1, "a", None]
    assert merge("concat", np.zeros((1, 2)), np.ones((0, 2)), np.ones((2, 2))).tolist() == [[0, 0], [1, 1], [1, 1]]


def test_dicts_when_merged_then_are_merged_by_key():
    result = merge("sum", {"a": 1, "b": np.array([1.0])}, {"a": 2, "b": np.array([2.0])})
    assert (result["a"], result["b"].tolist()) == (3, [3.0])


def test_reports_when_ranks_make_several_then_merge_by_call():
    mine = {0: [report(3, 1, "sum"), report(3, 5, "max")], 1: [report(3, 2, "sum"), report(3, 4, "max")]}
    assert merge_reports(3, mine) == [3, 5]
    assert merge_reports(3, {}) == []
    assert merge_reports(3, {0: mine[0], 1: mine[1][:1]}) == [3, 5]


@pytest.mark.parametrize(
    ("how", "values", "says"),
    [
        ("sum", (np.zeros(2), np.zeros(3)), r"shape \(2,\), got an array of float64 with shape \(3,\)"),
        ("sum", (np.zeros(1), np.zeros(1, "f4")), "float64 .* got an array of float32"),
        ("concat", (np.zeros((1, 2)), np.zeros((1, 3))), "shape"),
        ("max", (1, np.zeros(1)), "int, got an array"),
        ("sum", ({"a": 1}, {"b": 1}), "a dict of 'a', got a dict of 'b'"),
        ("sum", ({"a": 1}, 1), "a dict of 'a', got int"),
        ("sum", (1, {"a": 1}), "int, got a dict"),
    ],
)
def test_reports_when_they_do_not_fit_then_ranks_are_named(how, values, says):
    with pytest.raises(WorkerError, match=f"clock 3: rank 1 differs from rank 0: expected .*{says}"):
        merge(how, *values)


def test_reports_when_their_merges_differ_then_are_refused():
    with pytest.raises(WorkerError, match="merge='sum', got merge='max'"):
        merge_reports(3, {0: [report(3, 1, "sum")], 1: [report(3, 1, "max")]})


@pytest.mark.parametrize(
    ("value", "how", "says"),
    [
        (1, "mean", "expected one of 'sum', 'max', 'concat'"),
        ("a", "sum", "expected a number or a NumPy array, got str"),
        ([1], "sum", "got list"),
        ({"a": {"b": 1}}, "sum", r"report\['a'\]: expected a number"),
        (None, "concat", "or a list, got NoneType"),
    ],
)
def test_report_when_it_cannot_be_merged_then_is_refused(value, how, says):
    with pytest.raises(UsageError, match=says):
        report(0, value, how)
