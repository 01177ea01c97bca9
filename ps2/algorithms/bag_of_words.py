"""Documents in files of UCI's bag-of-words format, read by Spark; an error names the file and number of a malformed
line.

A file begins with three lines: the number of documents, of words in the vocabulary, and of lines that follow. Each
further line is "document word count", with numbers from 1. Lines come to Python as Arrow batches and become arrays at
once; consecutive lines of one document are a piece. Where Spark cuts a file inside a document, the document has
several pieces, which are joined by file and number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse as sp

from ps2.algorithms.inputs import local_name, numbered_lines, reading, shown, text_file
from ps2.algorithms.text_lines import NOT_UTF8
from ps2.array_types import Int64s
from ps2.errors import InputError
from ps2.run.spark.backend_lookup import backend_of, with_python

Array = npt.NDArray[Any]

HEAD = ("documents", "words in the vocabulary", "lines that follow")
FIELDS = ("document", "word", "count")
NUMBER = re.compile(r"\d{1,18}", re.ASCII)
# Spark's indices and counts have 32 bits.
MAX_COUNT = 2**31 - 1
# Takes the place of a document's number for lines of the head and for malformed lines.
OF_HEAD, MALFORMED = 0, -1
OF_PIECES = "file bigint, block bigint, document bigint, words array<int>, counts array<double>"
# Lines of files, "document word count", for each partition of the documents.
PARTITION_LINES = 1 << 20


@dataclass(frozen=True, eq=False)
class BagOfWords:
    """Documents in Spark's cache.

    Attributes:
        path: of the file, the folder or the glob.
        frame: DataFrame with columns id (a document's number in its file) and features (vectors of pyspark.ml).
        documents: number of documents with words.
        vocabulary: number of words.
        tokens: the sum of all counts.
    """

    path: str
    frame: Any
    documents: int
    vocabulary: int
    tokens: int


def read(spark: Any, path: str, vocabulary: int | None = None) -> BagOfWords:
    """Read a file, or all files of a folder or glob, and cache the documents; suffixes such as .gz tell the
    compression.

    Args:
        path: any URL that Spark reads. Each file has its own three lines, and documents of its own.
        vocabulary: the expected number of words; None: any.

    Raises:
        InputError: there is no such file, a line is malformed, or the files have different vocabularies.
    """
    with reading(spark, path):
        return _read(spark, path, vocabulary)


def _read(spark: Any, path: str, vocabulary: int | None) -> BagOfWords:
    from pyspark.sql import functions as F

    lines = spark.read.text(path)
    of_line = _file().alias("file"), F.input_file_block_start().alias("block"), F.col("value")
    pieces = with_python(lines).select(*of_line).mapInArrow(_parse, OF_PIECES).persist()
    try:
        words, entries, tokens = _check(spark, path, lines, pieces)
        if vocabulary not in (None, words):
            raise InputError(f"{path}: expected a vocabulary of {vocabulary:,} words, got one of {words:,}")
        # A cached DataFrame keeps its partitions: Spark's 200 would be so many tasks of every later job.
        parts = max(backend_of(spark).total_slots(), -(-entries // PARTITION_LINES))
        whole = (
            pieces.where(F.col("document") > OF_HEAD)
            .withColumnRenamed("document", "id")
            .repartition(parts, "file", "id")
            .groupBy("file", "id")
            .agg(*(F.flatten(F.collect_list(name)).alias(name) for name in ("words", "counts")))
        )
        frame = with_python(whole).select("id", "words", "counts").mapInArrow(_Vectors(words), _form()).persist()
        return BagOfWords(path, frame, frame.count(), words, tokens)
    finally:
        pieces.unpersist()


def read_vocabulary(spark: Any, path: str, words: int) -> list[str]:
    """Read a vocabulary: one word per line.

    Raises:
        InputError: there is no such file, or its number of words differs.
    """
    with reading(spark, path):
        found: list[str] = text_file(spark, path).collect()
    if len(found) != words:
        raise InputError(
            f"{path}: expected {words:,} words, one a line, as many as documents have, got {len(found):,} lines"
        )
    for number, word in enumerate(found, 1):
        if NOT_UTF8 in word:
            raise InputError(f"{path}: line {number}: expected UTF-8, got {shown(word)}")
    return found


def pieces_of(files: Int64s, blocks: Int64s, values: pa.Array) -> pa.RecordBatch:
    """Parse lines.

    Args:
        files, blocks: int64, for each line: its file, and where in the file the part begins that Spark read it with.
        values: the lines, strings.

    Returns:
        Rows as ``OF_PIECES`` describes. The numbers of a head's lines are counts. If this part of a file has a line
        that is malformed whatever the head says, the file's only row reports that.
    """
    trimmed = pc.utf8_trim_whitespace(values)
    some = pc.greater(pc.utf8_length(trimmed), 0).to_numpy(zero_copy_only=False)
    files, blocks = files[some], blocks[some]
    fields = pc.utf8_split_whitespace(trimmed.filter(pa.array(some)))
    sizes = pc.list_value_length(fields).to_numpy(zero_copy_only=False)
    is_row = sizes == len(FIELDS)
    numbers = np.zeros((len(sizes), len(FIELDS)), np.int64)
    try:
        numbers[is_row] = _numbers(fields, is_row).reshape(-1, len(FIELDS))
        numbers[sizes == 1, -1] = _numbers(fields, sizes == 1)
    except pa.ArrowInvalid:
        sizes = np.zeros_like(sizes)
    rows = numbers[is_row]
    if not ((sizes == 1) | is_row).all() or (rows < 1).any() or (rows > MAX_COUNT).any() or not len(sizes):
        which, at = np.unique(files, return_index=True)
        none = np.zeros(len(which) + 1, np.int64)
        return _as_batch(which, blocks[at], np.full(len(which), MALFORMED), none, numbers[:0])
    document = numbers[:, 0]
    begins = np.flatnonzero(np.append(True, (document[1:] != document[:-1]) | (files[1:] != files[:-1])))
    return _as_batch(files[begins], blocks[begins], document[begins], np.append(begins, len(document)), numbers)


def fault_of(line: str, number: int, documents: int = MAX_COUNT, words: int = MAX_COUNT) -> str | None:
    """Describe what is wrong with a line; None: nothing.

    Args:
        number: of the line, from 1 on.
        documents, words: their numbers, from the head.
    """
    fields = line.split()
    if number <= len(HEAD):
        if len(fields) != 1 or not NUMBER.fullmatch(fields[0]):
            return f"expected the number of {HEAD[number - 1]}, got {shown(line.strip())}"
        return None
    if not fields:
        return None
    if len(fields) != len(FIELDS):
        return f"expected 'document word count', got {shown(line.strip())}"
    for name, field, most in zip(FIELDS, fields, (documents, words, MAX_COUNT), strict=True):
        if not NUMBER.fullmatch(field) or not 1 <= int(field) <= most:
            return f"{name}: expected a whole number from 1 to {most:,}, got {shown(field)}"
    return None


def _numbers(lists: pa.Array, chosen: Array) -> Int64s:
    found: Int64s = pc.list_flatten(lists.filter(pa.array(chosen))).cast(pa.int64()).to_numpy(zero_copy_only=False)
    return found


def _as_batch(files: Int64s, blocks: Int64s, documents: Int64s, offsets: Int64s, numbers: Int64s) -> pa.RecordBatch:
    """Return pieces; each holds the numbers from its offset to the next offset."""
    ends = pa.array(offsets, pa.int32())
    words = pa.ListArray.from_arrays(ends, pa.array(numbers[:, 1], pa.int32()))
    counts = pa.ListArray.from_arrays(ends, pa.array(numbers[:, 2], pa.float64()))
    columns = [pa.array(files), pa.array(blocks), pa.array(documents, pa.int64()), words, counts]
    return pa.record_batch(columns, names=["file", "block", "document", "words", "counts"])


def _parse(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        files, blocks = (batch.column(at).to_numpy(zero_copy_only=False) for at in (0, 1))
        yield pieces_of(files, blocks, batch.column(2))


@dataclass(frozen=True)
class _Vectors:
    """Makes vectors of documents, with ascending unique words."""

    words: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            words, counts = batch.column(1), batch.column(2)
            begins = np.append(0, np.cumsum(pc.list_value_length(words).to_numpy(zero_copy_only=False)))
            columns = words.flatten().to_numpy(zero_copy_only=False) - 1
            values = counts.flatten().to_numpy(zero_copy_only=False).copy()
            x = sp.csr_array((values, columns, begins), shape=(batch.num_rows, self.words))
            x.sum_duplicates()
            ends, n = pa.array(x.indptr, pa.int32()), batch.num_rows
            vectors = pa.StructArray.from_arrays(
                [
                    pa.array(np.zeros(n, np.int8)),
                    pa.array(np.full(n, self.words, np.int32)),
                    pa.ListArray.from_arrays(ends, pa.array(x.indices, pa.int32())),
                    pa.ListArray.from_arrays(ends, pa.array(x.data)),
                ],
                names=["type", "size", "indices", "values"],
            )
            yield pa.record_batch([batch.column(0), vectors], names=["id", "features"])


def _form() -> Any:
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql.types import LongType, StructField, StructType

    return StructType([StructField("id", LongType()), StructField("features", VectorUDT())])


def _file() -> Any:
    """Return a column with each file's number, which is shorter than its name on every line."""
    from pyspark.sql import functions as F

    return F.xxhash64(F.input_file_name())


def _check(spark: Any, path: str, lines: Any, pieces: Any) -> tuple[int, int, int]:
    """Return the numbers of words, of lines after the heads and of tokens, or raise InputError for what is wrong."""
    from pyspark.sql import functions as F

    document, words = F.col("document"), F.col("words")
    tokens = F.aggregate("counts", F.lit(0.0), lambda before, count: before + count)
    found = (
        pieces.groupBy("file")
        .agg(
            F.min(document).alias("least"),
            F.max(document).alias("most"),
            F.max(F.array_max(words)).alias("word"),
            F.sum(F.when(document > OF_HEAD, F.size(words)).otherwise(0)).alias("lines"),
            F.sum(F.when(document > OF_HEAD, tokens).otherwise(0.0)).alias("tokens"),
            F.sort_array(F.collect_list(F.when(document == OF_HEAD, F.struct("block", "counts")))).alias("head"),
        )
        .collect()
    )
    if not found:
        raise InputError(f"{path}: expected lines 'document word count', got none at all")
    heads = {row["file"]: [int(number) for part in row["head"] for number in part["counts"]] for row in found}
    wrong = [row for row in found if not _is_as_said(row, heads[row["file"]])]
    if wrong:
        # The numbers of a part with a malformed line are unknown, so the error must name that line.
        malformed = [row for row in wrong if row["least"] == MALFORMED]
        faults = (
            _fault_in(spark, lines, row["file"], None if malformed else row["lines"]) for row in malformed or wrong
        )
        raise InputError(next(filter(None, faults), f"{path}: expected lines 'document word count'"))
    vocabularies = {head[1] for head in heads.values()}
    if len(vocabularies) > 1:
        least, *_, most = sorted(vocabularies)
        raise InputError(f"{path}: expected files of one vocabulary, got one of {least:,} words and one of {most:,}")
    if not any(row["lines"] for row in found):
        raise InputError(f"{path}: expected lines 'document word count', got none after the first three")
    lines_of_documents, of_all = (sum(row[name] for row in found) for name in ("lines", "tokens"))
    return int(vocabularies.pop()), lines_of_documents, int(of_all)


def _is_as_said(row: Any, head: list[int]) -> bool:
    """Return True if the lines of a file match its head."""
    if row["least"] == MALFORMED or len(head) != len(HEAD):
        return False
    return row["most"] <= head[0] and (row["word"] or 0) <= head[1] and row["lines"] == head[2]


def _fault_in(spark: Any, lines: Any, number: int, count: int | None) -> str | None:
    """Find what is wrong with a file.

    Args:
        count: number of its lines; None: unknown.
    """
    from pyspark.sql import functions as F

    url = lines.where(_file() == number).select(F.input_file_name()).first()[0]
    file = local_name(unquote(url))
    # Hadoop returns lines in the order of the text.
    numbered = numbered_lines(spark, url)
    first = [line for line, _ in numbered.take(len(HEAD))]
    limits = (MAX_COUNT, MAX_COUNT)
    if len(first) == len(HEAD) and not any(fault_of(line, 1) for line in first):
        limits = (int(first[0]), int(first[1]))
    faulty = numbered.filter(lambda pair: fault_of(pair[0], pair[1] + 1, *limits) is not None).take(1)
    if faulty:
        line, at = faulty[0]
        return f"{file}: line {at + 1}: {fault_of(line, at + 1, *limits)}"
    if len(first) < len(HEAD):
        return f"{file}: expected the number of {HEAD[len(first)]}, got the end of the file"
    return None if count is None else f"{file}: line 3: expected {int(first[2]):,} lines to follow, got {count:,}"
