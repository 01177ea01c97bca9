"""Files of UCI's bag-of-words form as DataFrames: all documents whole, however Spark cuts the files."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from ps2.algorithms.text.documents import read, read_vocabulary
from ps2.errors import InputError

WORDS = 30


def bag(counts):
    """A file's text."""
    lines = [f"{d + 1} {w + 1} {counts[d, w]}" for d, w in zip(*np.nonzero(counts), strict=True)]
    return "\n".join([*map(str, (*counts.shape, len(lines))), *lines, ""])


@pytest.fixture(scope="module")
def counts():
    return np.random.default_rng(0).poisson(0.7, (40, WORDS))


@pytest.fixture
def small_splits(spark):
    """Spark cuts files into parts of 700 bytes."""
    name = "spark.sql.files.maxPartitionBytes"
    before = spark.conf.get(name)
    spark.conf.set(name, "700")
    yield
    spark.conf.set(name, before)


def as_array(found):
    out = np.zeros((40, WORDS), int)
    rows = found.frame.collect()
    for row in rows:
        out[row["id"] - 1] += row["features"].toArray().astype(int)
    assert len(rows) == found.documents
    return out


def test_read_when_file_is_split_anywhere_then_keeps_documents(spark, small_splits, counts, tmp_path):
    (tmp_path / "docword.txt").write_text(bag(counts))
    result = read(spark, str(tmp_path / "docword.txt"))
    np.testing.assert_array_equal(as_array(result), counts)
    assert (result.vocabulary, result.documents, result.tokens) == (WORDS, 40, counts.sum())


def test_read_when_files_are_compressed_then_documents_separate(spark, counts, tmp_path):
    for number in (1, 2):
        with gzip.open(tmp_path / f"docword.{number}.txt.gz", "wt") as file:
            file.write(bag(counts))
    result = read(spark, str(tmp_path / "docword.*"))
    assert result.documents == 80
    np.testing.assert_array_equal(as_array(result), 2 * counts)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2\n3\n2\n1 1 1\n2 4 1\n", "line 5: word: expected a whole number from 1 to 3, got '4'"),
        ("2\n3\n2\n1 1 1\n1 2\n", "line 5: expected 'document word count', got '1 2'"),
        ("2\n3\n2\n1 1 1\n", "line 3: expected 2 lines to follow, got 1"),
        ("2\n3\n1 1 1\n", "line 3: expected the number of lines that follow, got '1 1 1'"),
        ("2\n3\n", "expected the number of lines that follow, got the end of the file"),
        ("2\n3\n0\n", "expected lines 'document word count', got none after the first three"),
        ("", "expected lines 'document word count', got none at all"),
    ],
)
def test_read_when_file_is_malformed_then_names_file_and_line(spark, tmp_path, text, message):
    (tmp_path / "bag.txt").write_text(text)
    with pytest.raises(InputError) as caught:
        read(spark, str(tmp_path / "bag.txt"))
    assert str(caught.value).removeprefix(str(tmp_path / "bag.txt") + ": ") == message


def test_read_when_one_of_two_files_is_malformed_then_names_it(spark, tmp_path):
    (tmp_path / "a.txt").write_text("1\n3\n1\n1 1 1\n")
    (tmp_path / "b.txt").write_text("1\n3\n1\n1 x 1\n")
    with pytest.raises(InputError, match=r"/b.txt: line 4: word: expected a whole number from 1 to 3, got 'x'"):
        read(spark, str(tmp_path))


def test_read_when_vocabularies_differ_then_that_is_an_error(spark, tmp_path):
    (tmp_path / "a.txt").write_text("1\n3\n1\n1 1 1\n")
    (tmp_path / "b.txt").write_text("1\n4\n1\n1 1 1\n")
    with pytest.raises(InputError, match="files of one vocabulary, got one of 3 words and one of 4"):
        read(spark, str(tmp_path))


def test_read_when_there_is_no_file_then_says_so(spark, tmp_path):
    with pytest.raises(InputError, match="there is no such file"):
        read(spark, str(tmp_path / "none"))


def test_vocabulary_when_size_differs_then_error_has_both_counts(spark, tmp_path):
    (tmp_path / "vocab").write_text("oak\nelm\nyew\n")
    assert read_vocabulary(spark, str(tmp_path / "vocab"), 3) == ["oak", "elm", "yew"]
    with pytest.raises(InputError, match=r"vocab: expected the 4 words of the documents, one per line, got 3 lin"):
        read_vocabulary(spark, str(tmp_path / "vocab"), 4)
