"""Lines of UCI's bag-of-words form as arrays, and what is wrong with a line."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from ps2.algorithms.text.documents import HEAD_LINES, MALFORMED, fault_of, pieces_of

FAULTS = {
    (1, "many"): "expected the number of documents, got 'many'",
    (2, "1 2 3"): "expected the number of words in the vocabulary, got '1 2 3'",
    (3, ""): "expected the number of lines that follow, got ''",
    (4, "12"): "expected 'document word count', got '12'",
    (4, "1 2 3 4"): "expected 'document word count', got '1 2 3 4'",
    (4, "0 2 3"): "document: expected a whole number from 1 to 5, got '0'",
    (4, "6 2 3"): "document: expected a whole number from 1 to 5, got '6'",
    (4, "1 10 3"): "word: expected a whole number from 1 to 9, got '10'",
    (4, "1 2 x"): "count: expected a whole number from 1 to 2,147,483,647, got 'x'",
    (4, "1 2 0.5"): "count: expected a whole number from 1 to 2,147,483,647, got '0.5'",
    (4, "1 2 -1"): "count: expected a whole number from 1 to 2,147,483,647, got '-1'",
}


@pytest.mark.parametrize("at", FAULTS)
def test_fault_of_when_line_is_bad_then_says_expected_and_got(at):
    assert fault_of(at[1], at[0], documents=5, words=9) == FAULTS[at]


@pytest.mark.parametrize(("number", "line"), [(1, "3430"), (3, " 0 "), (4, "5 9 1"), (5, " 1\t2  3 \r"), (6, "")])
def test_fault_of_when_a_line_is_fine_then_there_is_none(number, line):
    assert fault_of(line, number, documents=5, words=9) is None


def parsed(lines, files=None):
    count = len(lines)
    files = np.zeros(count, np.int64) if files is None else np.array(files)
    return pieces_of(files, np.full(count, 64), pa.array(lines)).to_pylist()


def test_pieces_when_lines_are_of_a_document_then_they_are_one():
    result = parsed(["1 2 3", "1 5 1", " 2\t2 7 ", "", "1 1 1"])
    assert [(each["document"], each["words"], each["counts"]) for each in result] == [
        (1, [2, 5], [3.0, 1.0]),
        (2, [2], [7.0]),
        (1, [1], [1.0]),
    ]
    assert {each["block"] for each in result} == {64}


def test_pieces_when_a_file_begins_then_its_head_is_one():
    result = parsed(["4 1 1", "7", "9", "2", "4 1 1"], files=[1, 2, 2, 2, 2])
    assert [(each["file"], each["document"], each["counts"]) for each in result] == [
        (1, 4, [1.0]),
        (2, HEAD_LINES, [7.0, 9.0, 2.0]),
        (2, 4, [1.0]),
    ]


@pytest.mark.parametrize("line", ["1 2", "1 2 3 4", "1 x 3", "1 2 0", "0 2 1", "spam", "1 2 2147483648"])
def test_pieces_when_line_is_malformed_then_only_report_that(line):
    result = parsed(["1 2 3", line, "1 1 1"], files=[8, 8, 9])
    assert [(each["file"], each["document"], each["words"]) for each in result] == [
        (8, MALFORMED, []),
        (9, MALFORMED, []),
    ]


def test_pieces_when_there_is_no_line_then_there_are_none():
    assert parsed([""]) == []
