"""Word2Vec of few sentences in one Spark job: the only worker counts the words, and trains in its own process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ps2.algorithms.embeddings.footprint import check_memory
from ps2.algorithms.embeddings.ml.words import encoded, survey, unpacked, vocabulary_of
from ps2.algorithms.embeddings.program import Corpus, OnlyWorker, train
from ps2.algorithms.embeddings.settings import EmbeddingSettings, FittedEmbeddings
from ps2.algorithms.estimators.loads import ROWS
from ps2.algorithms.training.in_process import in_process
from ps2.algorithms.training.outcome import Outcome, outcome_of
from ps2.algorithms.training.record import StepReport
from ps2.data.names import Names
from ps2.ops.kernels import Int64s
from ps2.run.message import STOP, Message, Stop
from ps2.server.memory import available_bytes, free_bytes

# Both tables, which the worker returns.
MAX_BYTES = 32 << 20
# Of the worker's free memory, for its servers.
SHARE_OF_MEMORY = 0.5


@dataclass(frozen=True, eq=False)
class HeldSentences:
    """A worker's rows, and what they have.

    Attributes:
        batches: of sentences.
        rows: number of rows.
        faulty: rows that are no sentences.
        words: an Arrow stream: each word with its count.
    """

    batches: list[pa.RecordBatch]
    rows: int
    faulty: int
    words: bytes

    @staticmethod
    def read(worker: Any, batches: Iterable[pa.RecordBatch]) -> HeldSentences:
        """Read and count."""
        kept = list(batches)
        (found,) = (row for batch in survey(kept) for row in batch.to_pylist())
        return HeldSentences(kept, found[ROWS], found["faulty"], found["words"])

    def report(self) -> dict[str, Any]:
        """Return the counts as plain data."""
        return {"rows": np.array([self.rows, self.faulty]), "words": np.frombuffer(self.words, np.uint8)}


@dataclass
class Vocabulary:
    """The driver's part: it makes settings when it hears of the words.

    Attributes:
        settings: called with the size of the vocabulary and the number of tokens.
        longest: maximum words of a sentence.
        found: words and counts, when they are known.
    """

    name: str
    min_count: int
    settings: Callable[[int, int], EmbeddingSettings]
    longest: int
    found: tuple[Names, Int64s] | None = None

    def decide(self, report: Mapping[str, Any]) -> Message | Stop:
        """Return the settings; STOP: rows are faulty, or the model is large: it is not for this job.

        Raises:
            InputError: too few words are frequent enough.
            LimitError: the training does not fit.
        """
        _, faulty = report["rows"].tolist()
        if faulty:
            return STOP
        words, counts = vocabulary_of(unpacked(report["words"].tobytes()), self.name, self.min_count)
        settings = self.settings(len(words), int(counts.sum()))
        if settings.tables * settings.table_bytes > MAX_BYTES:
            return STOP
        check_memory(settings, self.longest, available_bytes())
        self.found = words, counts
        return Message(asdict(settings))


@dataclass(frozen=True, eq=False)
class AfterCounting:
    """Trains with the sentences that the worker holds; called with the settings by a ``SurveyedTraining``."""

    name: str
    min_count: int
    longest: int
    servers: int
    only_worker: OnlyWorker

    def __call__(self, held: HeldSentences, message: Mapping[str, Any]) -> Outcome:
        def trained(on_step: Callable[[StepReport], None]) -> FittedEmbeddings:
            settings = EmbeddingSettings(**message)
            words, counts = vocabulary_of(unpacked(held.words), self.name, self.min_count)
            sentences = encoded(held.batches, words, self.longest)
            corpus = Corpus(None, 1, lambda worker, rows: sentences, frequencies=counts, longest=self.longest)
            with in_process(self.servers, int(free_bytes() * SHARE_OF_MEMORY), sentences) as ps:
                return train(ps, corpus, settings, on_step, self.only_worker)

        return outcome_of(trained)
