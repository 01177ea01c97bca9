"""Read documents from files of UCI's bag-of-words format; an error names the file and number of a malformed line.

A file begins with a head of three lines: the numbers of documents, of words in the vocabulary, and of lines that
follow. Each further line is "document word count"; documents and words are numbered from 1. Python reads lines in Arrow
batches and converts them to arrays. Consecutive lines of one document are a piece. If Spark splits a file inside a
document, the document has several pieces, which are joined by the file and the document's number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse as sp
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from ps2.algorithms.text.lines import NOT_UTF8, find_fault_in, lines_of, numbered_lines, shown
from ps2.algorithms.text.paths import local_name, reading
from ps2.array_types import Int64s
from ps2.errors import InputError
from ps2.run.spark.backend_lookup import backend_of, with_python

# The descriptions of the numbers in the head's lines, and of the fields of further lines, for messages.
HEAD = ("documents", "words in the vocabulary", "lines that follow")
FIELDS = ("document", "word", "count")
NUMBER = re.compile(r"\d{1,18}", re.ASCII)
# Spark's indices and counts have 32 bits.
MAX_COUNT = 2**31 - 1
# The values of the column ``document`` in a piece of the head's lines, and in the only row for malformed lines.
HEAD_LINES, MALFORMED = 0, -1
# The schema of pieces. ``file`` is a hash of the file's name, ``block`` the offset of Spark's split in the file.
PIECES = "file bigint, block bigint, document bigint, words array<int>, counts array<double>"
# The number of lines "document word count" for each partition of the documents.
PARTITION_LINES = 1 << 20


@dataclass(frozen=True, eq=False)
class BagOfWords:
    """Documents in Spark's cache: columns id (the document's number in its file) and features (pyspark.ml's vectors).
    ``tokens`` is the sum of all counts, ``vocabulary`` the number of words."""

    path: str
    frame: Any
    documents: int
    vocabulary: int
    tokens: int


def read(spark: Any, path: str, vocabulary: int | None = None) -> BagOfWords:
    """Read a file, or all files of a folder or glob, and cache the documents. Each file has a head.
    Raise InputError for a malformed line, or if vocabularies differ in size from each other or from ``vocabulary``."""
    with reading(spark, path):
        lines = with_python(lines_of(spark, path))
        # A hash of the file's name takes less memory than the name in each row.
        located = lines.select(F.xxhash64("file").alias("file"), F.input_file_block_start().alias("block"), "line")
        pieces = located.mapInArrow(_parse, PIECES).persist()
        try:
            words, entries, tokens = _check(spark, path, lines, pieces)
            if vocabulary not in (None, words):
                raise InputError(f"{path}: expected a vocabulary of {vocabulary:,} words, got one of {words:,}")
            # A cached DataFrame keeps its partitions: with Spark's default, each later job would have 200 tasks.
            parts = max(backend_of(spark).total_slots(), -(-entries // PARTITION_LINES))
            joined = (
                pieces.where(F.col("document") > HEAD_LINES)
                .repartition(parts, "file", "document")
                .groupBy("file", "document")
                .agg(*(F.flatten(F.collect_list(name)).alias(name) for name in ("words", "counts")))
            )
            schema = StructType([StructField("id", LongType()), StructField("features", VectorUDT())])
            rows = with_python(joined).select("document", "words", "counts")
            frame = rows.mapInArrow(partial(_vectors, words), schema).persist()
            return BagOfWords(path, frame, frame.count(), words, tokens)
        finally:
            pieces.unpersist()


def read_vocabulary(spark: Any, path: str, size: int) -> list[str]:
    """Read a vocabulary, one word per line; raise InputError unless there are ``size`` words."""
    with reading(spark, path):
        # Spark would take a comma for a separator of paths.
        words: list[str] = spark.sparkContext.textFile(path if "{" in path else path.replace(",", r"{\,}")).collect()
    if len(words) != size:
        raise InputError(
            f"{path}: expected the {size:,} words of the documents, one per line, got {len(words):,} lines"
        )
    for number, word in enumerate(words, 1):
        if NOT_UTF8 in word:
            raise InputError(f"{path}: line {number}: expected UTF-8, got {shown(word)}")
    return words


def pieces_of(files: Int64s, blocks: Int64s, values: pa.Array) -> pa.RecordBatch:
    """Parse lines to the rows of ``PIECES``. The numbers in the lines of a head become counts.

    If a line is malformed whatever the head is, the batch has a row with the document ``MALFORMED`` for each file.

    Args:
        files, blocks: for each line, the hash of its file, and the offset in the file of the split that Spark read,
            int64.
        values: the lines, strings.
    """
    trimmed = pc.utf8_trim_whitespace(values)
    has_fields = pc.greater(pc.utf8_length(trimmed), 0)
    files, blocks = (numbers[has_fields.to_numpy(zero_copy_only=False)] for numbers in (files, blocks))
    fields = pc.utf8_split_whitespace(trimmed.filter(has_fields))
    sizes = pc.list_value_length(fields).to_numpy(zero_copy_only=False)
    numbers = np.zeros((len(sizes), len(FIELDS)), np.int64)
    try:
        if not np.isin(sizes, (1, len(FIELDS))).all():
            raise ValueError("a line has another number of fields")
        # The only number of a head's line is stored in the last column, the count.
        has_number = np.arange(len(FIELDS)) >= len(FIELDS) - sizes[:, None]
        numbers[has_number] = pc.list_flatten(fields).cast(pa.int64()).to_numpy(zero_copy_only=False)
        rows = numbers[sizes > 1]
        if (rows < 1).any() or (rows > MAX_COUNT).any():
            raise ValueError("a number is out of range")
    except ValueError:
        distinct, first_lines = np.unique(files, return_index=True)
        offsets = np.zeros(len(distinct) + 1, np.int64)
        return _as_batch(distinct, blocks[first_lines], np.full(len(distinct), MALFORMED), offsets, numbers[:0])
    document = numbers[:, 0]
    is_begin = (document[1:] != document[:-1]) | (files[1:] != files[:-1])
    begins = np.flatnonzero(np.append(len(document) > 0, is_begin))
    return _as_batch(files[begins], blocks[begins], document[begins], np.append(begins, len(document)), numbers)


def fault_of(line: str, number: int, documents: int = MAX_COUNT, words: int = MAX_COUNT) -> str | None:
    """Describe the fault of a line; None: it has none. ``number`` is the line's number, from 1; ``documents`` and
    ``words`` are the numbers in the head."""
    fields = line.split()
    if number <= len(HEAD):
        if len(fields) != 1 or not NUMBER.fullmatch(fields[0]):
            return f"expected the number of {HEAD[number - 1]}, got {shown(line.strip())}"
        return None
    if not fields:
        return None
    if len(fields) != len(FIELDS):
        return f"expected 'document word count', got {shown(line.strip())}"
    for name, field, limit in zip(FIELDS, fields, (documents, words, MAX_COUNT), strict=True):
        if not NUMBER.fullmatch(field) or not 1 <= int(field) <= limit:
            return f"{name}: expected a whole number from 1 to {limit:,}, got {shown(field)}"
    return None


def _as_batch(files: Int64s, blocks: Int64s, documents: Int64s, offsets: Int64s, numbers: Int64s) -> pa.RecordBatch:
    """Return pieces as a batch; piece i has the words and counts in the rows offsets[i] to offsets[i + 1]."""
    bounds = pa.array(offsets, pa.int32())
    words = pa.ListArray.from_arrays(bounds, pa.array(numbers[:, 1], pa.int32()))
    counts = pa.ListArray.from_arrays(bounds, pa.array(numbers[:, 2], pa.float64()))
    columns = [pa.array(files), pa.array(blocks), pa.array(documents, pa.int64()), words, counts]
    return pa.record_batch(columns, names=["file", "block", "document", "words", "counts"])


def _parse(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        files, blocks = (batch.column(index).to_numpy(zero_copy_only=False) for index in (0, 1))
        yield pieces_of(files, blocks, batch.column(2))


def _vectors(size: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return documents as sparse vectors; each word occurs once, in ascending order."""
    for batch in batches:
        documents, words, counts = batch.columns
        num_words = pc.list_value_length(words).to_numpy(zero_copy_only=False)
        columns = words.flatten().to_numpy(zero_copy_only=False) - 1
        values = counts.flatten().to_numpy(zero_copy_only=False).copy()
        x = sp.csr_array((values, columns, np.append(0, np.cumsum(num_words))), shape=(len(batch), size))
        x.sum_duplicates()
        offsets = pa.array(x.indptr, pa.int32())
        lists = (
            pa.ListArray.from_arrays(offsets, pa.array(x.indices, pa.int32())),
            pa.ListArray.from_arrays(offsets, x.data),
        )
        types, sizes = pa.array(np.zeros(len(batch), np.int8)), pa.array(np.full(len(batch), size, np.int32))
        vectors = pa.StructArray.from_arrays([types, sizes, *lists], names=["type", "size", "indices", "values"])
        yield pa.record_batch([documents, vectors], names=["id", "features"])


def _check(spark: Any, path: str, lines: Any, pieces: Any) -> tuple[int, int, int]:
    """Return the numbers of words, lines after the heads, and tokens; raise InputError for a malformed file."""
    document, is_row = F.col("document"), F.col("document") > HEAD_LINES
    tokens = F.aggregate("counts", F.lit(0.0), lambda total, count: total + count)
    files = (
        pieces.groupBy("file")
        .agg(
            F.min(document).alias("min_document"),
            F.max(document).alias("max_document"),
            F.coalesce(F.max(F.array_max("words")), F.lit(0)).alias("max_word"),
            F.sum(F.when(is_row, F.size("words")).otherwise(0)).alias("lines"),
            F.sum(F.when(is_row, tokens).otherwise(0.0)).alias("tokens"),
            F.flatten(
                F.transform(
                    F.sort_array(F.collect_list(F.when(document == HEAD_LINES, F.struct("block", "counts")))),
                    lambda piece: piece["counts"],
                )
            ).alias("head"),
        )
        .collect()
    )
    if not files:
        raise InputError(f"{path}: expected lines 'document word count', got none at all")
    malformed = [row for row in files if row["min_document"] == MALFORMED]
    # The numbers of a split with a malformed line are unknown, so the error must name that line.
    wrong = malformed or [row for row in files if not _matches_head(row)]
    if wrong:
        faults = (_fault_in(spark, lines, row["file"], None if malformed else row["lines"]) for row in wrong)
        raise InputError(next(filter(None, faults), f"{path}: expected lines 'document word count'"))
    vocabularies = sorted({int(row["head"][1]) for row in files})
    if len(vocabularies) > 1:
        raise InputError(
            f"{path}: expected files of one vocabulary, got one of {vocabularies[0]:,} words and one of "
            f"{vocabularies[-1]:,}"
        )
    num_lines, num_tokens = (sum(row[name] for row in files) for name in ("lines", "tokens"))
    if not num_lines:
        raise InputError(f"{path}: expected lines 'document word count', got none after the first three")
    return vocabularies[0], num_lines, int(num_tokens)


def _matches_head(row: Any) -> bool:
    if len(row["head"]) != len(HEAD):
        return False
    documents, words, num_lines = row["head"]
    return bool(row["max_document"] <= documents and row["max_word"] <= words and row["lines"] == num_lines)


def _fault_in(spark: Any, lines: Any, file_hash: int, num_lines: int | None) -> str | None:
    """Describe the fault of the file with this hash; ``num_lines`` None: its number of lines is unknown."""
    url = lines.where(F.xxhash64("file") == file_hash).first()["file"]
    head = [line for line, _ in numbered_lines(spark, url).take(len(HEAD))]
    is_head = len(head) == len(HEAD) and not any(fault_of(line, 1) for line in head)
    documents, words = map(int, head[:2]) if is_head else (MAX_COUNT, MAX_COUNT)
    fault = find_fault_in(spark, url, lambda line, number: fault_of(line, number, documents, words))
    if fault is not None:
        return fault
    if not is_head:
        return f"{local_name(url)}: expected the number of {HEAD[len(head)]}, got the end of the file"
    if num_lines is None:
        return None
    return f"{local_name(url)}: line 3: expected {int(head[2]):,} lines to follow, got {num_lines:,}"
