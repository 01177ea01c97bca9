"""Lists of columns of files of clicks, and the formats of files."""

from __future__ import annotations

import pytest

from ps2.algorithms.text.clicks import ClickColumns, format_of, matching, names_in
from ps2.algorithms.text.layouts import LABEL, Column
from ps2.errors import ConfigError, InputError

NAMES = ("label", "i1", "i2", "c1", "c2", "c10")


def test_names_when_ranges_then_are_spelled_out():
    assert names_in("label, i1..i3,c9..c11") == ("label", "i1", "i2", "i3", "c9", "c10", "c11")


@pytest.mark.parametrize("text", ["a,,b", "c3..c1", "c0..c999999"])
def test_names_when_malformed_then_error(text):
    with pytest.raises(ConfigError, match="expected"):
        names_in(text)


def test_columns_when_pattern_then_all_that_match():
    assert matching("f", ("c*", "c1", "i2"), NAMES) == ("c1", "c2", "c10", "i2")


@pytest.mark.parametrize("wanted", ["d*", "c3"])
def test_columns_when_none_fits_then_names_what_there_is(wanted):
    with pytest.raises(InputError, match=r"f: expected .*'label', 'i1', 'i2'"):
        matching("f", (wanted,), NAMES)


def test_columns_when_label_is_a_number_too_then_error():
    with pytest.raises(InputError, match="numbers: 'label' is the column of labels"):
        ClickColumns(numbers=("*",)).resolved("f", NAMES)


def test_columns_when_crossed_only_then_are_texts():
    columns = ClickColumns(categories=("c1",), buckets=("i1",), crosses=("c1:c2", "c2:i1")).resolved("f", NAMES)
    assert (columns.texts, columns.values) == (["c1", "c2"], ["label", "i1"])


@pytest.mark.parametrize(
    ("path", "expected"),
    [("a.csv", "csv"), ("a/b.TSV.gz", "tsv"), ("s3://b/day=1/*.parquet", "parquet")],
)
def test_format_when_suffix_tells_then_is_that(path, expected):
    assert format_of(path) == expected


def test_format_when_folder_then_is_its_files(tmp_path):
    (tmp_path / "day=0").mkdir()
    (tmp_path / "day=0" / "_SUCCESS").touch()
    (tmp_path / "day=0" / "part-0.snappy.parquet").touch()
    assert format_of(str(tmp_path)) == "parquet"


def test_format_when_nothing_tells_then_option_is_named():
    with pytest.raises(ConfigError, match="--format: expected csv, tsv or parquet"):
        format_of("clicks.txt")


@pytest.mark.parametrize("value", ["0", "1", "+1", "-0", "1.0", "01.", ".0", "0.000e+00", "1.000000E-00"])
def test_label_when_it_is_0_or_1_then_has_no_fault(value):
    assert Column("label", LABEL).fault_of(value, "line") is None


@pytest.mark.parametrize("value", ["", "2", "-1", "0.1", "1e1", "yes", "10"])
def test_label_when_it_is_something_else_then_is_named(value):
    assert Column("label", LABEL).fault_of(value, "line") == f"label: expected a label 0 or 1, got {value!r}"
