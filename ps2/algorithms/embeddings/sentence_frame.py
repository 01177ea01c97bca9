"""The sentences of a DataFrame: check them, count and encode their words, or train in the same Spark job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StringType

from ps2.algorithms.embeddings.plan import EmbeddingPlan, FittedEmbeddings
from ps2.algorithms.embeddings.program import Corpus, OnlyWorker, train
from ps2.algorithms.embeddings.sentences import InMemorySentences, encode_words, split_long
from ps2.algorithms.embeddings.settings import Word2VecSettings
from ps2.algorithms.embeddings.work import check_memory
from ps2.algorithms.frame.arrow_batches import blocks_of, collect_arrow, from_bytes, spark_schema, to_bytes
from ps2.algorithms.frame.tables import SHOWN_CHARS, TableSurvey, column, field
from ps2.algorithms.training.only_worker import OnStep, Outcome, train_in_process
from ps2.algorithms.training.table import COST, PART, ROWS, SQUARES, loads_of
from ps2.data.ids import Names
from ps2.errors import InputError
from ps2.ops.kernels import Int64s
from ps2.run.message import STOP, Message, Stop
from ps2.run.spark.backend_lookup import with_python
from ps2.server.memory import available_bytes

# A partition's survey: its number and cost of rows (see ``loads_of``), the number of rows that are null or have a null,
# and its words with their counts, as an Arrow stream; null: Spark counts them.
SURVEY = pa.schema(
    [
        (PART, pa.int32()),
        (ROWS, pa.int64()),
        (COST, pa.float64()),
        (SQUARES, pa.float64()),
        ("faulty", pa.int64()),
        ("words", pa.binary()),
    ]
)
# The maximum number of partitions whose counts the driver merges; those of more could exceed its memory.
MAX_MERGED = 8
# A task merges the counts of its batches when they have more rows than this.
MAX_COUNTED = 1 << 22
# The approximate number of words that are looked up together, because each call hashes the vocabulary.
BLOCK_WORDS = 1 << 20
# The maximum bytes of both tables that a worker trains and returns in one job.
MAX_RESULT_BYTES = 32 << 20


@dataclass(frozen=True, eq=False)
class SentencesSurvey(TableSurvey):
    """Checked sentences, with ``dim`` words: the most frequent first; words of equal frequency are in byte order."""

    words: Names
    counts: Int64s


def encode(batches: Iterable[pa.RecordBatch], words: Names, longest: int) -> InMemorySentences:
    """Encode the words of sentences as indices, and split sentences of more than ``longest`` words."""
    blocks = blocks_of((batch.column(0) for batch in batches), lambda lists: len(lists.values), BLOCK_WORDS)
    encoded = [encode_words(pa.concat_arrays(block), words) for block in blocks]
    tokens = np.concatenate([np.empty(0, np.int32), *(tokens for tokens, _ in encoded)])
    lengths = np.concatenate([np.empty(0, np.int64), *(lengths for _, lengths in encoded)])
    return InMemorySentences(tokens, split_long(lengths, longest))


def survey_sentences(frame: DataFrame, settings: Word2VecSettings) -> SentencesSurvey:
    """Count words in one Spark job, or in two for many partitions. The column has passed ``check_sentences``.

    Raise InputError if there are no rows, a row is or has a null, or there are fewer than two frequent words.
    """
    name = str(settings.inputCol)
    sentences = sentences_of(frame, name)
    rows = with_python(sentences).mapInArrow(survey, spark_schema(SURVEY)).collect()
    total, faults = (sum(row[key] for row in rows) for key in (ROWS, "faulty"))
    if not total:
        raise InputError("expected sentences, got an empty DataFrame")
    if faults:
        sentence = column(name)
        has_null = sentence.isNull() | F.exists(sentence, lambda word: word.isNull())
        row = str(frame.where(has_null).select(sentence).first())[:SHOWN_CHARS]
        raise InputError(
            f"column {name!r}: expected arrays of strings, got null, or a null in one, in {faults} of {total} rows; "
            f"such a row: {row}"
        )
    if all(row["words"] is not None for row in rows):
        word_counts = _merge(pa.concat_tables(from_bytes(row["words"]) for row in rows))
    else:  # there are too many partitions for the driver, so Spark counts
        word = F.explode("sentence").alias("word")
        word_counts = collect_arrow(sentences.select(word).groupBy("word").agg(F.count(F.lit(1)).alias("count")))
    words, frequencies = vocabulary_of(word_counts, settings)
    return SentencesSurvey(len(words), loads_of(rows), words, frequencies)


def vocabulary_of(word_counts: pa.Table, settings: Word2VecSettings) -> tuple[Names, Int64s]:
    """Return ``words`` and ``counts`` of a survey; raise InputError for fewer than two frequent words."""
    name, min_count = settings.inputCol, settings.minCount
    counts = word_counts.column("count").combine_chunks().to_numpy()
    frequent = word_counts.filter(pa.array(counts >= min_count))
    if len(frequent) < 2:
        reason = f"the most frequent word occurs {counts.max():,} times" if len(counts) else "all sentences are empty"
        raise InputError(
            f"column {name!r}: expected at least two words that occur {min_count} times (minCount), got "
            f"{len(frequent)} of {len(counts):,}; {reason}"
        )
    table = frequent.sort_by([("count", "descending"), ("word", "ascending")])
    words = Names(table.column("word").combine_chunks().cast(pa.string()))
    return words, table.column("count").combine_chunks().to_numpy()


def check_sentences(frame: DataFrame, name: str) -> None:
    """Raise InputError unless a column has arrays of strings; starts no Spark job."""
    kind = field(frame, name).dataType
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StringType):
        raise InputError(f"column {name!r}: expected sentences, arrays of strings, got {kind.simpleString()}")


def sentences_of(frame: DataFrame, name: str) -> DataFrame:
    """Return the column ``sentence``, without collation: Spark then compares words by bytes, as workers do."""
    return frame.select(column(name).cast("array<string>").alias("sentence"))


def survey(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield a row of ``SURVEY`` if there are sentences. Only the first ``MAX_MERGED`` partitions include words."""
    task = TaskContext.get()
    part = 0 if task is None else task.partitionId()
    costs, faulty, counts = [np.empty(0)], 0, [_count(pa.array([], pa.string()))]
    for batch in batches:
        lists = batch.column(0)
        words = pc.list_flatten(lists)
        rows_with_nulls = pc.list_parent_indices(lists).filter(words.is_null())
        faulty += lists.null_count + len(rows_with_nulls.unique())
        costs.append(1.0 + pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False))
        if part < MAX_MERGED:
            counts.append(_count(words))
            if sum(map(len, counts)) > MAX_COUNTED:
                counts = [_merge(pa.concat_tables(counts))]
    cost = np.concatenate(costs)
    if not len(cost):
        return
    row = {
        PART: part,
        ROWS: len(cost),
        COST: cost.sum(),
        SQUARES: cost @ cost,
        "faulty": faulty,
        "words": to_bytes(_merge(pa.concat_tables(counts))) if part < MAX_MERGED else None,
    }
    yield pa.RecordBatch.from_pylist([row], SURVEY)


def _count(words: pa.Array) -> pa.Table:
    """Count words; ignore nulls."""
    word, count = words.drop_null().cast(pa.string()).value_counts().flatten()
    return pa.table({"word": word, "count": count})


def _merge(word_counts: pa.Table) -> pa.Table:
    summed = word_counts.group_by("word").aggregate([("count", "sum")])
    return pa.table({"word": summed.column("word"), "count": summed.column("count_sum")})


@dataclass(frozen=True, eq=False)
class CountedSentences:
    """The rows of the only worker, and the columns of its ``SURVEY``."""

    batches: list[pa.RecordBatch]
    rows: int
    faulty: int
    words: bytes

    @staticmethod
    def read(worker: Any, batches: Iterable[pa.RecordBatch]) -> CountedSentences:
        """Read the rows and count their words."""
        rows = list(batches)
        (row,) = (row for batch in survey(rows) for row in batch.to_pylist())
        return CountedSentences(rows, row[ROWS], row["faulty"], row["words"])

    def report(self) -> dict[str, Any]:
        """Return the survey for the driver, as plain data."""
        return {"rows": np.array([self.rows, self.faulty]), "words": np.frombuffer(self.words, np.uint8)}


@dataclass
class VocabularyCheck:
    """The driver's side of a training in one job. ``decide`` sets ``vocabulary``: the words and their counts."""

    settings: Word2VecSettings
    vocabulary: tuple[Names, Int64s] | None = None

    def decide(self, report: Mapping[str, Any]) -> Message | Stop:
        """Return a message that lets the worker train, or STOP if rows are invalid, or the model is too large.

        Raise InputError for fewer than two frequent words, LimitError if the training does not fit into memory.
        """
        _, faulty = report["rows"].tolist()
        if faulty:
            return STOP
        words, counts = vocabulary_of(from_bytes(report["words"]), self.settings)
        plan = EmbeddingPlan(settings=self.settings, vocabulary=len(words), total=int(counts.sum()))
        if plan.tables * plan.table_bytes > MAX_RESULT_BYTES:
            return STOP
        check_memory(plan, self.settings.maxSentenceLength, available_bytes())
        self.vocabulary = words, counts
        return Message({"vocabulary": plan.vocabulary})


@dataclass(frozen=True, eq=False)
class TrainCountedSentences:
    """Trains in the only worker's process, which starts ``servers`` servers."""

    settings: Word2VecSettings
    servers: int
    only_worker: OnlyWorker

    def __call__(self, survey: CountedSentences, message: Mapping[str, Any]) -> Outcome:
        longest = self.settings.maxSentenceLength
        words, counts = vocabulary_of(from_bytes(survey.words), self.settings)
        plan = EmbeddingPlan(settings=self.settings, vocabulary=len(words), total=int(counts.sum()))
        sentences = encode(survey.batches, words, longest)
        corpus = Corpus(None, 1, lambda worker, rows: sentences, frequencies=counts, longest=longest)

        def run(ps: Any, on_step: OnStep) -> FittedEmbeddings:
            return train(ps, corpus, plan, on_step, self.only_worker)

        return train_in_process(self.servers, sentences, run)
