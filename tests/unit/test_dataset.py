"""Pieces of a libsvm file, before Spark is asked for anything."""

from __future__ import annotations

import numpy as np
import pytest

from ps2.algorithms import dataset
from ps2.algorithms.dataset import PIECE_LINES, Pieces, _check_faults, _parse_partition, _Summary, read_classes
from ps2.algorithms.libsvm import parse
from ps2.errors import InputError


def summary(rdd_partition=0, number=0, lines=10, fault=None):
    return _Summary(rdd_partition, number, lines, lines, 3, (0.0, 1.0), fault)


def pieces_with(labels):
    return Pieces("rows.libsvm", rdd=None, rows=len(labels), features=3, labels=tuple(labels), count=1)


@pytest.mark.parametrize("path", ["{}", "file://{}", "file:{}"])
def test_check_local_when_a_local_file_is_missing_then_it_is_named(path, tmp_path):
    (tmp_path / "there").touch()
    dataset.check_local(path.format(tmp_path / "there"))
    dataset.check_local(path.format(tmp_path))
    with pytest.raises(InputError, match=r"/nowhere: there is no such file"):
        dataset.check_local(path.format(tmp_path / "nowhere"))


@pytest.mark.parametrize("path", ["hdfs://host/nowhere", "s3a://bucket/nowhere", "/nowhere/part-*", "/nowhere/{a,b}"])
def test_check_local_when_only_spark_can_see_it_then_it_is_left_to_spark(path):
    dataset.check_local(path)


def test_check_local_when_paths_may_be_of_hdfs_then_they_are_left_to_spark(monkeypatch):
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    dataset.check_local("/nowhere")


def test_parse_partition_when_there_are_no_lines_then_there_is_no_piece():
    assert list(_parse_partition(0, [])) == []


def test_parse_partition_when_lines_fill_more_than_a_piece_then_pieces_are_numbered():
    pieces = list(_parse_partition(3, [b"1 1:1"] * (2 * PIECE_LINES + 1)))
    found = [(piece.rdd_partition, piece.number, piece.lines) for piece in pieces]
    assert found == [(3, 0, PIECE_LINES), (3, 1, PIECE_LINES), (3, 2, 1)]


def test_parse_partition_when_a_line_is_malformed_then_the_piece_names_it():
    (piece,) = _parse_partition(0, [b"1 1:1", b"# no row", b"1 1:x"])
    assert (piece.block, piece.fault[0]) == (None, 2)


def test_parse_partition_when_a_line_is_malformed_then_later_pieces_are_left_out():
    lines = [b"1 1:1"] * (3 * PIECE_LINES)
    lines[PIECE_LINES] = b"oops"
    assert [piece.number for piece in _parse_partition(0, lines)] == [0, 1]


def test_summary_when_a_piece_has_rows_then_it_counts_rows_features_and_labels():
    (piece,) = _parse_partition(0, [b"1 7:1", b"-1 2:1 3:1", b"", b"1"])
    found = dataset._summarise(piece)
    assert (found.lines, found.rows, found.features, found.labels) == (4, 3, 7, (-1.0, 1.0))


def test_summary_when_rows_have_no_entries_then_there_are_no_features():
    (piece,) = _parse_partition(0, [b"1", b"0"])
    assert dataset._summarise(piece).features == 0


def test_summary_when_there_are_very_many_labels_then_they_are_cut():
    (piece,) = _parse_partition(0, [b"%d 1:1" % i for i in range(500)])
    assert len(dataset._summarise(piece).labels) == dataset.MAX_LABELS


def test_check_faults_when_there_is_none_then_nothing_is_raised():
    _check_faults("rows", [summary(), summary(1)])


def test_check_faults_when_a_later_piece_is_at_fault_then_lines_before_it_count():
    found = [summary(0, 0, 10), summary(0, 1, 5), summary(1, 0, 20, fault=(4, "label: what"))]
    with pytest.raises(InputError, match=r"^rows: line 20: label: what$"):
        _check_faults("rows", found)


def test_check_faults_when_two_partitions_are_at_fault_then_the_first_is_named():
    found = [summary(0, 0, 10, fault=(0, "first")), summary(1, 0, 20, fault=(4, "second"))]
    with pytest.raises(InputError, match=r"line 1: first"):
        _check_faults("rows", found)


def test_concatenate_when_given_blocks_then_it_is_the_block_of_all_lines():
    lines = [b"1 1:1 5:2", b"0", b"1 2:3", b"0 1:4 2:5 9:6"]
    came = dataset._concatenate([parse(lines[:2]), parse(lines[2:3]), parse(lines[3:])])
    expected = parse(lines)
    for name in ("labels", "indptr", "indices", "values"):
        np.testing.assert_array_equal(getattr(came, name), getattr(expected, name))


def test_limit_when_features_are_above_it_then_they_are_left_out():
    came = dataset._limit(parse([b"1 1:1 5:2", b"0 9:7", b"1 2:3 4:4"]), 4)
    expected = parse([b"1 1:1", b"0", b"1 2:3 4:4"])
    for name in ("labels", "indptr", "indices", "values"):
        np.testing.assert_array_equal(getattr(came, name), getattr(expected, name))


def test_limit_when_all_features_are_below_it_then_the_block_is_the_same():
    block = parse([b"1 1:1 5:2"])
    assert dataset._limit(block, 5) is block


def test_read_classes_when_there_are_two_labels_then_the_smaller_is_class_0():
    assert read_classes(pieces_with([-1.0, 1.0])) == (-1.0, 1.0)


def test_read_classes_when_there_are_three_then_the_error_names_file_and_labels():
    with pytest.raises(InputError, match=r"^rows.libsvm: .*got 3: 0, 1, 2"):
        read_classes(pieces_with([0.0, 1.0, 2.0]))


def test_dataset_when_a_label_is_in_neither_class_then_the_error_names_file_and_label():
    with pytest.raises(InputError, match=r"^rows.libsvm: expected labels 0 and 1, got 5$"):
        pieces_with([0.0, 5.0]).dataset(3, (0.0, 1.0), True, 2)
