"""Files that ``ps2 train`` cannot read are named with what is wrong with them, whatever form they have."""

from __future__ import annotations

import gzip

import pytest

from ps2.algorithms import bag_of_words, edge_lists, labelled
from ps2.errors import InputError

READERS = {
    "rows": lambda spark, path: labelled.read(spark, path, 3),
    "features": labelled.count_features,
    "edges": edge_lists.read,
    "classes": edge_lists.read_classes,
    "documents": bag_of_words.read,
    "vocabulary": lambda spark, path: bag_of_words.read_vocabulary(spark, path, 3),
}
PACKED = gzip.compress(b"".join(b"%d 1:%d 3:1\n" % (i % 2, i) for i in range(3000)))
FAULTS = {
    "cut off": (PACKED[: len(PACKED) // 2], "EOFException: Unexpected end of input stream"),
    "another form": (b"1 1:2 3:1\n" * 100, "IOException: not a gzip file"),
    "damaged": (PACKED[:-8] + bytes(8), "IOException: gzip stream CRC failure"),
}


@pytest.mark.parametrize("reader", READERS)
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
