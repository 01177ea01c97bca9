"""Lines of files of edges, and what is wrong with them."""

from __future__ import annotations

import pytest

from ps2.algorithms.edge_lists import fault_of


@pytest.mark.parametrize("line", ["1 2", "a\tb", "  x   y  ", "# anything at all, said", "", "   "])
def test_line_when_it_is_edge_or_blank_then_no_fault(line):
    assert fault_of(line, 2) is None


@pytest.mark.parametrize("line", ["1 2 3", "a b .5", "a b -1e-3", "a b 7."])
def test_a_line_when_it_has_a_weight_then_there_is_no_fault(line):
    assert fault_of(line, 3) is None


@pytest.mark.parametrize(
    ("line", "size", "fault"),
    [
        ("1", 2, "expected 'source target' or 'source target weight', got '1'"),
        ("1 2 3 4", 2, "expected 'source target' or 'source target weight', got '1 2 3 4'"),
        ("1 2 3", 2, "expected 2 fields, as the lines before have, got '1 2 3'"),
        ("1 2", 3, "expected 3 fields, as the lines before have, got '1 2'"),
        ("1 2 heavy", 3, "weight: expected a number, got 'heavy'"),
        ("1 2 nan", 3, "weight: expected a number, got 'nan'"),
    ],
)
def test_a_line_when_it_is_malformed_then_the_fault_says_how(line, size, fault):
    assert fault_of(line, size) == fault
