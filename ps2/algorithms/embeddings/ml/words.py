"""Sentences in a column of a DataFrame: checked and counted by Spark, encoded by the workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StringType

from ps2.algorithms.embeddings.corpus import InMemorySentences
from ps2.algorithms.embeddings.encoding import cut, numbered
from ps2.algorithms.embeddings.ml.edges import collected
from ps2.algorithms.estimators.loads import COST, PART, Load, loads_of, sums_of
from ps2.algorithms.estimators.tables import TableSurvey, column, cost_of, field
from ps2.data.names import Names
from ps2.errors import InputError
from ps2.ops.kernels import Int64s

SHOWN_CHARS = 200
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
        parts = [numbered(lists, self.words.value) for lists in _gathered(batches)]
        tokens = np.concatenate([np.empty(0, np.int32), *(tokens for tokens, _ in parts)])
        lengths = np.concatenate([np.empty(0, np.int64), *(lengths for _, lengths in parts)])
        return InMemorySentences(tokens, cut(lengths, self.longest))


def inspect_sentences(frame: DataFrame, name: str, min_count: int) -> SentencesSurvey:
    """Check sentences and count their words, in two Spark jobs.

    Args:
        name: of the column.
        min_count: minimum occurrences of a word in the vocabulary.

    Raises:
        InputError: the column is missing or of another type; there are no rows, or one has null; or fewer than two
            words are frequent enough.
    """
    check_sentences(frame, name)
    loads = _loads(frame, name)
    # No collation: words are compared by bytes, as workers do.
    word = F.explode(column(name).cast("array<string>")).alias("word")
    found = collected(frame.select(word).groupBy("word").agg(F.count(F.lit(1)).alias("count")))
    counts = found.column("count").combine_chunks().to_numpy()
    enough = found.filter(pa.array(counts >= min_count))
    if len(enough) < 2:
        most = f"the most frequent one comes {counts.max():,} times" if len(counts) else "all sentences are empty"
        raise InputError(
            f"column {name!r}: expected two different words at least that come {min_count} times (minCount), got "
            f"{len(enough)} of {len(counts):,}; {most}"
        )
    table = enough.sort_by([("count", "descending"), ("word", "ascending")])
    words = Names(table.column("word").combine_chunks().cast(pa.string()))
    return SentencesSurvey(len(words), loads, words, table.column("count").combine_chunks().to_numpy())


def check_sentences(frame: DataFrame, name: str) -> None:
    """Raise InputError unless the column holds sentences; starts no job."""
    kind = field(frame, name).dataType
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StringType):
        raise InputError(f"column {name!r}: expected sentences, arrays of strings, got {kind.simpleString()}")


def _loads(frame: DataFrame, name: str) -> dict[int, Load]:
    """Return the work of each partition; raise InputError if there are none, or one is or contains null."""
    sentence = column(name)
    wrong = sentence.isNull() | F.exists(sentence, lambda word: word.isNull())
    faulty = F.coalesce(wrong, F.lit(False)).cast("long")
    rows = frame.select(F.spark_partition_id().alias(PART), cost_of(frame, name).alias(COST), faulty.alias("faulty"))
    found = rows.groupBy(PART).agg(*sums_of(F.col(COST)), F.sum("faulty").alias("faulty")).collect()
    total, faults = (sum(row[what] for row in found) for what in ("rows", "faulty"))
    if not total:
        raise InputError("expected sentences, got an empty DataFrame")
    if faults:
        row = str(frame.where(wrong).select(sentence).first())[:SHOWN_CHARS]
        raise InputError(
            f"column {name!r}: expected arrays of strings, got null, or a null in one, in {faults} of {total} rows; "
            f"such a row: {row}"
        )
    return loads_of(found)


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
