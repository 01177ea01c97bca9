"""Lines of two ids and perhaps a number: what separates their fields, and what is wrong with them."""

from __future__ import annotations

import pytest

from ps2.algorithms.text.layouts import Layout
from ps2.algorithms.text.tables import RATINGS
from ps2.errors import InputError

CUT = ": remove all fields after the third"


@pytest.mark.parametrize("line", ["1 2 3", "ann\tfilm .5", "  a   b  -1e-3 ", "a b 7.", "# anything, said", "", "  "])
def test_a_line_when_it_is_a_row_or_blank_then_there_is_no_fault(line):
    assert Layout.of_text(RATINGS, 3).fault_of(line) is None


@pytest.mark.parametrize(
    ("line", "size", "fault"),
    [
        ("1", 3, "expected 'user item' or 'user item rating', got '1'"),
        ("1 2 3 4", 3, "expected 'user item' or 'user item rating', got '1 2 3 4'" + CUT),
        ("1 2 3 4", 4, "expected 'user item' or 'user item rating', got '1 2 3 4'" + CUT),
        ("1 2", 3, "expected 3 fields, as the first line has, got 2: '1 2'"),
        ("1 2 3", 2, "expected 2 fields, as the first line has, got 3: '1 2 3'"),
        ("1 2 good", 3, "rating: expected a number, got 'good'"),
        ("1 2 nan", 3, "rating: expected a number, got 'nan'"),
        ("1 2 5\u00a0", 3, r"rating: expected a number, got '5\xa0'"),
        ("1\u00a02\u00a05", 3, "expected 'user item' or 'user item rating', got " + r"'1\xa02\xa05'"),
        ("1\u20032 5", 3, "expected 3 fields, as the first line has, got 2: " + r"'1\u20032 5'"),
    ],
)
def test_a_line_when_it_is_malformed_then_the_fault_says_how(line, size, fault):
    assert Layout.of_text(RATINGS, size).fault_of(line) == fault


@pytest.mark.parametrize(
    ("lines", "fields"),
    [
        (["1 2 5"], ["1", "2", "5"]),
        (["1::2::5"], ["1", "2", "5"]),
        (["ann::The Film::5", "bob::Heat::4"], ["ann", "The Film", "5"]),
        (["ann\tThe Film\t5", "bob\tHeat\t4"], ["ann", "The Film", "5"]),
        (["2001:db8::1\t2001:db8::2"], ["2001:db8::1", "2001:db8::2"]),
        (["1\tA, B", "2\tC, D"], ["1", "A, B"]),
        (["1,2,5"], ["1", "2", "5"]),
        (["1, 2, 5"], ["1", "2", "5"]),
        (["1 , 2"], ["1", "2"]),
        (["ann,The Film,5", "bob,Heat,4"], ["ann", "The Film", "5"]),
        (["ann,The Film", "bob,Heat"], ["ann", "The Film"]),
        (["Apollo 13,1970", "Blade Runner 2,1982"], ["Apollo 13", "1970"]),
        (["std::set ann,bob 5"], ["std::set", "ann,bob", "5"]),
        (["ann,bob film", "eve film"], ["ann,bob", "film"]),
        (["::1 ::2"], ["::1", "::2"]),
        (["db8::1 db8::2", "a b"], ["db8::1", "db8::2"]),
    ],
)
def test_lines_when_separated_somehow_then_the_fields_are_found(lines, fields):
    layout = Layout.of_lines(RATINGS, lines)
    assert (layout.fields(lines[0], layout.headers[0]), len(layout.names)) == (fields, len(fields))


@pytest.mark.parametrize("line", ["1::2::5::978", "1,2,5,978", "1\t2\t5\t978", "1::2::good"])
def test_lines_when_no_separator_fits_then_fault_quotes_them(line):
    assert "'user item rating', got " in str(Layout.of_lines(RATINGS, [line]).fault_of(line))


@pytest.mark.parametrize(
    ("lines", "readings"),
    [
        (["2001:db8::1 2001:db8::2"] * 2, "'2001:db8' and '1 2001:db8' and '2', or as '2001:db8::1' and '2001:db8::2'"),
        (["u,1 i,5", "u,2 i,3"], "'u' and '1 i' and '5', or as 'u,1' and 'i,5'"),
        (["db8::1,db8::2"], "'db8' and '1,db8' and '2', or as 'db8::1' and 'db8::2'"),
        (["1\tHeat 1995", "2\tAlien 1979"], "'1' and 'Heat' and '1995', or as '1' and 'Heat 1995'"),
        (["1::Heat 1995", "2::Alien 1979"], "'1::Heat' and '1995', or as '1' and 'Heat 1995'"),
    ],
)
def test_lines_when_they_read_in_two_ways_then_error_says_both(lines, readings):
    with pytest.raises(InputError) as raised:
        Layout.of_lines(RATINGS, lines, "file")
    assert str(raised.value).startswith(f"file: {lines[0]!r} can be read as {readings}: separate fields by")


@pytest.mark.parametrize("lines", [["1 2 4,5", "3 4 3,0"], ["1;2;4,5"], ["ann | film | -4,25"]])
def test_lines_when_numbers_have_commas_then_error_says_so(lines):
    with pytest.raises(InputError, match=r"^file: expected a number with a decimal point, got '"):
        Layout.of_lines(RATINGS, lines, "file")


def test_a_line_when_it_is_not_utf8_then_the_fault_says_so():
    line = "andr\ufffd film 5"
    assert Layout.of_text(RATINGS, 3).fault_of(line) == "user: expected UTF-8, got 'andr\ufffd'"
