"""LIBSVM files before Spark is asked for anything: missing ones, malformed lines, labels that are not two."""

from __future__ import annotations

import pytest

from ps2.algorithms.text import queries
from ps2.algorithms.text.libsvm import LabelledRows, fault_of
from ps2.algorithms.text.paths import check_local
from ps2.errors import InputError

FAULTS = {
    "spam 2:1": "label: expected a number, got 'spam'",
    "nan 2:1": "label: expected a number, got 'nan'",
    "2:1 3:1": "label: expected a number, got '2:1'",
    "1 2": "feature: expected index:value, got '2' without ':'",
    "1 2:x": "value: expected a number, got 'x' in '2:x'",
    "1 2:": "value: expected a number, got '' in '2:'",
    "1 2:1e400": "value: expected a number, got '1e400' in '2:1e400'",
    "1 2:1\u00a0": r"value: expected a number, got '1\xa0' in '2:1\xa0'",
    "\u30001 2:1": r"label: expected a number, got '\u30001'",
    "1 2:1\t3:1": r"value: expected a number, got '1\t3:1' in '2:1\t3:1'",
    "1 0:1": "index: expected an integer from 1 on, 9 at most, got '0' in '0:1'",
    "1 -3:1": "index: expected an integer from 1 on, 9 at most, got '-3' in '-3:1'",
    "1 2.5:1": "index: expected an integer from 1 on, 9 at most, got '2.5' in '2.5:1'",
    "1 10:1": "index: expected an integer from 1 on, 9 at most, got '10' in '10:1'",
    "1 qid:7 2:1": "index: expected a feature, got the query 'qid:7', which ps2 train gbt --task ranking reads",
    "1 5:1 5:2": "index: expected an integer above 5, the index before, and 9 at most, got '5' in '5:2'",
    "1 5:1 3:2": "index: expected an integer above 5, the index before, and 9 at most, got '3' in '3:2'",
    f"1 {'7' * 50}:1": f"index: expected an integer from 1 on, 9 at most, got '{'7' * 40}...' in '{'7' * 40}...'",
}


@pytest.mark.parametrize("line", FAULTS)
def test_fault_of_when_line_is_bad_then_says_expected_and_got(line):
    assert fault_of(line + "\n", features=9) == FAULTS[line]


@pytest.mark.parametrize("line", ["", " \n", "# 1:2:3", "1", "-1.5e-3  1:.5 9:-2. ", "+1 2:1E5\r\n", "1\t 2:1\t 3:1"])
def test_fault_of_when_a_line_is_fine_then_there_is_none(line):
    assert fault_of(line, features=9) is None


RELEVANCE = "label: expected a relevance, a whole number from 0 to 31, got "
QID = "query: expected qid: and a number up to 9223372036854775807 after the label (or each query's rows in FILE.query)"
QUERY_FAULTS = {
    "spam qid:1 2:1": f"{RELEVANCE}'spam'",
    "32 qid:1 2:1": f"{RELEVANCE}'32'",
    "-1 qid:1 2:1": f"{RELEVANCE}'-1'",
    "0.5 qid:1 2:1": f"{RELEVANCE}'0.5'",
    "1": f"{QID}, got ''",
    "1 2:1": f"{QID}, got '2:1'",
    "1 qid:1.5 2:1": f"{QID}, got 'qid:1.5'",
    "1 qid:9223372036854775808 2:1": f"{QID}, got 'qid:9223372036854775808'",
    "1 qid:1 qid:2 2:1": "index: expected a feature, got the query 'qid:2', which ps2 train gbt --task ranking reads",
    "1 qid:1 2:1f": "value: expected a number, got '1f' in '2:1f'",
    "1 qid:1 10:1": "index: expected an integer from 1 on, 9 at most, got '10' in '10:1'",
}


@pytest.mark.parametrize("line", QUERY_FAULTS)
def test_describe_fault_when_line_is_bad_then_says_why(line):
    assert queries.describe_fault(line + "\n", features=9) == QUERY_FAULTS[line]


@pytest.mark.parametrize("line", ["", "# 2", "2 qid:7", "\t3.0  qid:007\t1:.3 5:NaN # 6:x\r\n", f"0 qid:{2**60} 9:1#"])
def test_describe_fault_when_line_is_fine_then_none(line):
    assert queries.describe_fault(line, features=9) is None


def rows_with(*labels):
    return LabelledRows("rows.libsvm", frame=None, counts=dict.fromkeys(labels, 1))


def test_classes_when_two_labels_then_smaller_is_class_0():
    assert rows_with(1.0, -1.0).classes() == (-1.0, 1.0)


@pytest.mark.parametrize(
    ("labels", "told"), [((2.0, 0.0, 1.0), "0, 1, 2"), ((1.0,), "1"), (range(11), r"8, 9, \.\.\.")]
)
def test_classes_when_not_two_labels_then_names_file_and_labels(labels, told):
    with pytest.raises(InputError, match=rf"^rows.libsvm: labels: expected two different values, got .*{told}$"):
        rows_with(*labels).classes()


def test_classified_when_label_is_unknown_then_names_file():
    with pytest.raises(InputError, match=r"^rows.libsvm: expected labels 0 and 1, got 5$"):
        rows_with(0.0, 5.0).classified((0.0, 1.0))


@pytest.mark.parametrize("path", ["{}", "file://{}", "file:{}", "file://localhost{}"])
def test_check_local_when_file_is_missing_then_named(path, tmp_path):
    (tmp_path / "there").touch()
    check_local(path.format(tmp_path / "there"))
    check_local(path.format(tmp_path))
    with pytest.raises(InputError, match=r"/nowhere: there is no such file"):
        check_local(path.format(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    "path", ["hdfs://host/nowhere", "s3a://bucket/nowhere", "/nowhere/part-[0-9]", "/nowhere/{a,b}"]
)
def test_check_local_when_only_spark_sees_it_then_left_to_spark(path):
    check_local(path)


@pytest.mark.parametrize("path", ["{}", "{}/", "file://{}", "{}/../dee?"])
def test_check_local_when_a_folder_has_folders_then_it_is_named(path, tmp_path):
    (tmp_path / "deep" / "deeper").mkdir(parents=True)
    (tmp_path / "deep" / "_temporary").mkdir()
    with pytest.raises(InputError, match=r"expected a file or a folder of files, got a folder with .*'deeper' in it"):
        check_local(path.format(tmp_path / "deep"))


def test_check_local_when_files_are_of_table_then_accepted(tmp_path):
    for name in ("day=1", "_temporary", ".hidden"):
        (tmp_path / name).mkdir()
    check_local(str(tmp_path))
    check_local(f"{tmp_path}/d*")


@pytest.mark.parametrize("path", ["{}/part-*", "{}/file/below", "file:{}/part-?"])
def test_check_local_when_nothing_has_the_name_then_it_is_named(path, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r": there is no such file$"):
        check_local(path.format(tmp_path))


def test_check_local_when_it_is_a_pipe_then_input_error():
    with pytest.raises(InputError, match=r"^/dev/null: expected a file or a folder of files, got a pipe or a device$"):
        check_local("/dev/null")


def test_check_local_when_paths_may_be_hdfs_then_left_to_spark(monkeypatch):
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    check_local("/nowhere")
