"""Sentences in a column of a DataFrame: checked and counted by Spark, encoded by the workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StringType

from ps2.algorithms.embeddings.corpus import InMemorySentences
from ps2.algorithms.embeddings.encoding import cut, numbered
from ps2.algorithms.embeddings.ml.edges import collected
from ps2.algorithms.estimators.loads import COST, PART, ROWS, SQUARES, Load, loads_of
from ps2.algorithms.estimators.tables import TableSurvey, column, field
from ps2.data.names import Names
from ps2.errors import InputError
from ps2.ops.kernels import Int64s
from ps2.run.spark.backend_lookup import with_python

SHOWN_CHARS = 200
# Columns of a partition's survey, beside its work: rows that are no sentences, and its words as an Arrow stream.
OF_SURVEY = "faulty long, words binary"
# The driver adds up the words of so many partitions; those of more could take too much of its memory.
MAX_MERGED = 8
# Counts of a partition's batches that are kept before those of equal words are added up.
MAX_COUNTED = 1 << 22
# Words encoded at once: each call hashes the vocabulary.
SOME_WORDS = 1 << 20


@dataclass(frozen=True, eq=False)
class SentencesSurvey(TableSurvey):
    """Checked sentences; ``dim`` is the size of the vocabulary.

    Attributes:
        words: the vocabulary, the most frequent first; words of equal frequency in byte order.
        counts: int64, shape (dim,): occurrences of each word.
    """

    words: Names
    counts: Int64s


@dataclass(frozen=True, eq=False)
class ReadSentences:
    """Makes a worker's sentences from its rows.

    Attributes:
        words: the vocabulary, broadcast.
        longest: maximum words of a sentence; longer ones are split.
    """

    words: Any
    longest: int

    def __call__(self, worker: Any, batches: Iterable[pa.RecordBatch]) -> InMemorySentences:
        return encoded(batches, self.words.value, self.longest)


def encoded(batches: Iterable[pa.RecordBatch], words: Names, longest: int) -> InMemorySentences:
    """Make sentences of rows; see ``ReadSentences``."""
    parts = [numbered(lists, words) for lists in _gathered(batches)]
    tokens = np.concatenate([np.empty(0, np.int32), *(tokens for tokens, _ in parts)])
    lengths = np.concatenate([np.empty(0, np.int64), *(lengths for _, lengths in parts)])
    return InMemorySentences(tokens, cut(lengths, longest))


def inspect_sentences(frame: DataFrame, name: str, min_count: int) -> SentencesSurvey:
    """Check sentences and count their words, in one Spark job; in two if there are many partitions.

    Args:
        name: of the column.
        min_count: minimum occurrences of a word in the vocabulary.

    Raises:
        InputError: the column is missing or of another type; there are no rows, or one has null; or fewer than two
            words are frequent enough.
    """
    check_sentences(frame, name)
    loads, found = _surveyed(frame, name)
    words, frequencies = vocabulary_of(found, name, min_count)
    return SentencesSurvey(len(words), loads, words, frequencies)


def vocabulary_of(counted: pa.Table, name: str, min_count: int) -> tuple[Names, Int64s]:
    """Return the words that are frequent enough and their counts, in order; raises as ``inspect_sentences``."""
    counts = counted.column("count").combine_chunks().to_numpy()
    enough = counted.filter(pa.array(counts >= min_count))
    if len(enough) < 2:
        most = f"the most frequent one comes {counts.max():,} times" if len(counts) else "all sentences are empty"
        raise InputError(
            f"column {name!r}: expected two different words at least that come {min_count} times (minCount), got "
            f"{len(enough)} of {len(counts):,}; {most}"
        )
    table = enough.sort_by([("count", "descending"), ("word", "ascending")])
    words = Names(table.column("word").combine_chunks().cast(pa.string()))
    return words, table.column("count").combine_chunks().to_numpy()


def check_sentences(frame: DataFrame, name: str) -> None:
    """Raise InputError unless the column holds sentences; starts no job."""
    kind = field(frame, name).dataType
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StringType):
        raise InputError(f"column {name!r}: expected sentences, arrays of strings, got {kind.simpleString()}")


def _surveyed(frame: DataFrame, name: str) -> tuple[dict[int, Load], pa.Table]:
    """Return the work of each partition, and each word with its count; raise InputError for what is wrong."""
    sentences = sentences_of(frame, name)
    surveyed = with_python(sentences).mapInArrow(
        survey, f"{PART} int, {ROWS} long, {COST} double, {SQUARES} double, {OF_SURVEY}"
    )
    rows = surveyed.collect()
    _check(frame, name, rows)
    if all(row["words"] is not None for row in rows):
        return loads_of(rows), _merged(pa.concat_tables(unpacked(bytes(row["words"])) for row in rows))
    # Spark adds up the counts of so many partitions.
    word = F.explode("sentence").alias("word")
    return loads_of(rows), collected(sentences.select(word).groupBy("word").agg(F.count(F.lit(1)).alias("count")))


def sentences_of(frame: DataFrame, name: str) -> DataFrame:
    """Return the sentences without collation: words are compared by bytes, as workers do."""
    return frame.select(column(name).cast("array<string>").alias("sentence"))


def survey(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield a partition's survey: one row if there are sentences; with its words if there may be few partitions."""
    task = TaskContext.get()
    part = 0 if task is None else task.partitionId()
    costs, faulty, counted = [np.empty(0)], 0, [_counted(pa.array([], pa.string()))]
    for batch in batches:
        lists = batch.column(0)
        words = pc.list_flatten(lists)
        lacking = pc.list_parent_indices(lists).filter(words.is_null())
        faulty += lists.null_count + len(lacking.unique())
        costs.append(1.0 + pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False))
        if part < MAX_MERGED:
            counted.append(_counted(words))
            if sum(map(len, counted)) > MAX_COUNTED:
                counted = [_merged(pa.concat_tables(counted))]
    cost = np.concatenate(costs)
    if not len(cost):
        return
    row = {
        PART: part,
        ROWS: len(cost),
        COST: cost.sum(),
        SQUARES: cost @ cost,
        "faulty": faulty,
        "words": _packed(_merged(pa.concat_tables(counted))) if part < MAX_MERGED else None,
    }
    types = [pa.int32(), pa.int64(), pa.float64(), pa.float64(), pa.int64(), pa.binary()]
    arrays = [pa.array([value], kind) for value, kind in zip(row.values(), types, strict=True)]
    yield pa.RecordBatch.from_arrays(arrays, names=list(row))


def _counted(words: pa.Array) -> pa.Table:
    """Count words; nulls are left out."""
    word, count = words.drop_null().cast(pa.string()).value_counts().flatten()
    return pa.table({"word": word, "count": count})


def _merged(counted: pa.Table) -> pa.Table:
    """Add up counts of equal words."""
    summed = counted.group_by("word").aggregate([("count", "sum")])
    return pa.table({"word": summed.column("word"), "count": summed.column("count_sum")})


def _packed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def unpacked(packed: bytes) -> pa.Table:
    """Return the words of a survey, and their counts."""
    return pa.ipc.open_stream(packed).read_all()


def _check(frame: DataFrame, name: str, rows: Sequence[Any]) -> None:
    """Raise InputError if there are no sentences, or one is or contains null."""
    total, faults = (sum(row[what] for row in rows) for what in (ROWS, "faulty"))
    if not total:
        raise InputError("expected sentences, got an empty DataFrame")
    if faults:
        sentence = column(name)
        wrong = sentence.isNull() | F.exists(sentence, lambda word: word.isNull())
        row = str(frame.where(wrong).select(sentence).first())[:SHOWN_CHARS]
        raise InputError(
            f"column {name!r}: expected arrays of strings, got null, or a null in one, in {faults} of {total} rows; "
            f"such a row: {row}"
        )


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Array]:
    held: list[pa.Array] = []
    count = 0
    for batch in batches:
        held.append(batch.column(0))
        count += len(held[-1].values)
        if count >= SOME_WORDS:
            yield pa.concat_arrays(held)
            held, count = [], 0
    if held:
        yield pa.concat_arrays(held)
