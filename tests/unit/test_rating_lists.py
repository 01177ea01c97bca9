"""Lines of CSV files of ratings, and what is wrong with them."""

from __future__ import annotations

import pytest

from ps2.algorithms.text.layouts import Header, Layout
from ps2.algorithms.text.paths import format_of
from ps2.algorithms.text.tables import CsvColumns
from ps2.errors import InputError

HEADER = '\ufeffuserId,movieId,"stars",time'


def layout_of(line, columns):
    header = Header.of(line, ",")
    return Layout(columns.columns("file", header.names), (header,))


CSV = layout_of(HEADER, CsvColumns("userId", "movieId", "stars"))


@pytest.mark.parametrize("line", ["1,2,3,4", '"a, b",2,3.5,', HEADER, ""])
def test_csv_when_it_is_a_rating_or_header_then_no_fault(line):
    assert CSV.fault_of(line) is None


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("1,2,3", "expected 4 fields, as the first line has, got 3: '1,2,3'"),
        ('1,2,3,"a', "expected 4 fields, as the first line has, got 3: '1,2,3,\"a'"),
        (",2,3,4", "user: expected an id, got an empty field in ',2,3,4'"),
        ("1,,3,4", "item: expected an id, got an empty field in '1,,3,4'"),
        ("1,2,,4", "rating: expected a number, got ''"),
        ("1,2,inf,4", "rating: expected a number, got 'inf'"),
        (
            "movieId,userId,stars,time",
            "expected a row, got names of columns in another order than in the first line: 'movieId,userId,stars,time'",
        ),
    ],
)
def test_csv_when_it_is_malformed_then_the_fault_says_how(line, fault):
    assert CSV.fault_of(line) == fault


def test_csv_when_spaces_follow_commas_then_they_are_cut_off():
    layout = layout_of("user, item, rating", CsvColumns())
    assert layout.fields("1, 2 , 5", layout.headers[0]) == ["1", "2", "5"]


def test_csv_when_columns_are_named_then_found_in_any_place():
    layout = layout_of("weight,item,x,user", CsvColumns(rating=None, weight="weight"))
    assert layout.fields("1,2,3,4", layout.headers[0]) == ["4", "2", "1"]
    assert [column.name for column in layout.columns] == ["user", "item", "weight"]


@pytest.mark.parametrize(
    ("header", "fault"),
    [
        ("user,item", "file: line 1: expected a column 'rating' of ratings, got 'user', 'item'"),
        ("user,user,item,rating", "file: line 1: expected a column 'user' of users, got several of this name"),
    ],
)
def test_csv_when_a_column_is_missing_then_error_names_it(header, fault):
    with pytest.raises(InputError, match=fault):
        layout_of(header, CsvColumns())


def test_format_when_name_ends_so_then_is_csv():
    names = ("a.csv", "b.CSV.gz", "a.txt", "csv", "a.csv/b", "hdfs:///x/r.csv.bz2")
    assert [format_of(name) for name in names] == ["csv", "csv", None, None, None, "csv"]


@pytest.mark.parametrize("path", ["", "/part-*", "/day=1"])
def test_format_when_its_files_are_csv_then_is_csv(tmp_path, path):
    (tmp_path / "day=1").mkdir()
    for name in ("_SUCCESS", "part-0.csv.gz", "day=1/part-1.csv"):
        (tmp_path / name).touch()
    assert format_of(f"{tmp_path}{path}") == "csv"
