"""Features: Word2Vec as in pyspark.ml, metric learning and dictionary learning on servers; keys by hashing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
from pyspark.ml import Estimator, Model
from pyspark.ml.functions import array_to_vector
from pyspark.ml.param.shared import HasInputCol, HasOutputCol
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf

from ps2.algorithms.embeddings.ml.estimator import EmbeddingEstimator, workers_of
from ps2.algorithms.embeddings.ml.models import EmbeddingModel
from ps2.algorithms.embeddings.ml.one_job import AfterCounting, HeldSentences, Vocabulary
from ps2.algorithms.embeddings.ml.training_params import Word2VecParams
from ps2.algorithms.embeddings.ml.words import ReadSentences, check_sentences, inspect_sentences, sentences_of
from ps2.algorithms.embeddings.model import Embedding
from ps2.algorithms.embeddings.program import Corpus, OnlyWorker
from ps2.algorithms.embeddings.settings import EmbeddingSettings, FittedEmbeddings
from ps2.algorithms.estimators.dealing import deal
from ps2.algorithms.estimators.estimator import has_checkpoints
from ps2.algorithms.estimators.frames import check_frame
from ps2.algorithms.estimators.key_hasher import KeyHasher as KeyHasher
from ps2.algorithms.estimators.params import setter
from ps2.algorithms.estimators.scoring import WordScoring
from ps2.algorithms.estimators.tables import SMALL_BYTES, column
from ps2.algorithms.public_names import exports
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.outcome import result_of
from ps2.algorithms.training.record import StepReport, TrainingHistory
from ps2.algorithms.training.run import SurveyedTraining, run_surveyed
from ps2.algorithms.training.table import Table
from ps2.coordinator.context import PS2Context
from ps2.errors import InputError, WorkerError
from ps2.run.slots import cores_of_one
from ps2.run.spark.backend_lookup import active_session, backend_of, with_python

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ps2.algorithms.dictionary.estimator import DictionaryLearning as DictionaryLearning
    from ps2.algorithms.dictionary.estimator import DictionaryLearningModel as DictionaryLearningModel
    from ps2.algorithms.estimators.keywords import feature as keywords
    from ps2.algorithms.metric.estimator import MetricLearning as MetricLearning
    from ps2.algorithms.metric.estimator import MetricLearningModel as MetricLearningModel
else:
    __all__, __getattr__, __dir__ = exports(__name__)

SYNONYMS = "word string, similarity double not null"


class Word2Vec(EmbeddingEstimator, Word2VecParams, Estimator["Word2VecModel"]):
    """Vectors of words: ``pyspark.ml.feature.Word2Vec`` on servers, by skip-gram or CBOW with negative sampling.

    Example::

        model = Word2Vec(vectorSize=100, inputCol="words", outputCol="vector").fit(df)  # words: arrays of strings
        model.findSynonyms("oak", 5).show()
    """

    def __init__(self, **params: Unpack[keywords.Word2Vec]) -> None:
        super().__init__(**params)

    _KIND = "word2vec"

    @staticmethod
    def _MODEL(embedding: Embedding) -> Word2VecModel:
        return Word2VecModel(embedding)

    def _embedded(self, dataset: DataFrame, workers: int | None) -> tuple[Embedding, TrainingHistory]:
        name = _input_column(self)
        if workers is None and self.isSet(self.numPartitions):
            workers = self.getNumPartitions()
        check_sentences(dataset, name)
        if (trained := self._in_one_job(dataset, name, workers)) is not None:
            return trained
        found = inspect_sentences(dataset, name, self.getMinCount())
        workers = workers_of(dataset, workers, found.rows)
        table = deal(dataset, ColumnNames(name, label=None), found, workers)
        words = backend_of(dataset).broadcast(found.words)
        settings = self._settings_of(found.dim, int(found.counts.sum()))
        longest = self.getMaxSentenceLength()
        read = ReadSentences(words, longest)
        corpus = Corpus(table.frame, table.workers, read, frequencies=found.counts, longest=longest)
        fitted = self._train_on(corpus, settings)
        return Embedding(found.words, fitted.vectors, found.counts), fitted.history

    def _settings_of(self, vocabulary: int, total: int, **more: Any) -> EmbeddingSettings:
        return self._settings_for(
            vocabulary,
            total,
            window=self.getWindowSize(),
            architecture=self.getArchitecture(),
            sample=self.getSample(),
            **more,
        )

    def _in_one_job(
        self, dataset: DataFrame, name: str, workers: int | None
    ) -> tuple[Embedding, TrainingHistory] | None:
        """Count words and train in one worker's process; None: it is not for that."""
        via, min_count, longest = self.getVia(), self.getMinCount(), self.getMaxSentenceLength()
        if via not in ("auto", "local") or workers not in (None, 1) or self._name or has_checkpoints():
            return None
        sentences = sentences_of(dataset, name).coalesce(1)
        if backend_of(sentences).estimated_bytes(sentences) > SMALL_BYTES:
            return None
        why = "as requested" if via == "local" else f"Spark expects at most {SMALL_BYTES >> 20} MiB of sentences"
        only_worker = OnlyWorker(cores_of_one(backend_of(dataset)), why)
        vocabulary = Vocabulary(
            name, min_count, lambda words, total: self._settings_of(words, total, via="local"), longest
        )
        table = Table(sentences, ColumnNames(name, label=None), 1)

        def run(ps: PS2Context, on_step: Callable[[StepReport], None]) -> FittedEmbeddings | None:
            program = AfterCounting(name, min_count, longest, len(ps.servers), only_worker)
            read, report = HeldSentences.read, HeldSentences.report
            outcome = run_surveyed(ps, SurveyedTraining(table, read, report, vocabulary.decide, program, self._seed))
            return None if outcome is None else result_of(outcome, on_step)

        try:
            fitted = self._train_in_context(table, self.getMaxIter(), run)
        except WorkerError:
            if dataset.isEmpty():
                return None
            raise
        if fitted is None:
            return None
        assert vocabulary.found is not None
        words, counts = vocabulary.found
        return Embedding(words, fitted.vectors, counts), fitted.history


class Word2VecModel(EmbeddingModel, Word2VecParams, Model):
    """What ``Word2Vec.fit`` returns."""

    setInputCol = setter(HasInputCol.inputCol)
    setOutputCol = setter(HasOutputCol.outputCol)

    def getVectors(self) -> DataFrame:
        """Return all vectors, the most frequent words first: columns word and vector."""
        return self._frame_of("word")

    def findSynonyms(self, word: Any, num: int) -> DataFrame:
        """Return the words most similar to a word or a vector: columns word and similarity (the cosine).

        Raises:
            InputError: the word has no vector.
            ConfigError: ``num`` is below 1.
        """
        return with_python(active_session()).createDataFrame(self.findSynonymsArray(word, num), SYNONYMS)

    def findSynonymsArray(self, word: Any, num: int) -> list[tuple[str, float]]:
        """Like ``findSynonyms``, but return a list of pairs."""
        return self.embedding.similar(word, num)

    def scoring(self) -> WordScoring:
        """Return how ``transform`` scores rows, as plain data, for scorers without Spark and servers."""
        return WordScoring(f"{Embedding.__module__}:Embedding", _input_column(self), self.getOutputCol())

    def _transform(self, dataset: DataFrame) -> DataFrame:
        check_frame(dataset)
        name, output = _input_column(self), self.getOutputCol()
        check_sentences(dataset, name)
        if output in dataset.columns:
            raise InputError(f"column {output!r}: it is there already; choose another name for the vectors")
        sentence = column(name)
        fault = F.raise_error(F.lit(f"column {name!r}: expected arrays of strings, got null"))
        mean = _means(self._share(backend_of(with_python(dataset))))(sentence)
        vector = array_to_vector(F.when(sentence.isNull(), fault.cast("array<double>")).otherwise(mean))
        described = {"ml_attr": {"num_attrs": self.embedding.dim}}
        return dataset.select("*", vector.alias(output, metadata=described))


def _means(share: Callable[[], Embedding]) -> Any:
    def means(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        embedding = share()
        for sentences in batches:
            words = [() if sentence is None else sentence for sentence in sentences]
            yield pd.Series(list(embedding.means(pa.array(words, pa.list_(pa.string())))))

    make: Any = pandas_udf
    return make(means, "array<double>")


def _input_column(params: Word2VecParams) -> str:
    if not params.isSet(params.inputCol):
        raise InputError("inputCol: expected the name of a column of arrays of strings, and it is not set")
    return params.getInputCol()
