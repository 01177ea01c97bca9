"""Files that ``ps2 train`` cannot read are named with what is wrong with them, whatever form they have."""

from __future__ import annotations

import gzip

import pytest

from ps2.algorithms import bag_of_words, edge_lists, labelled, rating_lists
from ps2.errors import InputError

READERS = {
    "rows": lambda spark, path: labelled.read(spark, path, 3),
    "features": labelled.count_features,
    "edges": edge_lists.read,
    "classes": edge_lists.read_classes,
    "documents": bag_of_words.read,
    "ratings": lambda spark, path: rating_lists.read(spark, path, None),
    "table": lambda spark, path: rating_lists.read(spark, path, rating_lists.CsvColumns()),
    "vocabulary": lambda spark, path: bag_of_words.read_vocabulary(spark, path, 3),
}
PACKED = gzip.compress(b"".join(b"%d 1:%d 3:1\n" % (i % 2, i) for i in range(3000)))
FAULTS = {
    "cut off": (PACKED[: len(PACKED) // 2], "EOFException: Unexpected end of input stream"),
    "another form": (b"1 1:2 3:1\n" * 100, "IOException: not a gzip file"),
    "damaged": (PACKED[:-8] + bytes(8), "IOException: gzip stream CRC failure"),
}


WRONG = [
    ("rows", "# nothing\n\n", "expected .*, got no row|no row"),
    ("rows", "+1 1:1\nwhat\n+1 3:oops\n", "^{path}: line 2: label: "),
    ("rows", "+1 1:1\n-1 4:1\n", "^{path}: line 2: index: expected an integer"),
    ("edges", "1 2\n2 3\n\n3 4 5\n", "^{path}: line 4: expected 2 fields, as the lines before have, got '3 4 5'"),
    ("edges", "# nothing\n", "^{path}: expected lines 'source target' or 'source target weight', got none"),
    ("ratings", "1 2 3\n2 3 1\n\n3 4\n", "^{path}: line 4: expected 3 fields, as the lines before have, got '3 4'"),
    ("ratings", "# nothing\n", "^{path}: expected lines 'user item' or 'user item rating', got none"),
    ("table", "user,item,rating\n1,2,3\n1,3,\n", "^{path}: line 3: rating: expected a number, got ''"),
    (
        "table",
        "user,movie,rating\n1,2,3\n",
        "^{path}: line 1: expected a column 'item' of items, got 'user', 'movie', 'rating'",
    ),
]


@pytest.mark.parametrize(("reader", "text", "message"), WRONG)
def test_a_file_when_it_is_wrong_then_says_where(spark, tmp_path, reader, text, message):
    (tmp_path / "file").write_text(text)
    with pytest.raises(InputError, match=message.format(path=tmp_path / "file")):
        READERS[reader](spark, str(tmp_path / "file"))


@pytest.mark.parametrize(
    "line", ["1 2:1", "1", " -1.5e-3  1:.5 9:-2. ", "x 1:1", "1 2", "1 2:", "1 2:1\t3:1", "1 5:1 5:2"]
)
def test_read_when_spark_refuses_line_then_it_is_malformed(spark, tmp_path, line):
    path = str(tmp_path / "rows")
    (tmp_path / "rows").write_text(line)
    if labelled.fault_of(line) is None:
        assert len(labelled.read(spark, path, 12)) == 1
    else:
        with pytest.raises(InputError, match=rf"^{path}: line 1: "):
            labelled.read(spark, path, 12)


@pytest.mark.parametrize("reader", [reader for reader in READERS if reader != "table"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_compressed_file_when_broken_then_is_named(spark, tmp_path, reader, fault):
    content, told = FAULTS[fault]
    (tmp_path / "rows of 1.gz").write_bytes(content)
    with pytest.raises(InputError) as raised:
        READERS[reader](spark, str(tmp_path / "rows of 1.gz"))
    assert str(raised.value) == f"{tmp_path}/rows of 1.gz: reading failed: {told}"


@pytest.mark.parametrize("reader", READERS)
def test_a_folder_when_it_has_folders_then_it_is_not_read(spark, tmp_path, reader):
    (tmp_path / "deep" / "deeper").mkdir(parents=True)
    (tmp_path / "rows.txt").write_text("1 1:1\n")
    with pytest.raises(InputError, match=r"expected .* a folder of files, got a folder with the folder 'deep' in it"):
        READERS[reader](spark, str(tmp_path))


def test_a_folder_when_of_a_partitioned_table_then_is_read(spark, tmp_path):
    for day in ("day=1", "day=2"):
        (tmp_path / day).mkdir()
        (tmp_path / day / "rows.libsvm").write_text("1 1:1\n0 2:1\n")
    (tmp_path / "_temporary" / "0").mkdir(parents=True)
    assert len(labelled.read(spark, str(tmp_path), 3)) == 4


def test_filesystem_root_when_read_then_error_at_once(spark):
    with pytest.raises(InputError, match=r"^/: expected a file or a folder of files, got a folder with the folder"):
        labelled.count_features(spark, "/")
