"""Features: Word2Vec as in pyspark.ml, metric learning and dictionary learning on servers; keys by hashing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from pyspark.ml import Estimator, Model
from pyspark.ml.functions import array_to_vector
from pyspark.ml.linalg import DenseMatrix, DenseVector, SparseVector, Vector
from pyspark.ml.param.shared import HasFeaturesCol, HasInputCol, HasOutputCol
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf

from ps2.algorithms.dictionary.ml.params import DictionaryParams, DictionarySetters
from ps2.algorithms.dictionary.ml.params import options_of as dictionary_options_of
from ps2.algorithms.dictionary.ml.placing import placed
from ps2.algorithms.dictionary.model import SparseCoder
from ps2.algorithms.dictionary.options import DictionaryOptions, FittedDictionary
from ps2.algorithms.dictionary.program import train as train_dictionary
from ps2.algorithms.embeddings.ml.estimator import EmbeddingEstimator, workers_of
from ps2.algorithms.embeddings.ml.models import EmbeddingModel
from ps2.algorithms.embeddings.ml.one_job import AfterCounting, HeldSentences, Vocabulary
from ps2.algorithms.embeddings.ml.training_params import Word2VecParams
from ps2.algorithms.embeddings.ml.words import ReadSentences, check_sentences, inspect_sentences, sentences_of
from ps2.algorithms.embeddings.model import Embedding
from ps2.algorithms.embeddings.program import Corpus, OnlyWorker
from ps2.algorithms.embeddings.settings import EmbeddingSettings, FittedEmbeddings
from ps2.algorithms.estimators.dealing import Dealer, deal
from ps2.algorithms.estimators.estimator import FleetEstimator, has_checkpoints
from ps2.algorithms.estimators.frames import check_frame
from ps2.algorithms.estimators.heads import VectorHead
from ps2.algorithms.estimators.key_hasher import KeyHasher as KeyHasher
from ps2.algorithms.estimators.models import FittedModel
from ps2.algorithms.estimators.params import setter
from ps2.algorithms.estimators.predict import compressed, rows_of, with_predictions
from ps2.algorithms.estimators.scoring import FeatureScoring, WordScoring
from ps2.algorithms.estimators.summaries import HistorySummary
from ps2.algorithms.estimators.tables import SMALL_BYTES, Survey, TableSurvey, column, survey
from ps2.algorithms.estimators.unlabelled import survey_rows
from ps2.algorithms.metric.ml.pair_frame import joined
from ps2.algorithms.metric.ml.params import MetricParams, MetricSetters, options_of
from ps2.algorithms.metric.ml.placing import placed as metric_placed
from ps2.algorithms.metric.model import Metric
from ps2.algorithms.metric.options import MetricOptions
from ps2.algorithms.metric.program import TrainedMetric, train
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.only_worker import train_in_only_worker
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

    from ps2.algorithms.estimators.keywords import feature as keywords

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


class MetricLearning(FleetEstimator, MetricSetters, Estimator["MetricLearningModel"]):
    """Distance metric learning: a matrix L on servers, so that ``|L x - L y|`` is small for similar rows only.

    L minimises the mean over pairs of ``|L (x - y)|^2`` for similar ones, and
    ``dissimilarWeight * max(0, 1 - |L (x - y)|^2)`` for dissimilar ones (Xing et al., 2002, in the form of Petuum's).

    Example::

        model = MetricLearning(rank=2).fit(df)  # labels are classes: pairs are drawn
        model = MetricLearning(rank=2, featuresCol="a", otherCol="b").fit(pairs)  # label 1: a and b are similar
        model.transform(df).select("metric").show()
    """

    def __init__(self, **params: Unpack[keywords.MetricLearning]) -> None:
        super().__init__(**params)

    def _plan(self) -> MetricOptions:
        return options_of(self, self._name)

    def _columns(self) -> ColumnNames:
        return ColumnNames(self._features, self.getLabelCol())

    def _survey_and_deal(self, dataset: DataFrame) -> tuple[Any, Dealer]:
        if not self.isSet(self.otherCol):
            return super()._survey_and_deal(dataset)
        rows, features = joined(dataset, (self.getFeaturesCol(), self.getOtherCol()), self.getLabelCol())
        return self.copy({self.featuresCol: features})._survey_and_deal_rows(rows)

    def _survey_and_deal_rows(self, rows: DataFrame) -> tuple[Any, Dealer]:
        return super()._survey_and_deal(rows)

    def _survey(self, dataset: DataFrame, columns: ColumnNames) -> Survey:
        classes = 2 if self.isSet(self.otherCol) else 0
        found = survey(dataset, columns, classes)
        there = [number for number, weight in enumerate(found.facts.class_weights) if weight > 0]
        if len(there) < 2:
            kind = "both similar (1) and dissimilar (0) pairs" if classes else "rows of two classes at least"
            raise InputError(f"column {columns.label!r}: expected {kind}, and all labels are {there[0]}")
        return found

    def _train_model(self, plan: MetricOptions, found: Survey, dealt: Dealer) -> tuple[Any, TrainingHistory]:
        dim = found.dim // 2 if plan.pairs is None else found.dim
        plan.check(dim)
        placement = metric_placed(plan, dim, found, dealt, self.getVia())
        table = dealt(placement.workers)
        size = dim, max(2, len(found.facts.class_weights))

        def run(ps: PS2Context, on_step: Callable[[StepReport], None]) -> TrainedMetric:
            if placement.via == "servers":
                return train(ps, table, plan, size, on_step)
            alone: TrainedMetric = train_in_only_worker(
                ps, table, plan.form(*size), partial(train, size=size), plan, on_step
            )
            return alone

        trained = self._train_in_context(table, plan.steps, run)
        return MetricLearningModel(trained.metric), replace(trained.history, placement=placement)


class MetricLearningModel(FittedModel, MetricParams, Model):
    """What ``MetricLearning.fit`` returns."""

    setFeaturesCol = setter(HasFeaturesCol.featuresCol)
    setOutputCol = setter(HasOutputCol.outputCol)

    def __repr__(self) -> str:
        return f"{type(self).__name__}: uid={self.uid}, rank={self.metric.rank}, numFeatures={self.numFeatures}"

    @property
    def metric(self) -> Metric:
        """The trained metric as arrays, usable without Spark."""
        found: Metric = self._fitted
        return found

    @property
    def numFeatures(self) -> int:
        """Number of features that the model was trained on."""
        return self.metric.dim

    @property
    def components(self) -> DenseMatrix:
        """L, a matrix of shape (rank, features)."""
        found = self.metric.components
        return DenseMatrix(found.shape[0], found.shape[1], found.reshape(-1), isTransposed=True)

    def matrix(self) -> DenseMatrix:
        """Return M = L'L, shape (features, features), whose metric it is.

        Raises:
            LimitError: there are more than 16,384 features.
        """
        found = self.metric.matrix()
        return DenseMatrix(found.shape[0], found.shape[1], found.reshape(-1))

    def mapped(self, value: Any) -> Vector:
        """Return L x of one row: a vector of pyspark, an array or a list of ``numFeatures`` numbers."""
        return DenseVector(self.metric.transform(rows_of(value, self.numFeatures, missing=False))[0])

    def _transform(self, dataset: DataFrame) -> DataFrame:
        check_frame(dataset)
        share = self._share(backend_of(dataset))
        columns, head = ColumnNames(self._features, label=None), VectorHead(self.metric.rank)
        return with_predictions(dataset, columns, self.metric.dim, share, head, [(self.getOutputCol(), "raw")])

    def scoring(self) -> FeatureScoring:
        """Return how ``transform`` scores rows, as plain data, for scorers without Spark and servers."""
        head, outputs = VectorHead(self.metric.rank), ((self.getOutputCol(), "raw"),)
        return FeatureScoring(f"{Metric.__module__}:Metric", self.metric.dim, False, self._features, head, outputs)

    def _write_content(self, url: str) -> Any:
        return self.metric.write(url)

    @classmethod
    def _read_content(cls, path: str, url: str, content: Any) -> Metric:
        return Metric.read(path, url, content)

    def _remember(self, dataset: DataFrame, history: TrainingHistory) -> None:
        self._summary = HistorySummary(history)


class DictionaryLearning(FleetEstimator, DictionarySetters, Estimator["DictionaryLearningModel"]):
    """Sparse coding: k atoms on servers, of which each row is a combination of few.

    Atoms D and codes A minimise ``1/2 |X - A D|^2 + regParam |A|_1``, and no atom is longer than 1: scikit-learn's
    DictionaryLearning with alpha = regParam (Mairal et al., 2010).

    Example::

        model = DictionaryLearning(k=100, regParam=0.5).fit(df)  # featuresCol: dense or sparse vectors
        model.transform(df).select("codes").show()
    """

    def __init__(self, **params: Unpack[keywords.DictionaryLearning]) -> None:
        super().__init__(**params)

    def _plan(self) -> DictionaryOptions:
        return dictionary_options_of(self, self._name)

    def _columns(self) -> ColumnNames:
        return ColumnNames(self._features, label=None)

    def _survey(self, dataset: DataFrame, columns: ColumnNames) -> TableSurvey:
        return survey_rows(dataset, columns)

    def _train_model(self, plan: DictionaryOptions, found: TableSurvey, dealt: Dealer) -> tuple[Any, TrainingHistory]:
        options = replace(plan, dim=found.dim)
        options.check(found.rows)
        placement = placed(options, found, dealt, self.getVia())
        table = dealt(placement.workers)

        def run(ps: PS2Context, on_step: Callable[[StepReport], None]) -> FittedDictionary:
            if placement.via == "servers":
                return train_dictionary(ps, table, options, on_step)
            alone: FittedDictionary = train_in_only_worker(ps, table, options.form, train_dictionary, options, on_step)
            return alone

        fitted = self._train_in_context(table, options.iterations, run)
        coder = SparseCoder(fitted.dictionary, options.penalty, options.positive)
        return DictionaryLearningModel(coder), replace(fitted.history, placement=placement)


class DictionaryLearningModel(FittedModel, DictionaryParams, Model):
    """What ``DictionaryLearning.fit`` returns."""

    setFeaturesCol = setter(HasFeaturesCol.featuresCol)
    setOutputCol = setter(HasOutputCol.outputCol)

    def __repr__(self) -> str:
        return f"{type(self).__name__}: uid={self.uid}, k={self.coder.k}, numFeatures={self.numFeatures}"

    @property
    def coder(self) -> SparseCoder:
        """The dictionary and its codes as arrays, usable without Spark."""
        found: SparseCoder = self._fitted
        return found

    @property
    def numFeatures(self) -> int:
        """Number of features that the model was trained on."""
        return self.coder.dim

    @property
    def dictionary(self) -> npt.NDArray[np.float64]:
        """The atoms, float64, shape (k, features)."""
        return self.coder.dictionary

    def code(self, value: Any) -> SparseVector:
        """Return the code of one row: a vector of pyspark, an array or a list of ``numFeatures`` numbers."""
        found = self.coder.transform(rows_of(value, self.numFeatures, missing=False))
        return SparseVector(self.coder.k, found.indices.tolist(), found.data.tolist())

    def _transform(self, dataset: DataFrame) -> DataFrame:
        check_frame(dataset)
        share, name = self._share(backend_of(dataset)), self.getOutputCol()
        columns, head = ColumnNames(self._features, label=None), VectorHead(self.coder.k)
        return compressed(with_predictions(dataset, columns, self.coder.dim, share, head, [(name, "raw")]), name)

    def scoring(self) -> FeatureScoring:
        """Return how ``transform`` scores rows, as plain data, for scorers without Spark and servers."""
        head, outputs = VectorHead(self.coder.k), ((self.getOutputCol(), "raw"),)
        loader = f"{SparseCoder.__module__}:SparseCoder"
        return FeatureScoring(loader, self.coder.dim, False, self._features, head, outputs)

    def _write_content(self, url: str) -> Any:
        return self.coder.write(url)

    @classmethod
    def _read_content(cls, path: str, url: str, content: Any) -> SparseCoder:
        return SparseCoder.read(path, url, content)

    def _remember(self, dataset: DataFrame, history: TrainingHistory) -> None:
        self._summary = HistorySummary(history)
